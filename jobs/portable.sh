#!/usr/bin/env bash
# Builds and tests with another compiler, another MPI library, for another processor: what no check of a change does, since
# it takes hours. Says at the end what was built and tested, as rows of the table in perf/results/portable.md.
#
#   jobs/portable.sh [PART...]    clang mpich aarch64 (all for which the tools are here)
#
#   clang     the newest Clang (CLANG=clang-19 names one): no warnings, all tests but long ones
#   mpich     GCC and Debian's MPICH: tests of ranks; those of whole jobs but what jobs/README.md says of Hydra
#   aarch64   Debian's cross-compiler, the libraries of an arm64 root that mmdebstrap makes, and qemu: unit tests, ranks of
#             MPICH, and greedy tokens beside those of a program for this machine (PROGRAM=build/release/computron)
#
#   BUILD     where it builds (build/portable)
#   JOBS      files that are compiled, and tests that run, at a time (the number of cores)
#   RUN       what builds and tests are started by (nothing): "nice -n 10", say
#
# Exits with 0 if what was run passed, 1 if not, 77 if a PART that was named lacks its tools. ctest has them as portable.PART,
# label `portable`.
# shellcheck disable=SC2317  # functions are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/mpi-env.sh
readonly build="${BUILD:-$PWD/build/portable}" jobs="${JOBS:-$(nproc)}"
read -r -a run <<<"${RUN:-}"
export CCACHE_BASEDIR="$PWD" CCACHE_DEPEND=1 CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"
rows=()

