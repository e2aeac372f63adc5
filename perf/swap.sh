#!/usr/bin/env bash
# What a swap costs beside what it must cost (perf/README.md, "Swap"): computron bench swap over six meshes at emulated
# link rates, and over one and two ranks on the machine's own links. Writes perf/results/swap-MACHINE.md.
#
#   perf/swap.sh [MACHINE]
#   perf/swap.sh --coded [MACHINE]        of coded pages beside raw ones: perf/swap_coded.sh
#   perf/swap.sh --quantised [MACHINE]    of quantised weights beside bfloat16: perf/swap_quantised.sh
#
# RATES     emulated rates in GB/s a rank     (0.5 1 2)
# REQUESTS  swapped requests measured a run   (24)
# PROGRAM   computron                         (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model and raw figures             (build/perf/swap)
# About eight minutes; 3 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  --coded) exec perf/swap_coded.sh "${@:2}" ;;
  --quantised) exec perf/swap_quantised.sh "${@:2}" ;;
esac
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

# shellcheck source=perf/common.sh
. perf/common.sh

rates=${RATES:-0.5 1 2}
requests=${REQUESTS:-24}
work=${WORK:-build/perf/swap}
result=perf/results/swap-$machine.md
mkdir -p "$work" perf/results

model=$work/opt-swap.h5
[ -e "$model" ] || "$program" init "$model" --config inputs/models/opt-swap.json --seed 1

# run NAME TP PP ARGUMENTS...: a CSV with the load of the machine before and after in front.
run() {
  local name=$1 tp=$2 pp=$3 before
  shift 3
  before=$(load)
  echo "swap.sh: $name, tp $tp x pp $pp" >&2
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --model "a=$model" --model "b=$model" --tp "$tp" --pp "$pp" \
    --page-size 8MiB --threads 1 --coded off --requests "$requests" --csv --json "$work/$name-${tp}x$pp.json" "$@" > "$work/raw.csv"
  sed "1s/^/load_before,load_after,/; 2s/^/$before,$(load),/" "$work/raw.csv" > "$work/$name-${tp}x$pp.csv"
}

baseline() { printf -- '--baseline %s' "$work/$1-1x1.json"; }

# measure NAME MESHES ARGUMENTS...: the first mesh is 1x1, with which the others compare.
measure() {
  local name=$1 meshes=$2 mesh
  shift 2
  for mesh in $meshes; do
    # shellcheck disable=SC2046
    run "$name" "${mesh%x*}" "${mesh#*x}" "$@" $([ "$mesh" = 1x1 ] || baseline "$name")
  done
}

# table NAME MESHES LINK: the CSVs as a Markdown table with the targets of perf/README.md checked; LINK 1 where a link
# is emulated, so that the targets of requests hold, 0 where only fetching is held against plain copies.
table() {
  local name=$1 meshes=$2 link=$3 mesh
  for mesh in $meshes; do cat "$work/$name-$mesh.csv"; done | awk -F , -v link="$link" '
    function spread(key, digits) {
      return sprintf("%.*f (%.*f–%.*f)", digits, $at[key], digits, $at[key "_min"], digits, $at[key "_max"])
    }
    function plain(key) { return $at[key] == "" ? "–" : $at[key] }
    function miss(bad, what) { if (bad) missed = missed (missed == "" ? "" : ", ") what }
    BEGIN {
      # tp,pp: load and response in seconds, OPT-13B, 4 x A100, as published
      theirs["1,1"] = "1.350 1.408"; theirs["2,1"] = "0.732 0.801"; theirs["4,1"] = "0.689 0.761"
      theirs["1,2"] = "0.858 0.924"; theirs["1,4"] = "0.645 0.722"; theirs["2,2"] = "0.423 0.502"
      print "| tp, pp | load ms | exec ms | response ms | bound ms | ÷ limit | GB/s a rank | % of link | skew % | fetch % of plain | speed-up | ratio of bytes | targets | Computron: load s, response s, speed-up | machine load |"
      print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    }
    $1 == "load_before" { for (i = 1; i <= NF; i++) at[$i] = i; next }
    {
      missed = ""
      if (link) {
        miss($at["link_percent"] < 97, "link")
        miss($at["link_percent"] > 105, "links were disturbed")
        miss($at["skew_percent"] != "" && $at["skew_percent"] > 3, "skew")
        miss($at["speed_up"] != "" && $at["speed_up"] < 0.97 * $at["bytes_ratio"], "speed-up")
        miss($at["response_over_limit"] > 1, "response")
      } else miss($at["fetch_percent"] < 90, "fetch")
      split(theirs[$at["tp"] "," $at["pp"]], published, " ")
      printf "| %s, %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s, %s, %.2f | %s–%s |\n", $at["tp"], $at["pp"],
        spread("load_ms", 1), spread("exec_ms", 1), spread("response_ms", 1), plain("bound_ms"),
        plain("response_over_limit"), spread("gb_per_s_per_rank", 3), spread("link_percent", 1), plain("skew_percent"),
        spread("fetch_percent", 1), plain("speed_up"), plain("bytes_ratio"), missed == "" ? "met" : "missed: " missed,
        published[1], published[2], 1.350 / published[1], $at["load_before"], $at["load_after"]
    }'
}

all_meshes="1x1 2x1 4x1 1x2 1x4 2x2"
own_meshes="1x1 2x1"
for rate in $rates; do measure "emulated-$rate" "$all_meshes" --link-gbps "$rate"; done
measure own "$own_meshes"

{
  echo "# Swap: $cpu, $cores cores"
  echo
  echo "Made by perf/swap.sh on $(date -u +%Y-%m-%d) at $(git describe --always --dirty); columns, bounds and targets: perf/README.md."
  echo "Two OPT models of $(stat -c %s "$model" | awk '{ printf "%.0f", $1 / 1e6 }') MB (inputs/models/opt-swap.json, float32), one of them resident; $requests swapped requests of one token"
  echo "after 8 of prompt; one compute thread a rank. Medians, in brackets least and most. Computron: its published means for"
  echo "OPT-13B on four A100; the machines differ by far, so compare the speed-ups, not the seconds. Machine load: one-minute average before"
  echo "and after the run, threads of the run itself included."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  for rate in $rates; do
    printf '\n## Emulated links, %s GB/s a rank\n\n' "$rate"
    table "emulated-$rate" "$all_meshes" 1
  done
  printf '\n## Links of the machine itself: memory to memory, no rate held\n\n'
  table own "$own_meshes" 0
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
