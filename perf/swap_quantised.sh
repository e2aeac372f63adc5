#!/usr/bin/env bash
# What a swap of quantised weights costs beside one of bfloat16 (perf/README.md, "Swap, quantised"): computron bench swap
# at emulated link rates, one type after the other. Writes perf/results/swap-quantised-MACHINE.md.
#
#   perf/swap.sh --quantised [MACHINE]
#
# TYPES     of the layers and the head, beside bf16     (int8 fp8 int4)
# RATES     emulated rates in GB/s a rank               (2 4)
# MESHES    TPxPP                                       (1x1 2x1)
# REQUESTS  swapped requests measured a run             (8)
# ROUNDS    of all types in turn                        (3)
# SIZE      of the OPT model                            (1.3b)
# PROGRAM   computron                                   (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models and raw figures                      (build/perf/swap-quantised)
# Twenty minutes; 9 GiB of memory, 6 GiB of disk. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

types=${TYPES:-int8 fp8 int4}
rates=${RATES:-2 4}
meshes=${MESHES:-1x1 2x1}
requests=${REQUESTS:-8}
rounds=${ROUNDS:-3}
size=${SIZE:-1.3b}
work=${WORK:-build/perf/swap-quantised}
result=perf/results/swap-quantised-$machine.md
before=$(load)
mkdir -p "$work" perf/results

for type in bf16 $types; do
  [ "$type" = bf16 ] && head=() || head=(--quantize-head)
  [ -e "$work/$type.h5" ] || "$program" init "$work/$type.h5" --arch opt --size "$size" --dtype "$type" "${head[@]}" --seed 1 >&2
done

# run TYPE RATE MESH ROUND
run() {
  local model=$work/$1.h5 tp=${3%x*} pp=${3#*x}
  echo "swap_quantised.sh: $1, $2 GB/s, $3, round $4" >&2
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --model "a=$model" --model "b=$model" --tp "$tp" --pp "$pp" \
    --page-size 8MiB --threads 1 --coded off --requests "$requests" --link-gbps "$2" --csv \
    --json "$work/$1-$2-$3-$4.json" > /dev/null
}
# middle TYPE RATE MESH FILTER: the median of the rounds.
middle() {
  local round
  for ((round = 1; round <= rounds; ++round)); do jq -r "$4" "$work/$1-$2-$3-$round.json"; done | median
}

for rate in $rates; do
  for mesh in $meshes; do
    for ((round = 1; round <= rounds; ++round)); do
      for type in bf16 $types; do run "$type" "$rate" "$mesh" "$round"; done
    done
  done
done

# row TYPE RATE MESH
row() {
  local key figures=() plain=()
  for key in .shard_bytes .load_s.median .response_s.median .response_over_limit.median .link_fraction.median; do
    figures+=("$(middle "$1" "$2" "$3" "$key")")
    plain+=("$(middle bf16 "$2" "$3" "$key")")
  done
  awk -v type="$1" -v rate="$2" -v mesh="$3" '{
    bytes = $1 / $6; load = $2 / $7
    most["int8"] = 0.56; most["int4"] = 0.32
    missed = type != "bf16" && load > 1.02 * bytes ? " bytes" : ""
    if (type in most && load > most[type]) missed = missed " load"
    if ($4 > 1) missed = missed " response"
    printf "| %s | %s | %s | %.1f | %.1f | %.4f | %.4f | **%.4f** | %.1f | %.3f | %.1f | %s |\n", type, rate, mesh, $1 / 1e6,
      1e3 * $2, bytes, load, load / bytes, 1e3 * $3, $4, 100 * $5, missed == "" ? "met" : "missed:" missed
  }' <<< "${figures[*]} ${plain[*]}"
}

{
  echo "# Swap, quantised: $cpu, $cores cores"
  echo
  made_by swap_quantised
  echo
  echo "Two OPT-$size models, layers and head quantised in groups of 32 but for bf16, one of them resident; $requests swapped"
  echo "requests of one token after 8 of prompt a run; raw pages, one compute thread a rank. Medians of $rounds rounds, the"
  echo "types in turn. Machine load: one-minute average before $before, after $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk "$awk_functions"'BEGIN { head("weights|GB/s|tp x pp|MB a shard|load ms|ratio of bytes|of loads|of both|response ms|÷ limit|% of link|targets") }'
  for rate in $rates; do
    for mesh in $meshes; do
      for type in bf16 $types; do row "$type" "$rate" "$mesh"; done
    done
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
