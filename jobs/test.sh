#!/usr/bin/env bash
# From a fresh machine to a tested build: builds preset release and runs its tests. Leaves out tests labelled `long`
# and `portable`, and `gpu` where there is none. Ends with ctest's summary; exits with 0 only if everything was built and passed.
#   SANITIZE=1   then also fuzzes the readers of foreign files for a few seconds (jobs/fuzz.sh), builds preset asan and
#                runs its tests with few ranks: of their cases every third (on a slow machine every ninth), the commit
#                says which, as the check of a change does (.ci/run)
#   SANITIZE=all the same, and all cases
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/mpi-env.sh

# These choose cases of the run with sanitizers alone: else a part of the tests would pass for all.
part_of="${GTEST_TOTAL_SHARDS:-}" part="${GTEST_SHARD_INDEX:-}"
unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX

left_out='^(long|portable|gpu)$'
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && left_out='^(long|portable)$'
cores="$(nproc)"
failed=0
# Preset asan takes the tests' objects from preset release (cmake/Targets.cmake): jobs/build.sh uses ccache where it is.
# By what was included, not by preprocessing everything twice.
export CCACHE_BASEDIR="$PWD" CCACHE_DEPEND=1

# Tests say how many halves of a core they want (tests/CMakeLists.txt).
# build_and_test PRESET LOG ARGUMENTS_OF_CTEST...
build_and_test() {
  local preset="$1" log="$2"
  shift 2
  if ! bash jobs/build.sh "$preset"; then
    echo "build of preset $preset failed" | tee "$log"
    return 1
  fi
  ctest --test-dir "build/$preset" --parallel "$((2 * cores))" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log"
}

# What ctest said after its last test.
summary() {
  echo
  echo "== $1"
  awk '/% tests passed/ { shown = 1 } shown' "$2"
  grep -q '% tests passed' "$2" || cat "$2"
}

# install_for_tests COMMAND PACKAGES ARGUMENTS...: installs PACKAGES unless COMMAND succeeds. Only tests want them. Without
# h5py (reads what we write), Slurm (job scripts run in one of their own) or ip (two nodes are namespaces joined by cables)
# some are skipped; without ccache they take longer to build.
install_for_tests() {
  if "$1" "${@:3}" >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then return; fi
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $2; } \
    >/dev/null 2>&1 || echo "not to be had here: $2"
}
install_for_tests command ccache -v ccache
install_for_tests /usr/bin/python3 python3-h5py -c 'import h5py'
install_for_tests command 'slurmctld slurmd slurm-client slurm-wlm-basic-plugins libpmix2' -v slurmctld
install_for_tests command iproute2 -v ip

logs=build/test-logs
mkdir -p "$logs"
build_and_test release "$logs/release.log" --label-exclude "$left_out" || failed=1
if [ "${SANITIZE:-0}" != 0 ]; then
  jobs/fuzz.sh 2s 2>&1 | tee "$logs/fuzz.log"
  fuzzing="${PIPESTATUS[0]}"
  [ "$fuzzing" = 0 ] || [ "$fuzzing" = 77 ] || failed=1
  # What the sanitizers watch takes five to ten times as long, and has passed without them. Where building and testing
  # took twice the usual time, the check of a change would come near its limit of 90 minutes. Who mends what one part
  # found sets both variables as they are printed.
  if [ "$SANITIZE" != all ]; then
    [ "$SECONDS" -lt 2400 ] && usual=3 || usual=9
    export GTEST_TOTAL_SHARDS="${part_of:-$usual}"
    export GTEST_SHARD_INDEX="${part:-$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) % GTEST_TOTAL_SHARDS))}"
    echo "With sanitizers: one case in $GTEST_TOTAL_SHARDS of a test (SANITIZE=all: all)," \
      "GTEST_TOTAL_SHARDS=$GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX=$GTEST_SHARD_INDEX"
  fi
  build_and_test asan "$logs/asan.log" --label-exclude '^(long|portable|gpu)$' || failed=1
fi

summary release "$logs/release.log"
if [ "${SANITIZE:-0}" != 0 ]; then
  printf '\n== fuzzing\n%s\n' "$(grep -E 'executions|SKIPPED|FAILED' "$logs/fuzz.log")"
  summary asan "$logs/asan.log"
fi
[ "$failed" = 0 ] && echo "All tests passed." || echo "Tests failed."

# A killed job leaves its shared-memory files behind; those of jobs that still run are younger, or mapped already.
find /dev/shm -maxdepth 1 -name 'vader_segment.*' -user "$(id -un)" -mmin +60 -delete 2>/dev/null
exit "$failed"
