#!/usr/bin/env bash
# Computron's Gamma workloads (perf/README.md, "Workloads"): its grid of 18 cells in virtual time, and three of them in
# real time with computron bench workload, on emulated links that make a swap take what theirs takes. Writes
# perf/results/workloads-MACHINE.md.
#
#   perf/workloads.sh [MACHINE]
#
# SCALE     seconds here for one of theirs: swaps and the 30 s of arrivals take that much longer, rates are that much
#           lower, and computing may take that much longer (1)
# SEEDS     of the grid                        (10)
# SEED      of the cells in real time          (1)
# CONFIG    model                              (inputs/models/opt-swap.json)
# BUILD     folder of computron and perf_workloads (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model and raw figures              (build/perf/workloads)
# About four minutes; 8 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

# shellcheck source=perf/common.sh
. perf/common.sh

scale=${SCALE:-1}
seeds=${SEEDS:-10}
seed=${SEED:-1}
config=${CONFIG:-inputs/models/opt-swap.json}
build=${BUILD:-build/release}
work=${WORK:-build/perf/workloads}
result=perf/results/workloads-$machine.md
mkdir -p "$work" perf/results

model=$work/$(basename "$config" .json).h5
[ -e "$model" ] || "$build/computron" init "$model" --config "$config" --seed 1

rounded() { awk "BEGIN { printf \"%.4g\", $1 }"; }

# Bytes of the largest shard at tp 2 x pp 2 over 0.423 s. The last stage holds the head once more, so four shards are
# the file to within a few per cent.
rate=$(rounded "$(stat -c %s "$model") / 4 / (0.423 * $scale) / 1e9")
duration=$(rounded "30 * $scale")

# real RESIDENT BATCH RATE...: a CSV with the load of the machine before and after in front. Both policies meet the same
# requests.
real() {
  local resident=$1 batch=$2 before name rates=() models=() i
  shift 2
  for ((i = 1; i <= $#; ++i)); do
    models+=(--model "m$i=$model")
    rates+=("$(rounded "${!i} / $scale")")
  done
  before=$(load)
  name=$#-$(IFS=-; echo "$*")
  echo "workloads.sh: rates $*, $resident resident" >&2
  mpirun -n 4 "$build/computron" bench workload --quiet "${models[@]}" --rates "$(IFS=,; echo "${rates[*]}")" \
    --tp 2 --pp 2 --page-size 2MiB --threads 1 --link-gbps "$rate" --resident "$resident" --max-seqs "$batch" --cv 1 \
    --duration "$duration" --seed "$seed" --policy fifo,balanced --csv --json "$work/real-$name.json" > "$work/raw.csv"
  sed "1s/^/load_before,load_after,/; 2,\$s/^/$before,$(load),/" "$work/raw.csv" > "$work/real-$name.csv"
}

# table: the CSVs as a Markdown table, with the target of real time checked.
table() {
  cat "$@" | awk -F , '
    function gb(key) { return sprintf("%.2f", $at[key] / 1e9) }
    function use(time) { return sprintf("%.0f", 100 * $at[time "_link_busy_s"] / $at[time "_wall_s"]) }
    BEGIN {
      print "| rates | resident | policy | requests | real: mean s | p50 s | p99 s | swaps | GB | link % | virtual: mean s | p50 s | p99 s | swaps | GB | link % | real ÷ virtual | target | learned ms: request, batch, swap | machine load |"
      print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    }
    $1 == "load_before" { for (i = 1; i <= NF; i++) at[$i] = i; next }
    {
      rates = $at["rates"]
      gsub("/", ", ", rates)
      met = $at["mean_ratio"] >= 0.9 && $at["mean_ratio"] <= 1.1
      printf "| %s | %s | %s | %s |", rates, $at["resident"], $at["policy"], $at["requests"]
      split("real virtual", times, " ")
      for (t = 1; t <= 2; t++) {
        time = times[t]
        printf " %.3f | %.3f | %.3f | %s | %s | %s |", $at[time "_mean_s"], $at[time "_p50_s"], $at[time "_p99_s"],
          $at[time "_swaps"], gb(time "_bytes"), use(time)
      }
      printf " %.3f | %s | %.0f, %.0f, %.0f | %s–%s |\n", $at["mean_ratio"], met ? "met" : "missed",
        1e3 * $at["request_s"], 1e3 * $at["batch_s"], 1e3 * $at["swap_s"], $at["load_before"], $at["load_after"]
    }'
}

rm -f "$work"/real-*.csv
"$build/perf_workloads" "$seeds" > "$work/grid.md" || true  # a target missed stands in the table
real 2 8 1 1 1
real 2 8 10 10 1
real 4 32 10 10 1 1 1 1

{
  echo "# Workloads: $cpu, $cores cores"
  echo
  echo "Made by perf/workloads.sh on $(date -u +%Y-%m-%d) at $(git describe --always --dirty); columns, bounds and targets: perf/README.md."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  printf '\n## Virtual time: a swap of 0.423 s, a batch of 0.057 s, means of %s seeds\n\n' "$seeds"
  echo "Computron: its published means, OPT-13B at tp 2 x pp 2 on four A100. The seeds are ours."
  echo
  cat "$work/grid.md"
  printf '\n## Real time: four ranks on emulated links\n\n'
  echo "OPT models of $(stat -c %s "$model" | awk '{ printf "%.0f", $1 / 1e6 }') MB ($config, float32), tp 2 x pp 2, one compute thread a rank, links of $rate GB/s: a swap takes $(rounded "0.423 * $scale") s."
  echo "Requests of one token after 8 of prompt for $duration s, cv 1, seed $seed; times and rates are Computron's$([ "$scale" = 1 ] || echo ", scaled by $scale: the same ratios"). Machine load: one-minute"
  echo "average before and after both policies' runs, threads of the runs themselves included."
  echo
  table "$work"/real-*.csv
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
