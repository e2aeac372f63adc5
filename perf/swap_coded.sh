#!/usr/bin/env bash
# What a swap of coded pages costs beside one of raw pages and beside what both must cost (perf/README.md, "Swap, coded"):
# computron bench swap at emulated link rates, raw and coded in turn. Writes perf/results/swap-coded-MACHINE.md.
#
#   perf/swap.sh --coded [MACHINE]
#
# RATES     emulated rates in GB/s a rank                          (0.5 1 2 4 8)
# MESHES    TPxPP                                                  (1x1 2x1 1x2 2x2)
# MOST      GB/s of all ranks together: faster rows are left out   (8)
# REQUESTS  swapped requests measured a run                        (16)
# ROUNDS    of raw and coded runs in turn                          (3)
# PROGRAM   computron                                              (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models and raw figures                                 (build/perf/swap-coded)
# A quarter of an hour; 3 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

rates=${RATES:-0.5 1 2 4 8}
meshes=${MESHES:-1x1 2x1 1x2 2x2}
most=${MOST:-8}
requests=${REQUESTS:-16}
rounds=${ROUNDS:-3}
work=${WORK:-build/perf/swap-coded}
result=perf/results/swap-coded-$machine.md
before=$(load)
mkdir -p "$work" perf/results

[ -e "$work/normal.h5" ] || "$program" init "$work/normal.h5" --config inputs/models/opt-swap.json --dtype bf16 --seed 1 >&2

# The same model of bits that nothing can make fewer: random ones, but no exponent above 119, or sums would be infinite.
if [ ! -e "$work/random.h5" ]; then
  mkdir -p "$work/random"
  cp inputs/models/opt-swap.json "$work/random/config.json"
  python3 - "$work/normal.h5" "$work/random" <<'PYTHON'
import json, os, struct, sys
config = json.load(open(f"{sys.argv[2]}/config.json"))
hidden, ffn, vocab = config["hidden_size"], config["ffn_dim"], config["vocab_size"]
shapes = {"model.decoder.embed_tokens.weight": [vocab, hidden],
          "model.decoder.embed_positions.weight": [config["max_position_embeddings"] + 2, hidden]}
def norm(name):
    shapes[name + ".weight"] = [hidden]
    shapes[name + ".bias"] = [hidden]
def linear(name, rows, columns):
    shapes[name + ".weight"] = [rows, columns]
    shapes[name + ".bias"] = [rows]
norm("model.decoder.final_layer_norm")
for i in range(config["num_hidden_layers"]):
    layer = f"model.decoder.layers.{i}."
    for name in "k_proj", "v_proj", "q_proj", "out_proj": linear(layer + "self_attn." + name, hidden, hidden)
    norm(layer + "self_attn_layer_norm")
    linear(layer + "fc1", ffn, hidden)
    linear(layer + "fc2", hidden, ffn)
    norm(layer + "final_layer_norm")
header, at = {}, 0
for name, shape in shapes.items():
    bytes_ = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_]}
    at += bytes_
upper = bytes((b & 0x80) | (b & 0x7f) % 60 for b in range(256))
text = json.dumps(header).encode()
with open(f"{sys.argv[2]}/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in header.values():
        begin, end = tensor["data_offsets"]
        values = bytearray(os.urandom(end - begin))
        values[1::2] = values[1::2].translate(upper)
        file.write(values)
PYTHON
  "$program" convert "$work/random" "$work/random.h5" >&2
fi

# run MODEL CODED RATE MESH ROUND: $work/RUN.json.
run() {
  local model=$work/$1.h5 tp=${4%x*} pp=${4#*x}
  echo "swap_coded.sh: $1, coded $2, $3 GB/s, $4, round $5" >&2
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --model "a=$model" --model "b=$model" --tp "$tp" --pp "$pp" \
    --page-size 8MiB --threads 1 --requests "$requests" --link-gbps "$3" --coded "$2" --csv \
    --json "$work/$1-$2-$3-$4-$5.json" > /dev/null
}
# middle MODEL CODED RATE MESH FILTER: the median of the rounds.
middle() {
  local round
  for ((round = 1; round <= rounds; ++round)); do jq -r "$5" "$work/$1-$2-$3-$4-$round.json"; done | median
}

fast_enough() { awk -v rate="$1" -v ranks=$((${2%x*} * ${2#*x})) -v most="$most" 'BEGIN { exit !(rate * ranks <= most) }'; }
for rate in $rates; do
  for mesh in $meshes; do
    fast_enough "$rate" "$mesh" || continue
    for ((round = 1; round <= rounds; ++round)); do
      for coded in off on; do run normal "$coded" "$rate" "$mesh" "$round"; done
      [ "$mesh" != 1x1 ] || for coded in off on; do run random "$coded" "$rate" "$mesh" "$round"; done
    done
  done
done

# row MODEL RATE MESH
row() {
  local key figures=()
  for key in .load_s.median .shard_bytes .response_s.median; do
    figures+=("$(middle "$1" off "$2" "$3" "$key")" "$(middle "$1" on "$2" "$3" "$key")")
  done
  for key in .response_over_limit.median .link_fraction.median .fetch_fraction.median; do
    figures+=("$(middle "$1" on "$2" "$3" "$key")")
  done
  awk -v model="$1" -v rate="$2" -v mesh="$3" '{
    bytes = $4 / $3; load = $2 / $1; over = load / bytes
    if (model == "random") missed = load > 1.002 ? "load" : ""
    else {
      missed = over > 1.01 ? "load" : ""
      if ($7 > 1) missed = missed " response"
      if ($8 < 0.98) missed = missed " link"
    }
    printf "| %s | %s | %s | %.1f | %.1f | %.4f | %.4f | **%.4f** | %.1f | %.1f | %.3f | %.1f | %.1f | %s |\n", model, rate, mesh,
      1e3 * $1, 1e3 * $2, bytes, load, over, 1e3 * $5, 1e3 * $6, $7, 100 * $8, 100 * $9, missed == "" ? "met" : "missed:" " " missed
  }' <<< "${figures[*]}"
}

{
  echo "# Swap, coded: $cpu, $cores cores"
  echo
  made_by swap_coded
  echo
  echo "Two OPT models of $(stat -c %s "$work/normal.h5" | awk '{ printf "%.0f", $1 / 1e6 }') MB (inputs/models/opt-swap.json, bfloat16), one of them resident; $requests swapped requests of one"
  echo "token after 8 of prompt a run; one compute thread a rank. Medians of $rounds rounds, raw and coded in turn. ${program##*/} $(sed -n 's/^cpu family[^:]*: /on family /p; s/^model[^n:]*: /model /p' /proc/cpuinfo | head -n 2 | paste -sd ' '),"
  echo "$(grep -q avx512_vbmi /proc/cpuinfo && echo AVX-512 VBMI || echo AVX2). Machine load: one-minute average before $before, after $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk "$awk_functions"'BEGIN { head("weights|GB/s|tp x pp|load ms, raw|coded|ratio of bytes|of loads|of both|response ms, raw|coded|÷ limit|% of link|fetch % of plain|targets") }'
  for rate in $rates; do
    for mesh in $meshes; do
      fast_enough "$rate" "$mesh" || continue
      row normal "$rate" "$mesh"
      [ "$mesh" != 1x1 ] || row random "$rate" "$mesh"
    done
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
