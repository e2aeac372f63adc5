#!/usr/bin/env bash
# Embeddings of texts beside sentence-transformers (PyTorch) and CTranslate2's encoder, and a corpus through a job that is
# killed and resumed (perf/README.md, "Embeddings"). Writes perf/results/embed-MACHINE.md.
#
#   perf/embed.sh [MACHINE]
#
# PYTHON   of an environment with torch, sentence-transformers, transformers, ctranslate2 (build/peers/venv/bin/python)
# SHAPES   random weights of MiniLM-L6, BGE-base and E5-large                  (minilm base large)
# TYPES    of all engines                                                      (float32)
# TEXTS    of a shape                                                          (1000 of minilm, 300 of base, 100 of large)
# MEAN     tokens of a text, special ones included                             (120)
# THREADS  of every engine                                                     (2)
# ROUNDS   each engine once a round                                            (5)
# CORPUS   short texts (mean 20 tokens) for the job that is killed; 0: none    (100000)
# KILLS    seconds after which that job is killed, each time                  (7 11)
# PROGRAM  computron                                                           (build/release/computron)
# WORK     models and raw figures: 4 GB                                        (build/perf/embed)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

python=${PYTHON:-build/peers/venv/bin/python}
shapes=${SHAPES:-minilm base large}
types=${TYPES:-float32}
rounds=${ROUNDS:-5}
corpus=${CORPUS:-100000}
kills=${KILLS:-7 11}
export WORK=${WORK:-build/perf/embed} THREADS=${THREADS:-2} PROGRAM=$program
export OMP_NUM_THREADS=$THREADS TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
work=$WORK
result=perf/results/embed-$machine.md
mkdir -p "$work" perf/results

texts_of() { case $1 in minilm) echo 1000 ;; base) echo 300 ;; *) echo 100 ;; esac; }

# GEMM peak of a type in FLOP/s, between the engines' runs: of one large weight, whatever the model that names the type.
peak() {
  local file
  file=$(checkpoint opt-tiny-a "$1")
  "$program" bench forward "$file" --threads "$THREADS" --prompt 16 --batches 1 --context 16 --repeats 5 \
    --json "$work/peak.json" > /dev/null
  jq .peak_flops_per_s "$work/peak.json"
}

# engines SHAPE TYPE: each of them in every round, another one first in each.
engines() {
  local names=(computron sentence-transformers ctranslate2) round i name
  [ "$2" = float32 ] || names=(computron sentence-transformers)
  for ((round = 0; round < rounds; ++round)); do
    for ((i = 0; i < ${#names[@]}; ++i)); do
      name=${names[(i + round) % ${#names[@]}]}
      echo "${0##*/}: $1 $2, round $round: $name" >&2
      "$python" perf/peers/embed.py run "$name" "$2" "$1" "$work/$1" "$work/$1.texts" "$work/$1-$name.npy" 2> "$work/log" |
        jq -c ". + {round: $round}" || { cat "$work/log" >&2; return 1; }
    done
  done
}

# failed MESSAGE
failed() {
  echo "${0##*/}: $1" >&2
  return 1
}

# kill_computron MPIRUN: kills the program itself, and fails unless it ran and that was its job's end.
kill_computron() {
  local programs
  programs=$(pgrep -P "$1" -x computron) || failed "there was no computron to be killed"
  # shellcheck disable=SC2086  # one number for each rank
  kill -KILL $programs
  if wait "$1"; then failed "the job that was killed succeeded"; fi
}

# between COUNT CORPUS WHAT: fails unless some results are there and some are not.
between() { if [ "$1" -le 0 ] || [ "$1" -ge "$2" ]; then failed "$3 with $1 of $2 results"; fi; }

# killed CORPUS: seconds of a job of so many texts undisturbed; then the same killed twice and resumed.
killed() {
  local options=(--device cpu --model "m=$work/minilm/f32.h5" --threads "$THREADS" --device-memory 1GiB) after job there
  "$python" perf/peers/embed.py texts "$1" 20 "$work/corpus.texts"
  "$python" perf/peers/embed.py requests "$work/corpus.texts" "$work/corpus.jsonl"
  rm -f "$work"/corpus-{whole,killed}*
  mpirun -n 1 "$program" serve "${options[@]}" --requests "$work/corpus.jsonl" --output "$work/corpus-whole.jsonl" \
    --metrics "$work/corpus.json" 2> "$work/log"
  for after in $kills; do
    mpirun -n 1 "$program" serve "${options[@]}" --requests "$work/corpus.jsonl" \
      --output "$work/corpus-killed.jsonl" 2> "$work/log" &
    job=$!
    sleep "$after"
    kill_computron "$job"
    between "$(wc -l < "$work/corpus-killed.jsonl.partial")" "$(wc -l < "$work/corpus.jsonl")" "killed after $after s"
  done
  mpirun -n 1 "$program" serve "${options[@]}" --requests "$work/corpus.jsonl" --output "$work/corpus-killed.jsonl" \
    --metrics "$work/corpus-killed.json" 2> "$work/log"
  cmp <(sort "$work/corpus-whole.jsonl") <(sort "$work/corpus-killed.jsonl")
  there=$(jq .requests.before "$work/corpus-killed.json")
  between "$there" "$(wc -l < "$work/corpus.jsonl")" "resumed"
  echo
  echo "$1 such texts in a job: $(jq '.wall_s * 10 | round / 10' "$work/corpus.json") s. Killed after ${kills// / and after } s and run" \
    "again, $there results were there before the last attempt, and all lines are the same."
}

before=$(load)
: > "$work/runs.jsonl"
for shape in $shapes; do
  nice "$python" perf/peers/embed.py make "$shape" "$work/$shape" "$program" >&2
  "$python" perf/peers/embed.py texts "${TEXTS:-$(texts_of "$shape")}" "${MEAN:-120}" "$work/$shape.texts" > "$work/$shape.lengths"
  for type in $types; do
    flops=$(peak "$([ "$type" = float32 ] && echo f32 || echo bf16)")
    engines "$shape" "$type" | jq -c ". + {peak_flops_per_s: $flops}" >> "$work/runs.jsonl"
  done
done
after=$(load)

{
  echo "# Embeddings: $cpu, $cores cores"
  echo
  made_by embed
  echo "$THREADS threads each, $rounds rounds in turn; medians, in brackets least and most; a ratio is the median of the rounds'"
  echo "ratios, computron first. Machine load $before before, $after after, the runs themselves included."
  echo
  for shape in $shapes; do echo "* $shape: $(cat "$work/$shape.lengths")"; done
  echo
  "$python" perf/peers/embed.py rows "$work/runs.jsonl" "$work"
  if [ "$corpus" -gt 0 ]; then echo && killed "$corpus"; fi
  if [ -n "${NOTE:-}" ]; then printf '\n%s\n' "$NOTE"; fi
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
