#!/usr/bin/env bash
# Checks how the sources are written: clang-format over all of them, clang-tidy over some, which takes 5 s a file.
#   jobs/lint.sh [--changed [BASE]]   tidy what differs from where this branch left BASE (default: origin/main, or main)
#   jobs/lint.sh --sample [BASE]      the same, 12 files at most; when fewer differ, up to 12 with others that the commit
#                                     draws: what is found in those is said and fails nothing (.ci/run)
#   jobs/lint.sh --all                tidy everything (half an hour)
#   jobs/lint.sh FILES                format and tidy these
#   jobs/lint.sh --fix-format         format everything in place, and no more
# A changed header is tidied with the source file of its name. Files of CUDA and of the emulated GPU are formatted only.
# Needs clang-format and clang-tidy 14, installs them where it can, and ends with 77 where it cannot; 0: nothing found.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
readonly sample_size=12
tidy_folder=build/lint

install_tools() {
  command -v clang-format >/dev/null 2>&1 && command -v clang-tidy >/dev/null 2>&1 && return
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      clang-format clang-tidy; } >/dev/null 2>&1
  fi
  command -v clang-format >/dev/null 2>&1 && command -v clang-tidy >/dev/null 2>&1 && return
  echo "lint: SKIPPED: clang-format and clang-tidy are not to be had here"
  exit 77
}

# Only version 14 decides: others break lines elsewhere and know other checks.
check_version() {
  local version
  version="$(clang-format --version | grep -oE '[0-9]+' | head -1)"
  [ "$version" = 14 ] && return
  echo "lint: SKIPPED: clang-format is version $version, and the sources are formatted by version 14"
  exit 77
}

all_sources() { git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' '*.c'; }

# Of the files named on standard input, those that clang-tidy can read and that are there.
can_be_tidied() {
  grep -E '\.cpp$' | grep -vE '/cuda/|^tests/(emulated_gpu|fuzz|install)/' | while read -r file; do
    # By name: __fp16, which stands for it below, is no type of arguments.
    [ -f "$file" ] && ! grep -q '\b_Float16\b' "$file" && echo "$file"
  done
}

# Of the files named on standard input: sources as they are, headers as the source files of their names.
sources_of() {
  while read -r file; do
    case "$file" in
      *.cpp) echo "$file" ;;
      include/computron/*.h) file="${file#include/computron/}"; echo "src/${file%.h}.cpp" ;;
      *.h) echo "${file%.h}.cpp" ;;
    esac
  done | sort -u | can_be_tidied
}

# The commit that the branch left BASE at; nothing where there is none, as in a clone of one commit.
fork_point() {
  local base
  for base in "${1:-origin/main}" main; do
    git merge-base HEAD "$base" 2>/dev/null && return
  done
}

changed_sources() {
  local from
  from="$(fork_point "${1:-}")"
  [ -n "$from" ] || return 0
  # On the main branch itself nobody knows what a change was: only what is not committed counts.
  { git diff --name-only --diff-filter=d "$from"; git ls-files --others --exclude-standard; } | sources_of
}

# All of them in an order that each commit draws anew.
drawn_sources() {
  local seed file
  seed="$(git rev-parse HEAD)"
  all_sources | can_be_tidied | while read -r file; do
    printf '%s %s\n' "$(printf '%s%s' "$seed" "$file" | cksum | cut -d' ' -f1)" "$file"
  done | sort -n | cut -d' ' -f2
}

# Compile commands of each file alone, as clang understands them.
configure() {
  if ! { cmake -S . -B "$tidy_folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DCMAKE_UNITY_BUILD=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCOMPUTRON_CUDA=OFF &&
    cmake --build "$tidy_folder" --target git_revision; } >"$tidy_folder.log" 2>&1; then
    cat "$tidy_folder.log"
    return 1
  fi
}

# tidy: the files named on standard input, as many at a time as there are cores.
tidy() {
  local files
  files="$(grep .)"
  [ -n "$files" ] || { echo "lint: no file to tidy"; return 0; }
  mkdir -p build
  configure || return 1
  echo "lint: tidying $(wc -l <<<"$files") files"
  # Headers name _Float16, which clang 14 has only where the processor computes with it.
  xargs -P "$(nproc)" -n 1 clang-tidy -p "$tidy_folder" --quiet --extra-arg=-D_Float16=__fp16 <<<"$files" \
    2> >(grep -v 'warnings generated' >&2)
}

install_tools
check_version
failed=0
formatted="$(all_sources)"
drawn=""
case "${1:---changed}" in
  --fix-format) xargs clang-format -i <<<"$formatted"; exit ;;
  --all) tidied="$(all_sources | can_be_tidied)" ;;
  --changed) tidied="$(changed_sources "${2:-}")" ;;
  --sample)
    tidied="$(changed_sources "${2:-}" | head -n "$sample_size")"
    drawn="$({ echo "$tidied"; drawn_sources; } | awk 'NF && !seen[$0]++' | head -n "$sample_size" |
      grep -vxF "${tidied:-/}")" ;;
  -*) sed -n '2,/^set/p' "$0" | grep '^#'; exit 64 ;;
  *)
    formatted="$(printf '%s\n' "$@")"
    tidied="$(sources_of <<<"$formatted")" ;;
esac
xargs clang-format --dry-run --Werror <<<"$formatted" 2>&1 | grep 'error:'
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
tidy <<<"$tidied" || failed=1
[ -z "$drawn" ] || tidy <<<"$drawn" || echo "lint: the above is no fault of this change"
[ "$failed" = 0 ] && echo "lint: nothing found" || echo "lint: FAILED (jobs/lint.sh --fix-format formats)"
exit "$failed"
