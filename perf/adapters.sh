#!/usr/bin/env bash
# What adapters of one base cost that are computed beside it (perf/README.md, "Adapters"): a batch of sequences that all
# have adapters of their own, beside the base alone with the same batch, and beside one adapter's batch at a time; and
# the first token of an adapter that is not on the device. Writes perf/results/adapters-MACHINE.md.
#
#   perf/adapters.sh [MACHINE]
#
# ADAPTERS  and sequences of a batch                                (64)
# RANK      of each adapter                                         (16)
# WORKLOADS PROMPTxANSWER tokens of a sequence                      (16x64 128x64)
# APART     adapters that one adapter a pass is measured with       (3)
# COLD      adapters whose first token is measured                  (16)
# RATE      emulated rate of their link in GB/s                     (1)
# ROUNDS    of the runs in turn                                     (3)
# PROGRAM   computron                                               (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models and raw figures, 1.2 GB                          (build/perf/adapters)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

adapters=${ADAPTERS:-64}
rank=${RANK:-16}
workloads=${WORKLOADS:-16x64 128x64}
apart=${APART:-3}
cold=${COLD:-16}
rate=${RATE:-1}
rounds=${ROUNDS:-3}
work=${WORK:-build/perf/adapters}
config=inputs/models/llama-adapters.json
page_size=2MiB
result=perf/results/adapters-$machine.md
before=$(load)
mkdir -p "$work" perf/results

[ -e "$work/base.h5" ] || "$program" init "$work/base.h5" --config "$config" --dtype bf16 --seed 1 >&2
models=(--model "base=$work/base.h5")
folders=()
for ((a = 0; a < adapters; ++a)); do
  models+=(--model "a$a=$work/base.h5+$work/r$rank-$a.h5")
  [ -e "$work/r$rank-$a.h5" ] || folders+=("$work/peft-$rank-$a")
