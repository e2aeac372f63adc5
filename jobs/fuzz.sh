#!/usr/bin/env bash
# Feeds the readers of other people's files with damaged ones: jobs/fuzz.sh [RUNS|SECONDSs]
#
#   jobs/fuzz.sh           1,000,000 executions of each target of tests/fuzz
#   jobs/fuzz.sh 200000    so many
#   jobs/fuzz.sh 5s        five seconds of each, whatever comes first of that and 1,000,000
# TARGETS=...   some of them only, e.g. "hf_config safetensors_index"
# SLOWEST=...   seconds, by the clock, that one execution may take (10)
#
# Begins with tests/fuzz/seeds; what reaches new code is kept in build/fuzz/corpus. Installs clang where it is missing
# and can be had, and ends with 77 where it cannot. An input that fails is left in build/fuzz and named.
set -euo pipefail
cd "$(dirname "$0")/.."
amount="${1:-1000000}"
all="safetensors_header safetensors_index hf_config tokenizer_file tokenizer_text journal"
all+=" request_reader checkpoint_index step_wire chat_template"
read -r -a targets <<<"${TARGETS:-$all}"

has_libfuzzer() {
  local compiler="$1"
  command -v "$compiler" >/dev/null 2>&1 &&
    echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$compiler" -x c++ -fsanitize=fuzzer,address - -o /dev/null >/dev/null 2>&1
}
find_compiler() {
  local compiler
  for compiler in clang++ clang++-{19,18,17,16,15,14}; do
    if has_libfuzzer "$compiler"; then echo "$compiler"; return; fi
  done
  return 1
}

if ! compiler=$(find_compiler) && command -v apt-get >/dev/null 2>&1; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo -n)
  "${sudo[@]}" apt-get install -q -y --no-install-recommends clang-14 libclang-rt-14-dev >/dev/null 2>&1 || true
  compiler=$(find_compiler) || true
fi
if [ -z "$compiler" ]; then
  echo "jobs/fuzz.sh: SKIPPED: no clang with libFuzzer (Debian packages clang-14 and libclang-rt-14-dev)" >&2
  exit 77
fi

arguments=()
if command -v ccache >/dev/null 2>&1; then
  arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"  # jobs/build.sh says why
fi
cmake -S tests/fuzz -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="$compiler" "${arguments[@]}" >/dev/null
cmake --build build/fuzz --parallel "${JOBS:-$(nproc)}" --target "${targets[@]}"

# Stacks of allocations and memory kept back after frees are a third of the time. An input that fails says as much when
# it is run again without these.
export ASAN_OPTIONS="malloc_context_size=1:quarantine_size_mb=4:thread_local_quarantine_size_kb=64${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

limits=(-runs=1000000)
case "$amount" in
  *s) limits+=(-max_total_time="${amount%s}") ;;
  *) limits=(-runs="$amount") ;;
esac
# fuzz TARGET: a line of figures; fails where an input does.
fuzz() {
  local target=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log longest=4096
  mkdir -p "$corpus"
  [ "$target" != tokenizer_text ] || longest=512  # each is encoded and decoded many times
  "build/fuzz/$target" "${limits[@]}" -max_len="$longest" -timeout="${SLOWEST:-10}" -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$target-" "$corpus" "tests/fuzz/seeds/$target" >"$log" 2>&1 ||
    { cat "$log"; echo "jobs/fuzz.sh: $target FAILED"; return 1; }
  awk -v target="$target" '/number_of_executed_units|average_exec|peak_rss/ { figures = figures ", " $2 }
    END { split(substr(figures, 3), f, ", "); print target ": " f[1] " executions, " f[2] " a second, " f[3] " MiB" }' "$log"
}

# As many at once as there are cores.
failed=0
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n || failed=1; done
  fuzz "$target" &
done
while [ -n "$(jobs -p)" ]; do wait -n || failed=1; done
exit "$failed"
