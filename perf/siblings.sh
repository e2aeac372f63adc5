#!/usr/bin/env bash
# What a swap between variants of one model costs that have some of their layers in common (perf/README.md, "Siblings"):
# computron bench swap of a model and its variants, with pages shared and private in turn, on an emulated link.
# Writes perf/results/siblings-MACHINE.md.
#
#   perf/siblings.sh [MACHINE]
#
# FROZEN    layers of 12 that a variant has in common with its model  (0 3 6 9)
# MESHES    TPxPP                                                     (1x1 2x1)
# RATE      emulated rate in GB/s a rank                              (1)
# REQUESTS  swapped requests measured a run                           (12)
# ROUNDS    of shared and private runs in turn                        (3)
# PROGRAM   computron                                                 (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models and raw figures                                    (build/perf/siblings)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

frozen=${FROZEN:-0 3 6 9}
meshes=${MESHES:-1x1 2x1}
rate=${RATE:-1}
requests=${REQUESTS:-12}
rounds=${ROUNDS:-3}
work=${WORK:-build/perf/siblings}
result=perf/results/siblings-$machine.md
before=$(load)
mkdir -p "$work" perf/results

config=inputs/models/opt-swap.json
layers=$(jq .num_hidden_layers "$config")
init() { [ -e "$work/$1.h5" ] || "$program" init "$work/$1.h5" --config "$config" --dtype bf16 --seed 1 "${@:2}" >&2; }
init base
for n in $frozen; do init "frozen-$n" --variant 2 --frozen-layers "$n"; done

# run MESH FROZEN PAGES ROUND: $work/MESH-FROZEN-PAGES-ROUND.json.
run() {
  local tp=${1%x*} pp=${1#*x} json=$work/$1-$2-$3-$4.json
  echo "siblings.sh: $1, $2 layers in common, $3, round $4" >&2
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --coded off --threads 1 --tp "$tp" --pp "$pp" \
    --page-size 2MiB --link-gbps "$rate" --model "a=$work/base.h5" --model "b=$work/frozen-$2.h5" --model-pages "$3" \
    --requests "$requests" --csv --json "$json" > /dev/null
}

for mesh in $meshes; do
  for n in $frozen; do
    for ((round = 0; round < rounds; ++round)); do
      for pages in private shared; do run "$mesh" "$n" "$pages" "$round"; done
    done
  done
done

# middle MESH FROZEN PAGES KEY: the median of the rounds.
middle() { jq -s "map($4) | sort | .[length / 2 | floor]" "$work/$1-$2-$3"-*.json; }

# What of a variant is not the model's, as a share of its bytes: its layers, their sizes alike, and what stands behind
# them. Told by the files: tensors whose bytes differ.
difference() {
  "$program" inspect "$work/base.h5" "$work/frozen-$1.h5" --json --page-size 2MiB |
    jq '.files[1] | .new_bytes / .bytes'
}

# row MESH FROZEN
row() {
  local key figures=()
  for key in .shard_bytes .load_s.median .response_s.median .link_fraction.median; do
    figures+=("$(middle "$1" "$2" private "$key")" "$(middle "$1" "$2" shared "$key")")
  done
  awk -v mesh="$1" -v frozen="$2" -v layers="$layers" -v part="$(difference "$2")" -v page=2097152 '{
    bytes = $2 / $1; load = $4 / $3
    off = ($2 - part * $1) / page
    if (off < -1 || off > 1) missed = missed " bytes"
    if (load > 1.02 * bytes + page / $1) missed = missed " load"
    printf "| %s | %d of %d | %.1f | %.1f | %.3f | %+.2f | %.1f | %.1f | **%.3f** | %.1f | %.1f | %.1f | %s |\n", mesh,
      frozen, layers, $1 / 1e6, $2 / 1e6, bytes, off, 1e3 * $3, 1e3 * $4, load, 1e3 * $5, 1e3 * $6, 100 * $8,
      missed == "" ? "met" : "missed:" missed
  }' <<< "${figures[*]}"
}

{
  echo "# Siblings: $cpu, $cores cores"
  echo
  made_by siblings
  echo
  echo "An OPT model of $layers layers and a variant that has its embedding and some of its layers, one of them resident;"
  echo "$requests swapped requests of one token a run on an emulated link of $rate GB/s a rank; raw pages of 2 MiB, one compute"
  echo "thread a rank. Medians of $rounds rounds, private and shared pages in turn. \"Off\": bytes moved with shared pages,"
  echo "less the part of the variant that its file does not have in common with the model's, in pages. Machine load:"
  echo "one-minute average before $before, after $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk "$awk_functions"'BEGIN { head("tp x pp|layers in common|MB private|shared|ratio|off|load ms private|shared|ratio|response ms private|shared|% of link, shared|targets") }'
  for mesh in $meshes; do
    for n in $frozen; do row "$mesh" "$n"; done
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