# lacks PART TOOL...: says which of the tools are not here; 1 if all are.
lacks() {
  local part="$1" tool missing=()
  shift
  for tool; do command -v "$tool" >/dev/null 2>&1 || missing+=("$tool"); done
  [ ${#missing[@]} -gt 0 ] || return 1
  echo "portable: $part: SKIPPED: not here: ${missing[*]}"
}

# build PART ARGUMENTS_OF_CMAKE...: all of it, without warnings. TARGETS: these only.
build() {
  local part="$1" launcher=()
  shift
  command -v ccache >/dev/null 2>&1 && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  "${run[@]}" cmake --preset release -B "$build/$part" -DCOMPUTRON_CUDA=OFF "${launcher[@]}" "$@" \
    >"$build/$part.configure.log" 2>&1 || { cat "$build/$part.configure.log"; return 1; }
  read -r -a targets <<<"${TARGETS:-all}"
  if ! "${run[@]}" cmake --build "$build/$part" --parallel "$jobs" --target "${targets[@]}" >"$build/$part.build.log" 2>&1; then
    grep -E 'error|FAILED' "$build/$part.build.log" | cut -c1-200 | head -20
    return 1
  fi
  ! grep 'warning:' "$build/$part.build.log"
}

# check PART COMPILER MPI ARCHITECTURE ARGUMENTS_OF_CTEST...: runs the tests and adds a row.
check() {
  local part="$1" what="$2 | $3 | $4" log="$build/$1.tests.log" failed=0 all not_run
  shift 4
  "${run[@]}" ctest --test-dir "$build/$part" --parallel "$jobs" --no-tests=error --output-on-failure "$@" >"$log" 2>&1 || failed=1
  all="$(grep -oE 'out of [0-9]+' "$log" | grep -oE '[0-9]+' | tail -1)"
  not_run="$(grep -oE '[0-9]+ tests failed' "$log" | grep -oE '[0-9]+' | tail -1)"
  awk '/The following tests FAILED/ { shown = 1 } shown' "$log" | cut -c1-200
  rows+=("| $what | $((${all:-0} - ${not_run:-0})) of ${all:-0} | $(git describe --always --dirty 2>/dev/null), $(date -u +%F) |")
  return "$failed"
}

version() { "$@" --version | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -1; }

part_clang() {
  local clang="${CLANG:-$(compgen -c clang++- | grep -xE 'clang\+\+-[0-9]+' | sort -t- -k2n | tail -1 | sed 's/++//')}"
  lacks clang "${clang:-clang++}" cmake ninja mpicxx && return 77
  local cxx="${clang/clang/clang++}"
  build clang -DCMAKE_C_COMPILER="$clang" -DCMAKE_CXX_COMPILER="$cxx" || return 1
  check clang "Clang $(version "$cxx")" "Open MPI $(version mpirun)" x86-64 --label-exclude '^(long|portable|gpu)$' \
    --timeout 600
}

part_mpich() {
  lacks mpich mpicxx.mpich mpiexec.mpich cmake ninja && return 77
  build mpich -DMPI_CXX_COMPILER=mpicxx.mpich -DMPIEXEC_EXECUTABLE="$(command -v mpiexec.mpich)" || return 1
  check mpich "GCC $(version c++)" "MPICH $(mpichversion | awk '/MPICH Version/ { print $3 }')" x86-64 -L '^mpi$' \
    -R '^(convert_|comm_|page_store|topology|report_collector|runtime_executor|family_test)' -LE '^(long|portable|gpu)$'
}

# What the tests of aarch64 link, and their programs.
readonly arm64_packages=libc6-dev,libstdc++-12-dev,libhdf5-dev,libspdlog-dev,libfmt-dev,libjpeg-dev,libpng-dev,libpcre2-dev,\
libutf8proc-dev,libgtest-dev,libgmock-dev,libmpich-dev,libbenchmark-dev,libcli11-dev,nlohmann-json3-dev,libxxhash-dev,\
libsimde-dev
readonly arm64_tests='base_test|checkpoint_test|text_test|guided_test|model_test|ops_[a-z_]*test|gemm_kernels_test|'\
'gemm_choices_test|coded_page_test|activation_kernels_test|sched_test|dispatch_test|metrics_test|batch_front_end_test|'\
'comm_(all_reduce|mpi|stage_transfer)_test\.r[12]|family_test\.r[12]|convert_[a-z_]*'

# An arm64 root's files: nothing of it is run but by qemu, so no binfmt_misc is needed.
make_arm64_root() {
  [ ! -e "$COMPUTRON_SYSROOT/usr/include/simde/x86/avx2.h" ] || return 0
  lacks aarch64 mmdebstrap && return 77
  rm -rf "$COMPUTRON_SYSROOT"
  mmdebstrap --mode=root --arch=arm64 --variant=extract --include="$arm64_packages" bookworm "$COMPUTRON_SYSROOT" \
    >"$build/arm64-root.log" 2>&1 || { tail -5 "$build/arm64-root.log"; return 1; }
}

# The program that others start themselves becomes a script, which starts it under qemu.
start_by_qemu() {
  [ "$(head -c 2 "$1")" != '#!' ] || return 0
  mv "$1" "$1.elf"
  printf '#!/bin/sh\nexec qemu-aarch64-static -L "$COMPUTRON_SYSROOT" "%s" "$@"\n' "$1.elf" >"$1"
  chmod +x "$1"
}

part_aarch64() {
  lacks aarch64 aarch64-linux-gnu-g++ qemu-aarch64-static mpiexec.mpich cmake ninja && return 77
  export COMPUTRON_SYSROOT="$build/arm64" COMPUTRON_EMULATOR="qemu-aarch64-static -L $build/arm64"
  make_arm64_root || return
  build aarch64 -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/aarch64-linux-gnu.cmake" || return 1
  start_by_qemu "$build/aarch64/computron-checkpoint-index"
  check aarch64 "GCC $(version aarch64-linux-gnu-g++), cross" "MPICH (qemu $(version qemu-aarch64-static))" aarch64 \
    -R "^($arm64_tests)\$" --timeout 1800
  local failed=$?
  GTEST_FILTER='*ServeFamilies.ChooseTheTokens*tp2pp1:*ServeFamilies.ChooseTheTokens*tp1pp2' check aarch64 \
    "GCC $(version aarch64-linux-gnu-g++), cross" MPICH "aarch64, served by two ranks" -R '^serve_test$' -FA '.*' \
    --timeout 1800 || failed=1
  local program="${PROGRAM:-build/release/computron}"
  if [ -x "$program" ]; then
    tests/support/greedy_tokens.py "$build/aarch64/families" "$build/greedy" \
      "env COMPUTRON_MAX_ISA=avx2 mpirun -n 2 $program" \
      "cmake/toolchains/mpiexec-qemu.sh -n 2 $build/aarch64/computron" || failed=1
  else
    echo "portable: aarch64: no $program to compare tokens with (PROGRAM)"
    failed=1
  fi
  return "$failed"
}

mkdir -p "$build"
parts=("$@")
[ $# -gt 0 ] || parts=(clang mpich aarch64)
ended=0
for part in "${parts[@]}"; do
  declare -F "part_$part" >/dev/null || { echo "${0##*/}: no part '$part': clang, mpich, aarch64" >&2; exit 64; }
  "part_$part"
  case $? in
    0) echo "portable: $part: passed" ;;
    77) [ $# -eq 0 ] || [ $ended -ne 0 ] || ended=77 ;;
    *) echo "portable: $part: FAILED (logs: $build/$part.*.log)"; ended=1 ;;
  esac
done
[ ${#rows[@]} -eq 0 ] || printf '%s\n' '| compiler | MPI | processor | tests passed | commit, day |' '|---|---|---|---|---|' "${rows[@]}"
exit $ended
