#!/usr/bin/env bash
# What hundreds of concurrent requests of mixed lengths cost beside decoding at that batch size (perf/README.md,
# "Crowd"). Writes perf/results/crowd-MACHINE.md.
#
#   perf/crowd.sh [MACHINE]
#
# SEQUENCES at once                     (512)
# REPEATS   of every run, in turns      (3)
# THREADS   compute threads             (all cores)
# PROGRAM   computron                   (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model and raw figures       (build/perf/crowd)
# About ten minutes; 3 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

sequences=${SEQUENCES:-512}
repeats=${REPEATS:-3}
threads=${THREADS:-$cores}
work=${WORK:-build/perf/crowd}
result=perf/results/crowd-$machine.md
mkdir -p "$work" perf/results
model=$work/opt-125m-bf16.h5
[ -f "$model" ] || "$program" init "$model" --arch opt --size 125m --dtype bf16 --seed 1 > /dev/null

# requests COUNT PROMPT ANSWER: awk expressions of i, the request's number.
requests() {
  awk -v count="$1" "BEGIN {
    for (i = 0; i < count; ++i) {
      prompt = $2; answer = $3
      printf \"{\\\"custom_id\\\": \\\"%d\\\", \\\"method\\\": \\\"POST\\\", \\\"url\\\": \\\"/v1/completions\\\", \\\"body\\\": {\", i
      printf \"\\\"model\\\": \\\"m\\\", \\\"max_tokens\\\": %d, \\\"ignore_eos\\\": true, \\\"prompt\\\": [\", answer
      for (t = 0; t < prompt; ++t) printf \"%s%d\", t ? \",\" : \"\", 4 + (i * 7919 + t * 104729) % 50000
      print \"]}}\"
    }
  }"
}

# Alike, for the steady rate: the mean prompt and the mean answer of those that are mixed.
requests "$sequences" 107 63 > "$work/alike.jsonl"
requests $((4 * sequences)) '8 + i * 37 % 200' '4 + i * 61 % 120' > "$work/mixed.jsonl"
prompt_tokens=$(awk -v count=$((4 * sequences)) 'BEGIN { for (; i < count; ++i) sum += 8 + i * 37 % 200; print sum }')
decoded_tokens=$(awk -v count=$((4 * sequences)) 'BEGIN { for (; i < count; ++i) sum += 3 + i * 61 % 120; print sum }')
mixed_tokens=$((prompt_tokens + decoded_tokens))

# run NAME REQUESTS POOL ARGUMENTS...
run() {
  local name=$1 requests=$2 pool=$3
  shift 3
  rm -f "$work/$name.out"
  echo "crowd.sh: $name" >&2
  mpirun -n 1 "$program" serve --model "m=$model" --threads "$threads" --max-seqs "$sequences" --device-memory "$pool" \
    --coded off --requests "$work/$requests.jsonl" --output "$work/$name.out" --metrics "$work/$name.json" --quiet "$@"
}

# Seconds of a run's steps whose rows are as JQ_CONDITION says, a row: rows_s RUN JQ_CONDITION.
rows_s() {
  jq -r --argjson n "$sequences" ".traceEvents[] | select(.ph == \"X\" and .name == \"step\") | select(.args.rows | $2)
    | .dur / 1e6 / .args.rows" "$work/$1.trace" | median
}
# A row of a step in which every sequence decodes, and of one that is full of prompts.
decoded_s() { rows_s "$1" '. == $n'; }
prompt_s() { rows_s "$1" '. > 3 * $n'; }

# Keys and values of a token take 36 KiB: for all requests at their full lengths, and for half of those.
ample=$((300 + sequences * 36 * 330 / 1024))MiB
scarce=$((300 + sequences * 36 * 95 / 1024))MiB
before=$(load)
for ((r = 1; r <= repeats; ++r)); do
  run "alike-$r" alike "$ample" --trace "$work/alike-$r.trace"
  run "ample-$r" mixed "$ample"
  run "scarce-$r" mixed "$scarce"
done
after=$(load)

# over RUNS EXPRESSION: median of a figure of the metrics.
over() { for ((r = 1; r <= repeats; ++r)); do jq "$2" "$work/$1-$r.json"; done | median; }
# ratio RUNS EXPRESSION: of a round's wall seconds and its seconds a decoded row and a prompt's row; median of the rounds.
ratio() {
  for ((r = 1; r <= repeats; ++r)); do
    calculate "$2" "wall=$(jq .wall_s "$work/$1-$r.json")" "decoded=$(decoded_s "alike-$r")" \
      "prompt=$(prompt_s "alike-$r")" "tokens=$mixed_tokens" "prompts=$prompt_tokens" "answers=$decoded_tokens"
  done | median
}
of_all() { for ((r = 1; r <= repeats; ++r)); do "$1" "alike-$r"; done | median; }
decoded=$(of_all decoded_s) prompt=$(of_all prompt_s)

{
  echo "# Crowd: $cpu, $cores cores"
  echo
  made_by crowd
  echo "OPT-125m, bf16, one rank, $threads threads; $((4 * sequences)) requests, $sequences at once, prompts of 8-207 tokens, answers of 4-123:"
  echo "$mixed_tokens tokens to compute. Medians of $repeats runs in turns. Machine load: $before before, $after after."
  [ -z "${NOTE:-}" ] || echo "$NOTE"
  echo
  printf 'Steady: %s sequences that only decode, %.1f ms a step, %.0f tokens/s; passes full of prompts, %.0f tokens/s.\n\n' \
    "$sequences" "$(calculate 'n * s * 1e3' "n=$sequences" "s=$decoded")" "$(calculate '1 / s' "s=$decoded")" \
    "$(calculate '1 / s' "s=$prompt")"
  awk "$awk_functions"' BEGIN { head("pool|wall s|tokens/s|of steady|target|of both|generated/s|preempted|first token p50|p99|max s|latency p50|p99|max s|failed") }'
  for runs in ample scarce; do
    pool=${!runs}
    steady=$(ratio $runs 'tokens / wall * decoded')
    printf '| %s | %.1f | %.0f | %.3f | %s | %.3f | %.0f | %.0f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.0f |\n' "$pool" \
      "$(over $runs .wall_s)" "$(calculate 't / w' "t=$mixed_tokens" "w=$(over $runs .wall_s)")" "$steady" \
      "$(awk -v r="$steady" 'BEGIN { print (r >= 0.9 ? "met" : "missed") " (0.9)" }')" \
      "$(ratio $runs '(answers * decoded + prompts * prompt) / wall')" \
      "$(over $runs .tokens.generated_per_s)" "$(over $runs .cache.set_asides)" "$(over $runs .ttft_s.p50)" \
      "$(over $runs .ttft_s.p99)" "$(over $runs .ttft_s.max)" "$(over $runs .latency_s.p50)" \
      "$(over $runs .latency_s.p99)" "$(over $runs .latency_s.max)" "$(over $runs .requests.failed)"
  done
} > "$result"
echo "$result"
