#!/usr/bin/env bash
# From a fresh machine to served requests: builds, converts the four trained models of inputs/trained, serves
# inputs/quickstart.jsonl on four MPI ranks (tp 2 x pp 2) whose device memory holds about two of the four, and makes a
# report of the run. PROGRAM=computron: one that is installed, instead of building it; MPIRUN=mpirun.mpich: its launcher.
set -euo pipefail
cd "$(dirname "$0")/.."
. jobs/mpi-env.sh   # lets mpirun start four ranks on a small machine, as root or not

program="${PROGRAM:-build/release/computron}"
[ -n "${PROGRAM:-}" ] || TARGETS=computron bash jobs/build.sh release
work=build/quickstart
mkdir -p "$work"

models=()
for name in base manual python licence; do
  [ -e "$work/$name.h5" ] || "$program" convert "inputs/trained/$name" "$work/$name.h5"
  models+=(--model "$name=$work/$name.h5")
done

echo
echo "Serving inputs/quickstart.jsonl on four ranks:"
rm -f "$work/results.jsonl"
"${MPIRUN:-mpirun}" -n 4 "$program" serve "${models[@]}" --tp 2 --pp 2 --device cpu --device-memory 2MiB --page-size 128KiB \
  --max-seqs 8 --requests inputs/quickstart.jsonl --output "$work/results.jsonl" \
  --metrics "$work/metrics.json" --trace "$work/trace.json"
"$program" report "$work/report.html" --metrics "$work/metrics.json" --trace "$work/trace.json" --title "Computron: quickstart"

echo
echo "Some of the prompts, and how each model went on:"
jobs/show_completions.sh inputs/quickstart.jsonl "$work/results.jsonl"
echo
echo "results  $work/results.jsonl ($(wc -l < "$work/results.jsonl") lines)"
echo "metrics  $work/metrics.json"
echo "trace    $work/trace.json (opens in Perfetto)"
echo "report   $work/report.html (open it in a browser)"
