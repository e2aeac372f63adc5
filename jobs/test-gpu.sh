#!/usr/bin/env bash
# On a machine with a GPU and nvcc, perhaps without a package registry: builds, runs the tests labelled gpu,
# compute-sanitizer on a small serve, then perf/gpu.sh, each in a time box of its own, within nine minutes. Says at the
# end what passed, failed or was not run; exits with 0 if nothing failed, 1 if something did, 77 without a GPU.
#
#   jobs/test-gpu.sh [--packages DIR] [PART...]     build test sanitize perf (all)
#
#   DIR        a folder of Debian packages that the machine lacks, with a script use.sh that unpacks them below
#              ${TMPDIR:-/tmp}/offline-deps and points the build at them (.deps, if it is there)
#   BUILD_S, TEST_S, SANITIZE_S   time boxes in seconds   (210 160 40)
#   PERF_S     that of perf/gpu.sh                   (what is left of 540 s)
#   BUILD      a build folder (build/gpu); one that was made elsewhere, for this GPU, needs no nvcc: leave out "build"
#   REVISION   the commit, where git cannot tell
#   OUT        where results are copied to, if set
#
# The packages are those that jobs/build.sh installs, and what they depend on: `apt-get download` on a machine that has a
# registry. Where only a copy of the tree without .git is at hand, REVISION is what `git describe --always` says of it. A
# second run finds the build of the first: "jobs/test-gpu.sh perf", say.
# shellcheck disable=SC2317  # functions are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/gpu-parts.sh
. jobs/mpi-env.sh
packages=.deps
if [ "${1:-}" = --packages ]; then
  packages=${2:-}
  [ -e "$packages/use.sh" ] || { echo "${0##*/}: no use.sh in the folder of packages '$packages'" >&2; exit 66; }
  shift 2
fi
if [ -e "$packages/use.sh" ]; then
  # shellcheck source=/dev/null
  . "$packages/use.sh"
  # libjpeg's jconfig.h, which a compiler finds by itself only below /usr.
  export CPLUS_INCLUDE_PATH=${TMPDIR:-/tmp}/offline-deps/usr/include/x86_64-linux-gnu
fi
needs_gpu
chosen=" ${*:-build test sanitize perf} "
build=${BUILD:-build/gpu}
for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do [ -x "$nvcc" ] && break; done
case $chosen in *" build "*)
  [ -x "$nvcc" ] || { echo "${0##*/}: SKIPPED: no nvcc on the PATH or in /usr/local/cuda" >&2; exit 77; } ;;
esac
export CUDACXX=$nvcc

program=$build/computron
logs=build/gpu-logs
mkdir -p "$logs"

# The folder of one of PyTorch's wheels.
wheel() {
  python3 -c 'import importlib, sys; print(list(importlib.import_module(sys.argv[1]).__path__)[0])' "$1" 2>/dev/null
}

# What the toolkit lacks and PyTorch's wheels bring along, as lib*.so.NUMBER only: NCCL, perhaps cuBLAS and NVTX.
library_arguments() {
  local toolkit nccl cuda
  toolkit=$(dirname "$(dirname "$(readlink -f "$CUDACXX")")")
  nccl=$(wheel nvidia.nccl) && [ -e "$nccl/include/nccl.h" ] &&
    echo "-DNCCL_INCLUDE_DIR=$nccl/include -DNCCL_LIBRARY=$nccl/lib/libnccl.so.2"
  [ -e "$toolkit/include/cublasLt.h" ] && [ -e "$toolkit/include/nvtx3/nvToolsExt.h" ] && return
  cuda=$(wheel nvidia.cu13) && [ -e "$cuda/include/cublasLt.h" ] &&
    echo "-DCMAKE_CXX_FLAGS=-idirafter$cuda/include -DCUDA_cublasLt_LIBRARY=$cuda/lib/libcublasLt.so.13"
}

# This machine's GPU only: half the kernels' time. Warnings of another compiler than ours are no errors.
build_all() {
  local arch arguments
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  read -r -d '' -a arguments <<<"$(library_arguments)"
  # shellcheck disable=SC2068
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DCOMPUTRON_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$arch-real" -DCOMPUTRON_REVISION="${REVISION:-}" \
    ${arguments[@]+"${arguments[@]}"} || return
  # What ctest would run: the program, and the executables of the tests labelled gpu. Their fixtures are listed, too,
  # with folders among their arguments; they start the program.
  local targets
  targets=$(ctest --test-dir "$build" --label-regex '^gpu$' --show-only=json-v1 | python3 -c '
import json, os, sys
build = os.path.abspath(sys.argv[1]) + "/"
on_gpu = lambda test: any(p["name"] == "LABELS" and "gpu" in p["value"] for p in test["properties"])
tests = filter(on_gpu, json.load(sys.stdin)["tests"])
print(" ".join(sorted({w[len(build):] for t in tests for w in t.get("command", []) if w.startswith(build)})))' "$build")
  echo "targets: computron $targets"
  # shellcheck disable=SC2086
  cmake --build "$build" --parallel "$(nproc)" --target computron $targets -- -k 0
}

run_tests() {
  ctest --test-dir "$build" --label-regex '^gpu$' --output-on-failure --no-tests=error --timeout 90
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

# The models of perf/gpu.sh, 42 GB at a time, may take a disk longer to sync than there is time: in memory where there is
# room beside the 52 GB that are pinned.
memory_models=/dev/shm/computron-test-gpu
models_folder() {
  local available room
  available=$(awk '/^MemAvailable:/ { print int($2 / 1e6) }' /proc/meminfo)
  room=$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1)
  if [ "${available:-0}" -ge 110 ] && [ "${room:-0}" -ge 44 ]; then echo "$memory_models"; else echo build/perf/gpu; fi
}

export -f build_all run_tests sanitize library_arguments wheel
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
  step test "${TEST_S:-160}" run_tests
  step sanitize "${SANITIZE_S:-40}" sanitize
  perf_s=${PERF_S:-$((540 - ($(date +%s) - began_at)))}
  step perf "$perf_s" "PROGRAM=$program MODELS=$(models_folder) KEEP=no LIMIT_S=$((perf_s - 8)) perf/gpu.sh"
  rm -rf "$memory_models"
else
  for name in test sanitize perf; do left_out "$name" "there is no $program"; done
fi
summary | tee "$logs/summary.log"
if [ -n "${OUT:-}" ]; then
  cp "$logs/summary.log" "$OUT/"
  tail -n 2000 "$logs"/*.log > "$OUT/logs.txt"
  tar -czf "$OUT/figures.tgz" --exclude='*.h5' -C build/perf gpu 2>/dev/null || rm -f "$OUT/figures.tgz"
  cp "perf/results/$(gpu_slug).md" "$OUT/" 2>/dev/null
fi
exit "$failed"
