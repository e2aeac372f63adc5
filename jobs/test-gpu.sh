#!/usr/bin/env bash
# On a machine with a GPU and nvcc, perhaps without a package registry: builds, runs the tests labelled gpu,
# compute-sanitizer on a small serve, then perf/gpu.sh, each in a time box of its own, within about eight minutes. Says at
# the end what passed, failed or was not run; exits with 0 if nothing failed, 1 if something did, 77 without a GPU.
#
#   jobs/test-gpu.sh [PART...]     build test sanitize perf (all)
#
# Packages that the machine lacks are brought along in .deps and unpacked by .deps/use.sh. Where there is a registry:
#   ../shared/tools/offline-deps.sh .deps &&
#     (cd .deps && apt-get download libpng-dev libpng16-16 libjpeg-dev libjpeg62-turbo-dev libjpeg62-turbo)
#   BUILD_S, TEST_S, SANITIZE_S, PERF_S   time boxes in seconds   (210 100 40 120)
#   OUT                                   where results are copied to, if set
# shellcheck disable=SC2317  # functions are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/gpu-parts.sh
. jobs/mpi-env.sh
# shellcheck source=/dev/null
[ ! -e .deps/use.sh ] || . .deps/use.sh
needs_gpu
for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do [ -x "$nvcc" ] && break; done
[ -x "$nvcc" ] || { echo "${0##*/}: SKIPPED: no nvcc on the PATH or in /usr/local/cuda" >&2; exit 77; }
export CUDACXX=$nvcc

chosen=" ${*:-build test sanitize perf} "
build=build/gpu
program=$build/computron
logs=build/gpu-logs
mkdir -p "$logs"

# NCCL where the toolkit has none: PyTorch's wheel brings one along.
nccl_arguments() {
  local folder
  folder=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null) || return 0
  [ -e "$folder/include/nccl.h" ] || return 0
  echo "-DNCCL_INCLUDE_DIR=$folder/include -DNCCL_LIBRARY=$folder/lib/libnccl.so.2"
}

# This machine's GPU only: half the kernels' time. Warnings of another compiler than ours are no errors.
build_all() {
  local arch arguments
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  read -r -a arguments <<<"$(nccl_arguments)"
  # shellcheck disable=SC2068
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DCOMPUTRON_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$arch-real" ${arguments[@]+"${arguments[@]}"} || return
  # What ctest would run: the program, and the executables of the tests labelled gpu.
  local targets
  targets=$(ctest --test-dir "$build" --label-regex '^gpu$' --show-only=json-v1 | python3 -c '
import json, os, sys
tests = json.load(sys.stdin)["tests"]
build = os.path.abspath(sys.argv[1]) + "/"
print(" ".join(sorted({w[len(build):] for t in tests for w in t.get("command", []) if w.startswith(build)})))' "$build")
  echo "targets: computron $targets"
  # shellcheck disable=SC2086
  cmake --build "$build" --parallel "$(nproc)" --target computron $targets
}

run_tests() {
  ctest --test-dir "$build" --label-regex '^gpu$' --output-on-failure --no-tests=error --timeout 60
}

# A serve of two tiny models that swap, under memcheck; in the log of a clean run no line says ERROR with a number but 0.
sanitize() {
  local tool work=build/gpu-sanitize
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  [ -x "$tool" ] || { echo "no compute-sanitizer"; return 77; }
  mkdir -p "$work"
  for name in a b; do
    [ -e "$work/$name.h5" ] ||
      "$program" init "$work/$name.h5" --config "inputs/models/opt-tiny-$name.json" --dtype f16 --seed 1 || return
  done
  : > "$work/requests.jsonl"
  for i in 1 2 3 4; do
    for model in a b; do
      printf '{"custom_id": "%s%d", "method": "POST", "url": "/v1/completions", "body": {"model": "%s", "prompt": [5, 6, 7, %d], "max_tokens": 4}}\n' \
        "$model" "$i" "$model" "$i" >> "$work/requests.jsonl"
    done
  done
  rm -f "$work/results.jsonl"
  mpirun -n 1 "$tool" --tool memcheck --error-exitcode 9 --launch-timeout 20 "$program" serve \
    --model "a=$work/a.h5" --model "b=$work/b.h5" --device cuda --device-memory 16MiB --page-size 512KiB --max-seqs 2 \
    --max-batch-tokens 256 --requests "$work/requests.jsonl" --output "$work/results.jsonl" --quiet || return
  [ "$(wc -l < "$work/results.jsonl")" = 8 ]
}

export -f build_all run_tests sanitize nccl_arguments
export build program

# step PART SECONDS COMMAND: if it was chosen.
step() {
  case $chosen in
    *" $1 "*) part "$1" "$2" bash -c "$3" ;;
    *) left_out "$1" "not asked for" ;;
  esac
}

step build "${BUILD_S:-210}" build_all
if [ -x "$program" ]; then
  step test "${TEST_S:-100}" run_tests
  step sanitize "${SANITIZE_S:-40}" sanitize
  step perf "${PERF_S:-120}" "PROGRAM=$program LIMIT_S=$((${PERF_S:-120} - 8)) perf/gpu.sh"
else
  for name in test sanitize perf; do left_out "$name" "there is no $program"; done
fi
summary | tee "$logs/summary.log"
if [ -n "${OUT:-}" ]; then
  cp "$logs/summary.log" "$OUT/"
  tail -n 200 "$logs"/*.log > "$OUT/logs.txt"
  cp "perf/results/$(gpu_slug).md" "$OUT/" 2>/dev/null
fi
exit "$failed"
