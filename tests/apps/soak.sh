#!/usr/bin/env bash
# soak.sh PROGRAM [REQUESTS]: a long job of many requests and swaps over tiny models on two ranks. Memory, descriptors and
# threads of every rank do not grow: in the last quarter of the job at most 1 MiB above what they were in the second. Every
# request has its result, and there were a twentieth as many swaps.
set -euo pipefail
program="$1" requests="${2:-200000}"
work=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "soak: $*" >&2; exit 1; }

cat >"$work/tiny.json" <<'JSON'
{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 1024,
 "max_position_embeddings": 64, "word_embed_proj_dim": 64, "do_layer_norm_before": true}
JSON
models=()
for m in 0 1 2 3; do
  "$program" init "$work/$m.h5" --config "$work/tiny.json" --seed "$m" >/dev/null
  models+=(--model "m$m=$work/$m.h5")
done

# Runs of one model's requests, of 3 to 8; one in a hundred lines is none. Requests take so long that as many as may wait
# do so before the second quarter.
awk -v requests="$requests" 'BEGIN {
  srand(5)
  while (line < requests) {
    model = (model + 1 + int(rand() * 3)) % 4
    for (run = 3 + int(rand() * 6); run > 0 && line < requests; --run) {
      if (++line % 100 == 0) { print "{\"custom_id\":\"r" line "\",\"url\":"; continue }
      printf "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m%d\",\"prompt\":[%d,%d,%d],\"max_tokens\":%d,\"temperature\":%s}}\n",
        line, model, 3 + rand() * 1000, 3 + rand() * 1000, 3 + rand() * 1000, 4 + int(rand() * 5), line % 3 ? "0" : "1"
    }
  }
}' >"$work/requests.jsonl"

# bytes of results, rank, resident KiB, descriptors, threads: a line a rank and sample.
sample() {
  local done rank=0 pid
  done=$(stat -c %s "$work/results.jsonl.partial" 2>/dev/null) || return 0
  for pid in $(pgrep -P "$job" -x computron | sort -n); do
    echo "$done $rank $(awk '/^VmRSS/ { rss = $2 } /^Threads/ { threads = $2 } END { print rss }' "/proc/$pid/status") \
      $(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l) $(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)"
    rank=$((rank + 1))
  done
}

mpirun -n 2 "$program" serve --quiet --tp 2 "${models[@]}" --requests "$work/requests.jsonl" --output "$work/results.jsonl" \
  --policy fifo --page-size 64KiB --device-memory "${POOL:-448KiB}" --max-seqs 8 --threads 1 --metrics "$work/metrics.json" 2>"$work/log" &
job=$!
while kill -0 "$job" 2>/dev/null; do
  sample >>"$work/samples" 2>/dev/null || true
  sleep 0.1
done
wait "$job" || { cat "$work/log"; fail "the job ended with $?"; }
job=

[ "$(wc -l <"$work/results.jsonl")" = "$requests" ] || fail "$(wc -l <"$work/results.jsonl") results"
[ "$(sed 's/.*"custom_id":"\([^"]*\)".*/\1/' "$work/results.jsonl" | sort -u | wc -l)" = "$requests" ] || fail "a result is double"
swaps=$(tr -d ' \n' <"$work/metrics.json" | grep -o '"swaps":{"count":[0-9]*' | head -n 1 | tr -dc '0-9')
[ "$swaps" -ge $((requests / 20)) ] || fail "$swaps swaps only"
awk -v all="$(stat -c %s "$work/results.jsonl")" -v swaps="$swaps" -v requests="$requests" '
  function most(name, rank, quarter, value) { if (value > m[name, rank, quarter]) m[name, rank, quarter] = value }
  NF == 5 {
    quarter = int(4 * $1 / all) + 1
    ++samples[quarter]; ranks[$2]
    most("KiB", $2, quarter, $3); most("descriptors", $2, quarter, $4); most("threads", $2, quarter, $5)
  }
  END {
    if (samples[2] < 10 || samples[4] < 10) { print "soak: too few samples: " samples[2] ", " samples[4]; exit 1 }
    for (rank in ranks) {
      printf "rank %d:", rank
      for (i = split("KiB descriptors threads", names, " "); i > 0; --i) {
        second = m[names[i], rank, 2]; last = m[names[i], rank, 4]
        printf " %s %d -> %d", names[i], second, last
        if (last > second + (names[i] == "KiB" ? 1024 : 0)) bad = bad " " names[i]
      }
      print ""
    }
    print requests " requests, " swaps " swaps"
    if (bad != "") { print "soak: more in the last quarter than in the second:" bad; exit 1 }
  }' "$work/samples"
