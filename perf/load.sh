#!/usr/bin/env bash
# How fast a checkpoint becomes pages beside a plain sequential read of the same file (perf/README.md, "Load"):
# computron bench load on a model of OPT-1.3b's shape, float32 and bfloat16, tp 1 and 2. Writes
# perf/results/load-MACHINE.md.
#
#   perf/load.sh [MACHINE]
#
# SIZE      of the OPT model                                (1.3b)
# DTYPES    of its file                                     (f32 bf16)
# REPEATS   rounds of a run                                 (9)
# RUNS      runs of each case, taken in turns               (3)
# QUIET     wait up to so many seconds before a run until nothing else runs (0)
# PROGRAM   computron                                       (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models and raw figures                          (build/perf/load)
# About five minutes; 16 GiB of memory, so that the file stays in the page cache. Nothing else should run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

# shellcheck source=perf/common.sh
. perf/common.sh

size=${SIZE:-1.3b}
dtypes=${DTYPES:-f32 bf16}
repeats=${REPEATS:-9}
runs=${RUNS:-3}
quiet=${QUIET:-0}
work=${WORK:-build/perf/load}
result=perf/results/load-$machine.md
mkdir -p "$work" perf/results

for dtype in $dtypes; do
  model=$work/opt-$size-$dtype.h5
  [ -e "$model" ] || "$program" init "$model" --arch opt --size "$size" --dtype "$dtype" --seed 1 >&2
done

# True if nothing else has run for a second or so; the one that asks counts.
is_quiet() {
  local i
  for ((i = 0; i < 10; ++i)); do
    awk '{ split($4, tasks, "/"); exit tasks[1] > 1 }' /proc/loadavg || return 1
    sleep 0.1
  done
}
wait_for_quiet() {
  local until=$((SECONDS + quiet))
  while ((SECONDS < until)) && ! is_quiet; do sleep 1; done
}

# measure DTYPE TP RUN: a line of CSV with the load of the machine before the run in front.
measure() {
  local before name=$work/$1-$2-$3
  wait_for_quiet
  before=$(load)
  echo "load.sh: $1, tp $2, run $3, machine load $before" >&2
  mpirun -n "$2" "$program" bench load "$work/opt-$size-$1.h5" --repeats "$repeats" --quiet --csv --json "$name.json" \
    > "$work/raw.csv"
  sed "1s/^/load_before,/; 2s/^/$before,/" "$work/raw.csv" > "$name.csv"
}

cases=$(for dtype in $dtypes; do printf '%s:1 %s:2 ' "$dtype" "$dtype"; done)
for ((run = 1; run <= runs; ++run)); do
  for case in $cases; do measure "${case%:*}" "${case#*:}" "$run"; done
done

# table: a row for every run, the target of perf/README.md checked.
table() {
  for case in $cases; do
    for ((run = 1; run <= runs; ++run)); do cat "$work/${case%:*}-${case#*:}-$run.csv"; done
  done | awk -F , "$awk_functions"'
    function spread(key, digits) {
      return sprintf("%.*f (%.*f–%.*f)", digits, $at[key], digits, $at[key "_min"], digits, $at[key "_max"])
    }
    BEGIN {
      head("file|tp × threads|plain GB/s|parts GB/s|fresh GB/s|load GB/s|load ÷ plain|load ÷ fresh|read, verify, memory, widen, pack, digest, rest ms|target|coded ms (encode, check)|coded ÷ (load + encoding)|target|machine load")
    }
    $1 == "load_before" { for (i = 1; i <= NF; i++) at[$i] = i; next }
    {
      printf "| %s, %.2f GB | %s × %s | %s | %s | %s | %s | %s | %s | %.0f, %.0f, %.0f, %.0f, %.0f, %.0f, %.0f | %s | %s (%.0f, %.0f) | %s | %s | %s |\n",
        $at["stored"], $at["file_bytes"] / 1e9, $at["tp"], $at["threads"], spread("plain_gb_per_s", 1),
        spread("parts_gb_per_s", 1), spread("fresh_gb_per_s", 1), spread("load_gb_per_s", 1),
        spread("load_over_plain", 2), spread("load_over_fresh", 2), $at["read_ms"], $at["verify_ms"],
        $at["memory_ms"], $at["widen_ms"], $at["pack_ms"], $at["digest_ms"], $at["rest_ms"],
        $at["load_over_plain"] < 0.9 ? "missed" : "met", spread("coded_ms", 0), $at["encode_ms"], $at["check_ms"],
        spread("coded_over_bound", 2), ($at["coded_over_bound"] > 1.1 ? "missed" : "met"), $at["load_before"]
    }'
}

{
  echo "# Load: $cpu, $cores cores"
  echo
  made_by load
  echo "An OPT model of $size parameters, the file in the page cache. A row is a run of $repeats rounds: medians, in brackets"
  echo "least and most; runs of the cases in turns. Machine load: one-minute average before the run."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  table
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