done
[ ${#folders[@]} = 0 ] || python3 perf/make_adapters.py "$config" "$rank" "${folders[@]}"
for folder in "${folders[@]}"; do
  "$program" convert "$work/base.h5" "${folder/peft-/r}.h5" --adapter "$folder" > /dev/null
  rm -r "$folder"
done

# requests MODELS PROMPT ANSWER [GAP]: a line for each of the models, of other tokens each, GAP seconds apart.
requests() {
  jq -nc --arg models "$1" --argjson prompt "$2" --argjson answer "$3" --argjson gap "${4:-0}" '
    $models | split(" ") | to_entries[] | .key as $i | {custom_id: "\($i)", method: "POST", url: "/v1/completions",
    arrival: ($i * $gap), body: {model: .value, prompt: [range($prompt) | (. * 7919 + $i * 104729) % 32000 + 3],
    max_tokens: $answer, temperature: 0, ignore_eos: true}}' > "$work/requests.jsonl"
}

# run NAME ARGUMENTS...: of the requests; $work/NAME.json.
run() {
  echo "adapters.sh: $1" >&2
  rm -f "$work/$1.jsonl" "$work/$1.json"
  mpirun -n 1 "$program" serve --device cpu --page-size "$page_size" --coded off --max-seqs "$adapters" "${models[@]}" \
    --requests "$work/requests.jsonl" --output "$work/$1.jsonl" --metrics "$work/$1.json" "${@:2}" 2> "$work/$1.log" ||
    { cat "$work/$1.log" >&2; return 1; }
}

all=$(seq -f 'a%g' -s ' ' 0 $((adapters - 1)))
some=$(seq -f 'a%g' -s ' ' 0 $((apart - 1)))
shopt -s extglob
same=${all//a+([0-9])/base}
for ((round = 0; round < rounds; ++round)); do
  for workload in $workloads; do
    prompt=${workload%x*} answer=${workload#*x}
    requests "$same" "$prompt" "$answer"
    run "base-$workload-$round"
    requests "$all" "$prompt" "$answer"
    run "mixed-$workload-$round"
    requests "$some" "$prompt" "$answer"
    run "apart-$workload-$round" --policy fifo
  done
  # The base is there; each adapter comes by itself, the base again between two of them.
  requests "base base $(seq -f 'a%g base' -s ' ' 0 $((cold - 1)))" 64 1 0.4
  run "cold-$round" --replay --link-gbps "$rate"
done

# rounds_of ARM-WORKLOAD FILTER: of each round.
rounds_of() { for ((i = 0; i < rounds; ++i)); do figure "$1-$i" "$2"; done; }

per_s=.tokens.generated_per_s
row() {
  paste <(rounds_of "base-$1" "$per_s") <(rounds_of "mixed-$1" "$per_s") <(rounds_of "apart-$1" "$per_s") \
    <(rounds_of "mixed-$1" '.steps.passes') <(rounds_of "base-$1" '.steps.passes') <(rounds_of "mixed-$1" '.swaps.exposed_s') |
    awk -v workload="${1/x/ | }" "$awk_functions"'{
      n = NR; base[n] = $1; mixed[n] = $2; apart[n] = $3; ratio[n] = $2 / $1; over[n] = $2 / $3; passes = $4; own = $5; exposed[n] = $6
    } END {
      r = median(ratio, n)
      printf "| %s | %.0f | %.0f | %.0f | **%.3f** (%.3f–%.3f) | %.1f | %d | %d | %.2f | %s |\n", workload, median(base, n),
        median(mixed, n), median(apart, n), r, ratio[1], ratio[n], median(over, n), own, passes, median(exposed, n),
        (r >= 0.8 ? "met" : "missed")
    }'
}

# First tokens: of the base, of adapters, and what an adapter's bytes take on the link.
first_tokens() {
  local i
  for ((i = 0; i < rounds; ++i)); do
    figure "cold-$i" '[.models | to_entries[] | select(.key != "base" and .value.requests.total > 0) | .value] as $cold
      | [.models.base.ttft_s.p50, ($cold | map(.ttft_s.p50) | sort | .[length / 2 | floor]),
         ($cold | map(.swaps.link_bytes) | add / length), ($cold | map(.swaps.count) | add)] | @tsv'
  done | awk -v rate="$rate" "$awk_functions"'{
      n = NR; base[n] = $1; cold[n] = $2; transfer = $3 / rate / 1e9; over[n] = $2 / (1.05 * $1 + transfer); swaps = $4
    } END {
      r = median(over, n)
      printf "| %.1f | %.1f | %.2f | **%.3f** (%.3f–%.3f) | %d | %s |\n", 1e3 * median(base, n), 1e3 * median(cold, n),
        1e3 * transfer, r, over[1], over[n], swaps, (r <= 1 ? "met" : "missed")
    }'
}

bytes_of() { figure "mixed-${workloads%% *}-0" "$1"; }
adapter_bytes=$(bytes_of '.models.a0.swaps.bytes')
adapter_pages=$(bytes_of '.models.a0.swaps.pages')

{
  echo "# Adapters: $cpu, $cores cores"
  echo
  made_by adapters
  echo
  echo "$config, a quarter of Llama 3.2 1B (4 of 16 layers, a quarter of the vocabulary), in bfloat16; $adapters LoRA adapters of rank"
  echo "$rank on all matrices of attention and MLP; the first of them came with its base, $adapter_bytes bytes in $adapter_pages pages of $page_size. Medians of $rounds rounds, in"
  echo "brackets least and most. Machine load: one-minute average before $before, after $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$adapters sequences, the base's or one of each adapter; one adapter a pass: $apart adapters, a sequence each, --policy fifo."
  echo
  awk "$awk_functions"'BEGIN { head("prompt tokens|answer tokens|base tokens/s|mixed|one adapter a pass|mixed ÷ base|mixed ÷ one a pass|passes, base|mixed|exposed s, mixed|target") }'
  for workload in $workloads; do row "$workload"; done
  echo
  echo "First token of a request with 64 prompt tokens, alone, its base resident and its adapter not; $cold adapters, an emulated link of"
  echo "$rate GB/s."
  echo
  awk "$awk_functions"'BEGIN { head("base ms|cold adapter ms|transfer ms|cold ÷ (1.05 base + transfer)|swaps|target") }'
  first_tokens
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
