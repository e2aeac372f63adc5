#!/usr/bin/env bash
# Computron's Gamma workloads (perf/README.md, "Workloads"): its grid of 18 cells in virtual time, and three of them in
# real time with computron bench workload, on emulated links that make a swap take what theirs takes. Writes
# perf/results/workloads-MACHINE.md.
#
#   perf/workloads.sh [MACHINE]
#   perf/workloads.sh --coded [MACHINE]    of coded pages beside raw ones, bfloat16, in real time only:
#                                          perf/results/workloads-coded-MACHINE.md
#
# SCALE     seconds here for one of theirs: swaps and the 30 s of arrivals take that much longer, rates are that much
#           lower, and computing may take that much longer (1)
# SEEDS     of the grid                        (10)
# SEED      of the cells in real time          (1)
# ROUNDS    with --coded, each with a seed of its own: SEED, SEED + 1, ... (3)
# CELLS     in real time: RESIDENT/BATCH/RATE,... (2/8/1,1,1 2/8/10,10,1 4/32/10,10,1,1,1,1)
# CONFIG    model                              (inputs/models/opt-swap.json)
# BUILD     folder of computron and perf_workloads (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model and raw figures              (build/perf/workloads, build/perf/workloads-coded)
# About four minutes, twenty with --coded; 8 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

mode='' codings=off dtype=f32 weights=float32 rounds=1
if [ "${1:-}" = --coded ]; then
  mode=--coded codings="off on" dtype=bf16 weights=bfloat16 rounds=${ROUNDS:-3}
  shift
fi
build=${BUILD:-build/release}
PROGRAM=$build/computron
# shellcheck source=perf/common.sh
. perf/common.sh

scale=${SCALE:-1}
seeds=${SEEDS:-10}
seed=${SEED:-1}
seed_text="seed $seed"
[ -z "$mode" ] || seed_text="seeds from $seed on"
config=${CONFIG:-inputs/models/opt-swap.json}
work=${WORK:-build/perf/workloads${mode#-}}
result=perf/results/workloads${mode#-}-$machine.md
page_size=2MiB
mkdir -p "$work" perf/results

model=$work/$(basename "$config" .json)${mode:+-$dtype}.h5
[ -e "$model" ] || "$program" init "$model" --config "$config" --dtype "$dtype" --seed 1

rounded() { awk "BEGIN { printf \"%.4g\", $1 }"; }

# Bytes of the largest shard at tp 2 x pp 2 over 0.423 s. The last stage holds the head once more, so four shards are
# the file to within a few per cent.
rate=$(rounded "$(stat -c %s "$model") / 4 / (0.423 * $scale) / 1e9")
duration=$(rounded "30 * $scale")

# real RESIDENT BATCH RATE...: a CSV with the load of the machine before and after in front, and off or on. Both
# policies meet the same requests.
real() {
  local resident=$1 batch=$2 before name rates=() models=() i coded
  shift 2
  for ((i = 1; i <= $#; ++i)); do
    models+=(--model "m$i=$model")
    rates+=("$(rounded "${!i} / $scale")")
  done
  for coded in $codings; do
    before=$(load)
    name=$#-$(IFS=-; echo "$*")${mode:+-$seed-$coded}
    echo "workloads.sh: rates $*, $resident resident, seed $seed, coded $coded" >&2
    mpirun -n 4 "$program" bench workload --quiet "${models[@]}" --rates "$(IFS=,; echo "${rates[*]}")" --tp 2 --pp 2 \
      --page-size "$page_size" --threads 1 --coded "$coded" --link-gbps "$rate" --resident "$resident" \
      --max-seqs "$batch" --cv 1 --duration "$duration" --seed "$seed" --policy fifo,balanced --csv \
      --json "$work/real-$name.json" > "$work/raw.csv"
    sed "1s/^/load_before,load_after,coded,/; 2,\$s/^/$before,$(load),$coded,/" "$work/raw.csv" > "$work/real-$name.csv"
  done
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

# The CSVs as raw_and_coded wants them. No answers are kept that could be compared.
beside() {
  local coded ratio
  for coded in $codings; do copy_rate 2x2 "$model" > /dev/null; done  # which says how much a swap moves, too
  ratio=$(jq -s '.[1].shard_bytes / .[0].shard_bytes' "$work/copies-2x2-off.json" "$work/copies-2x2-on.json")
  cat "$@" | awk -F , -v OFS='\t' -v ratio="$ratio" '
    $1 == "load_before" { for (i = 1; i <= NF; i++) at[$i] = i; next }
    {
      rates = $at["rates"]
      gsub("/", ", ", rates)
      print rates, $at["resident"], $at["policy"], $at["coded"], $at["real_mean_s"], $at["virtual_mean_s"],
        $at["coded"] == "on" ? ratio : 1, "–", 1, $at["load_before"], $at["load_after"]
    }' | raw_and_coded "rates|resident|policy" "real: mean s" "virtual: mean s"
}

rm -f "$work"/real-*.csv
if [ -z "$mode" ]; then
  "$build/perf_workloads" "$seeds" > "$work/grid.md" || true  # a target missed stands in the table
fi
for ((round = 1; round <= rounds; ++round)); do
  for cell in ${CELLS:-2/8/1,1,1 2/8/10,10,1 4/32/10,10,1,1,1,1}; do
    IFS=/ read -r resident batch rates <<< "$cell"
    IFS=, read -r -a rates_of_models <<< "$rates"
    real "$resident" "$batch" "${rates_of_models[@]}"
  done
  seed=$((seed + 1))
done

{
  echo "# Workloads: $cpu, $cores cores"
  echo
  echo "Made by perf/workloads.sh${mode:+ $mode} on $(date -u +%Y-%m-%d) at $(git describe --always --dirty); columns, bounds and targets: perf/README.md."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  if [ -z "$mode" ]; then
    printf '\n## Virtual time: a swap of 0.423 s, a batch of 0.057 s, means of %s seeds\n\n' "$seeds"
    echo "Computron: its published means, OPT-13B at tp 2 x pp 2 on four A100. The seeds are ours."
    echo
    cat "$work/grid.md"
  fi
  printf '\n## Real time: four ranks on emulated links\n\n'
  echo "OPT models of $(stat -c %s "$model" | awk '{ printf "%.0f", $1 / 1e6 }') MB ($config, $weights), tp 2 x pp 2, one compute thread a rank, links of $rate GB/s: a swap${mode:+ of raw pages} takes $(rounded "0.423 * $scale") s."
  echo "Requests of one token after 8 of prompt for $duration s, cv 1, $seed_text; times and rates are Computron's$([ "$scale" = 1 ] || echo ", scaled by $scale: the same ratios"). Machine load: one-minute"
  echo "average before and after both policies' runs, threads of the runs themselves included."
  [ -z "$mode" ] || echo "Medians of $rounds rounds, in brackets least and most. $(in_turn)"
  echo
  if [ -z "$mode" ]; then table "$work"/real-*.csv; else beside "$work"/real-*.csv; fi
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
