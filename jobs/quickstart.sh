#!/usr/bin/env bash
# From a fresh machine to served requests: builds, makes four small models with random weights, and serves
# inputs/quickstart.jsonl on four MPI ranks (tp 2 x pp 2) whose device memory holds two of the four.
set -euo pipefail
cd "$(dirname "$0")/.."
. jobs/mpi-env.sh   # lets mpirun start four ranks on a small machine, as root or not

TARGETS=computron bash jobs/build.sh release
program=build/release/computron
work=build/quickstart
mkdir -p "$work"

models=()
for name in opt-a opt-b opt-c opt-d; do
  [ -e "$work/$name.h5" ] || "$program" init "$work/$name.h5" --config "inputs/models/opt-tiny-${name#opt-}.json" --seed 1
  models+=(--model "$name=$work/$name.h5")
done

echo
echo "Serving inputs/quickstart.jsonl on four ranks:"
rm -f "$work/results.jsonl"
mpirun -n 4 "$program" serve "${models[@]}" --tp 2 --pp 2 --device cpu --device-memory 16MiB --page-size 512KiB --max-seqs 8 \
  --requests inputs/quickstart.jsonl --output "$work/results.jsonl" --metrics "$work/metrics.json"

echo
echo "One of the results:"
head -n 1 "$work/results.jsonl" | cut -c 1-400
echo
echo "results  $work/results.jsonl ($(wc -l < "$work/results.jsonl") lines)"
echo "metrics  $work/metrics.json"
