#!/usr/bin/env bash
# What an input of ten million lines takes on rank 0: seconds to read and check all of them while serving, and resident
# memory (perf/README.md, "Lines"). Writes perf/results/lines-MACHINE.md. Ends with 1 when a target is missed.
#
#   perf/lines.sh [MACHINE]
#
# LINES     of the input, all but the last for one model   (10000000)
# PROGRAM   computron                                      (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, input and output                        (build/perf/lines)
# Some minutes; 2 GiB of memory and 3 GiB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

lines=${LINES:-10000000}
most_gib=1.5
work=${WORK:-build/perf/lines}
result=perf/results/lines-$machine.md
mkdir -p "$work" perf/results
jq '.hidden_size = 64 | .word_embed_proj_dim = 64 | .ffn_dim = 64 | .num_hidden_layers = 1 | .num_attention_heads = 2
  | .vocab_size = 128' inputs/models/opt-tiny-a.json > "$work/tiny.json"
[ -e "$work/tiny.h5" ] || "$program" init "$work/tiny.h5" --config "$work/tiny.json" --seed 1 >&2
printf '[{"id": "mass", "path": "tiny.h5"}, {"id": "urgent", "path": "tiny.h5", "priority": 20}]\n' > "$work/models.json"
awk -v lines="$lines" 'BEGIN {
  for (i = 1; i <= lines; ++i)
    printf "{\"custom_id\":\"%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"%s\",\"prompt\":[4,5,%d],\"max_tokens\":1}}\n",
           i, i < lines ? "mass" : "urgent", i % 100 + 4
}' > "$work/requests.jsonl"

# memory KEY: of rank 0, in GiB.
memory() { awk -v key="$1:" '$1 == key { printf "%.3f", $2 / 1048576 }' "/proc/$rank/status"; }
results() { if [ -e "$work/out.partial" ]; then wc -l < "$work/out.partial"; else echo 0; fi; }
has_urgent() { grep -q -m 1 "\"custom_id\":\"$lines\"" "$work/out.partial"; }
# Whether all lines have been read.
is_read() { [ -e "$work/status" ] && grep -Eq '/[0-9]+ requests done' "$work/status"; }

# run NAME: serves until every line has been read and the last one has its result, then stops in order. Sets NAME_*.
run() {
  rm -f "$work/status"
  mpirun -n 1 "$program" serve --quiet --models "$work/models.json" --max-seqs 512 --device-memory 64MiB --threads 1 \
    --coded off --requests "$work/requests.jsonl" --output "$work/out" --status "$work/status" 2> "$work/$1.log" &
  local mpirun=$! before start
  before=$(results)
  until rank=$(pgrep -P "$mpirun" | head -n 1) && [ -n "$rank" ]; do
    kill -0 "$mpirun" || { cat "$work/$1.log" >&2; exit 1; }
    sleep 0.1
  done
  start=$(date +%s.%N)
  until is_read; do
    kill -0 "$mpirun" || { cat "$work/$1.log" >&2; exit 1; }
    sleep 0.2
  done
  read_s=$(calculate 'b - a' "a=$start" "b=$(date +%s.%N)")
  served=$(($(results) - before))
  now_gib=$(memory VmRSS)
  until has_urgent; do sleep 0.1; done
  urgent_s=$(calculate 'b - a' "a=$start" "b=$(date +%s.%N)")
  sleep 2
  most=$(memory VmHWM)
  kill -TERM "$rank"
  wait "$mpirun" || true
  row "$1"
}

met=0
row() {
  local verdict=met
  awk -v most="$most" -v limit="$most_gib" 'BEGIN { exit !(most <= limit) }' || { verdict=missed; met=1; }
  rows+=$(printf '| %s | %d | %.1f | %.0f | %d | %.1f | %s | %s | %s |' "$1" "$lines" "$read_s" \
    "$(calculate 'n / s' "n=$lines" "s=$read_s")" "$served" "$urgent_s" "$now_gib" "$most" "$verdict ($most_gib)")$'\n'
}

rm -f "$work"/out*
rows=
before_load=$(load)
run "from the start"
run "run again"
after_load=$(load)
{
  echo "# Lines: $cpu, $cores cores"
  echo
  made_by lines
  echo "One rank, one thread; prompts of 3 tokens for 1; the last line is for a model of higher priority. Machine load:"
  echo "$before_load before, $after_load after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk "$awk_functions"' BEGIN { head("run|lines|read after s|lines/s|served meanwhile|last line served after s|resident then GiB|most GiB|target") }'
  printf '%s' "$rows"
} > "$result"
echo "$result"
exit "$met"
