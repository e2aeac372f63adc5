#!/usr/bin/env bash
# What a group of ranks that decodes loses to another that prefills (perf/README.md, "Beside"): two groups of one rank, a
# core each; rank 0, which schedules both, is the one that prefills. Writes perf/results/beside-MACHINE.md.
#
#   perf/beside.sh [MACHINE]
#
# PROMPT    tokens of each prefill            (2048)
# REPEATS   runs of each                      (7)
# PROGRAM   computron                         (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      models, requests and raw figures  (build/perf/beside)
# Some three minutes. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

prompt=${PROMPT:-2048}
repeats=${REPEATS:-7}
work=${WORK:-build/perf/beside}
result=perf/results/beside-$machine.md
mkdir -p "$work" perf/results

jq ".max_position_embeddings = $((prompt + 64))" inputs/models/opt-study.json > "$work/opt-long.json"
[ -e "$work/opt-long.h5" ] || "$program" init "$work/opt-long.h5" --config "$work/opt-long.json" --seed 1 >&2
models=(--model "prefills=$work/opt-long.h5" --model "decodes=$work/opt-long.h5")
echo '{"groups": [{"models": ["prefills"]}, {"models": ["decodes"]}]}' > "$work/placement.json"

# requests MODEL COUNT PROMPT TOKENS
requests() {
  jq -nc --arg model "$1" --argjson count "$2" --argjson prompt "$3" --argjson tokens "$4" 'range($count) as $i
    | {custom_id: "\($model)\($i)", method: "POST", url: "/v1/completions",
       body: {model: $model, prompt: [range($prompt) | (. * 31 + $i) % 4096], max_tokens: $tokens, ignore_eos: true}}'
}
requests decodes 4 8 200 > "$work/idle.jsonl"
requests prefills 12 "$prompt" 1 > "$work/prefills.jsonl"
cat "$work/idle.jsonl" "$work/prefills.jsonl" > "$work/busy.jsonl"

# start NAME RANKS REQUESTS ARGUMENTS...: metrics in $work/NAME.json.
start() {
  local name=$work/$1 ranks=$2 input=$3
  shift 3
  rm -f "$name.out" "$name.out.done" "$name.json"
  mpirun -n "$ranks" "$program" serve --quiet --device cpu --page-size 2MiB --threads 1 --coded off --model-pages private --idle sleep:50 \
    --requests "$work/$input.jsonl" --output "$name.out" --metrics "$name.json" "${models[@]}" "$@" 2> "$name.log" ||
    { cat "$name.log" >&2; return 1; }
}

# Seconds from the first token of the sequences that decode together to their last.
decoding='.models.decodes | .latency_s.p50 - .ttft_s.p50'

before=$(load)
: > "$work/figures.tsv"
for ((repeat = 0; repeat < repeats; ++repeat)); do
  echo "beside.sh: round $((repeat + 1)) of $repeats" >&2
  start idle 2 idle --placement "$work/placement.json"
  start busy 2 busy --placement "$work/placement.json"
  # The same beside each other with nothing in common but the machine.
  start other 1 prefills &
  other=$!
  start apart 1 idle
  wait "$other"
  printf '%s\t%s\t%s\t%s\n' "$(figure idle "$decoding")" "$(figure busy "$decoding")" "$(figure apart "$decoding")" \
    "$(figure busy '.models.prefills.latency_s.max')" >> "$work/figures.tsv"
done

{
  echo "# A group that decodes beside one that prefills: $machine"
  echo
  made_by beside
  echo "$repeats rounds, each of all rows in turn; medians, in brackets least and most. Load before: $before."
  [ -z "${NOTE:-}" ] || echo "$NOTE"
  echo
  awk -F '\t' "$awk_functions"'
    function row(name, x, y,    i) {
      for (i = 1; i <= NR; ++i) ratio[i] = y[i] / x[i]
      r = median(ratio, NR); m = median(x, NR)
      printf "| %s | %.3f | %.3f (%.3f to %.3f) |\n", name, m, r, ratio[1], ratio[NR]
    }
    { for (i = 1; i <= 3; ++i) time[i, NR] = $i; longest = max(longest, $2); prefills = NR == 1 ? $4 : min(prefills, $4) }
    END {
      head("group 1 decodes 4 sequences, 199 tokens each, while group 0 | s | rate ÷ idle")
      for (k = 1; k <= 3; ++k) {
        for (i = 1; i <= NR; ++i) x[i] = y[i] = time[k, i]
        for (i = 1; i <= NR; ++i) y[i] = time[1, i]
        row(k == 1 ? "idles" : k == 2 ? "prefills" : "is another job, which prefills", x, y)
      }
      if (prefills < longest) print "\nThe prefills ended before the decoding in some round: no figure."
    }' "$work/figures.tsv"
} > "$result"
cat "$result"
