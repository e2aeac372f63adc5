#!/usr/bin/env bash
# PipeSwitch's figure in our form (perf/README.md, "Interactive"): batch work of one model that takes all of the machine,
# and interactive requests of another one now and then, on an emulated link and processor; what the batch loses, and what
# the interactive requests wait for. Writes perf/results/interactive-MACHINE.md.
#
#   perf/interactive.sh [--try] [MACHINE]
#
# --try: ten requests a cell, in half a minute, and no result file but WORK/try.md.
# GAPS      seconds between interactive requests, and how many come  (0.2:300 0.4:300 1:300)
# RESIDENT  the same where both models fit in the pool               (0.2:300)
# RATE      of the link, GB/s                                        (0.4)
# GFLOPS    of the processor, slow beside the real one               (8)
# PROGRAM   computron                                                (build/release/computron)
# INJECTED  computron with emulated processors                       (build/release/computron_injected)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, requests, raw figures                             (build/perf/interactive)
# Eleven minutes. Gaps of 1, 2 and 5 s with a link and a processor that take five times as long are the same in an hour:
# GAPS="1:300 2:300 5:300" RESIDENT=1:300 RATE=0.08 GFLOPS=1.6. Nothing else should run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
try=false
[ "${1:-}" != --try ] || { try=true; shift; }
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

gaps=${GAPS:-0.2:300 0.4:300 1:300}
resident=${RESIDENT:-0.2:300}
if $try; then gaps=${GAPS:-0.2:10} resident=${RESIDENT:-0.2:10}; fi
rate=${RATE:-0.4}
gflops=${GFLOPS:-8}
injected=${INJECTED:-build/release/computron_injected}
work=${WORK:-build/perf/interactive}
result=perf/results/interactive-$machine.md
! $try || result=$work/try.md
before=$(load)
seqs=16 prompt=16 answer=64 # of the batch
short=8                     # tokens of an interactive answer
page_kib=256
mkdir -p "$work" perf/results

# One head of keys and values: the batch's cache is small beside the model, so a pool for it and one model lacks most of
# the other one, however much of its cache the batch uses.
cat > "$work/model.json" <<'JSON'
{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1,
 "intermediate_size": 1024, "vocab_size": 128, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000,
 "hidden_act": "silu", "tie_word_embeddings": false}
JSON
for model in a b; do
  rm -f "$work/$model.h5"
  "$program" init "$work/$model.h5" --config "$work/model.json" --dtype f32 --seed "$([ $model = a ] && echo 1 || echo 2)" >&2
done
# Frames: slots of 16 tokens of a layer, 4 KiB each; 6 blocks for each sequence of the batch, 2 for an interactive one.
cache=$(((seqs * 6 + 2) * 4 * 4 / page_kib + 1))

# lines MODEL COUNT GAP_S TOKENS [MORE]: requests from second 1 on, one each GAP_S, by up to a gap later: at all times of
# the batch's passes, whatever these take.
lines() {
  awk -v model="$1" -v count="$2" -v gap="$3" -v tokens="$4" -v more="${5:-}" -v prompt="$prompt" 'BEGIN {
    for (i = 0; i < count; ++i) {
      list = ""
      for (t = 0; t < prompt; ++t) list = list (t ? "," : "") (1 + (i * 7 + t * 3) % 120)
      printf "{\"custom_id\":\"%s-%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"arrival\":%g,\"body\":{%s\"model\":\"%s\"," \
        "\"prompt\":[%s],\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0}}\n", model, i, (gap > 0 ? 1 + gap * (i + i * 0.618034 % 1) : 0), more, model, list, tokens
    }
  }'
}
# run NAME FRAMES: serves $work/NAME.in; metrics in $work/NAME.json.
run() {
  local name=$work/$1
  rm -f "$name".jsonl* "$name.json"
  echo "interactive.sh: $1" >&2
  # shellcheck disable=SC2086
  mpirun -n 1 ${LAUNCH:-} "$injected" serve --quiet --device cpu --threads 1 --idle sleep:200 --verify-swap off --coded off \
    --model "a=$work/a.h5" --model "b=$work/b.h5" --requests "$name.in" --replay --output "$name.jsonl" \
    --metrics "$name.json" --inject-gflops "$gflops" --link-gbps "$rate" --device-memory "$(($2 * page_kib))KiB" --page-size "${page_kib}KiB" \
    --max-seqs "$seqs" 2> "$name.log" || { cat "$name.log" >&2; return 1; }
}
metric() { jq -r "$2" "$work/$1.json"; }

# What an interactive request takes with nothing in its way, and what a second of batch work is. The pool's frames are
# counted by a run in one that surely holds everything.
lines b 20 0.5 "$short" > "$work/alone.in"
run alone $((4 * $(stat -c %s "$work/b.h5") / 1024 / page_kib + cache))
compute=$(metric alone .models.b.latency_s.p50)
pages=$(metric alone .models.b.swaps.pages)
one=$((pages + cache)) two=$((2 * pages + cache))
lines a $((8 * seqs)) 0 "$answer" > "$work/batch.in"
run batch "$one"
a_second=$(calculate 'n / wall' "n=$((8 * seqs))" "wall=$(metric batch .wall_s)")
pass=$(calculate 'wall / passes' "wall=$(metric batch .wall_s)" "passes=$(metric batch .steps.passes)")

# cell GAP:COUNT FRAMES KIND: a line of the table. The batch alone takes a little longer than requests come. A cold
# model's bytes are those that a swap moved: what was left of it in frames that nobody wanted is not fetched again.
cell() {
  local gap=${1%:*} count=${1#*:} name=$3-${1%:*} batch wall alone p50 p99 bound exposed swaps part swap=0
  batch=$(calculate 'int((2 + gap * count) * rate) + 1' "gap=$gap" "count=$count" "rate=$a_second")
  lines a "$batch" 0 "$answer" > "$work/$name.in"
  lines b "$count" "$gap" "$short" '"service_tier":"priority",' >> "$work/$name.in"
  run "$name" "$2"
  alone=$(calculate 'n / rate' "n=$batch" "rate=$a_second")
  wall=$(metric "$name" .wall_s) exposed=$(metric "$name" .swaps.exposed_s)
  p50=$(metric "$name" .models.b.latency_s.p50) p99=$(metric "$name" .models.b.latency_s.p99)
  swaps=$(metric "$name" .models.b.swaps.count)
  if [ "$3" = cold ]; then
    ((swaps >= count)) || {
      echo "interactive.sh: $name: only $swaps swaps for $count requests, so not all were cold: the pool has room for both" \
        "models, or some came before the last was done (p99 $p99 s)" >&2
      return 1
    }
    swap=$(metric "$name" ".models.b.swaps.link_bytes / $swaps / ($rate * 1e9)")
  elif ((swaps > 1)); then
    echo "interactive.sh: $name: $swaps swaps of a model that should be resident" >&2
    return 1
  fi
  part=$(metric "$name" ".models.b.swaps.pages / $swaps / $pages")
  bound=$(calculate 's + c + p' "s=$swap" "c=$compute" "p=$pass")
  awk -v kind="$3" -v gap="$gap" -v n="$count" -v wall="$wall" -v alone="$alone" -v compute="$compute" -v exposed="$exposed" \
    -v p50="$p50" -v p99="$p99" -v bound="$bound" -v swaps="$swaps" -v part="$part" 'BEGIN {
      least = alone + n * compute + exposed
      printf "| %s | %g | %d | %d | %.2f | %.2f | %.2f | %.3f | %.3f | %.3f | %.2f | %.3f | %.2f |\n", kind, gap, n, swaps, part, wall, least, \
        least / wall, bound, p50, p50 / bound, p99, p99 / bound
    }' >> "$work/cells.md"
}
: > "$work/cells.md"
for gap in $gaps; do cell "$gap" "$one" cold; done
for gap in $resident; do cell "$gap" "$two" resident; done

{
  echo "# Interactive and batch: $cpu, $cores cores"
  echo
  made_by interactive
  echo
  [ -z "${NOTE:-}" ] || printf '**%s**\n\n' "$NOTE"
  echo "One rank, emulated: $gflops Gflops, a link of $rate GB/s, models of $pages pages of $page_kib KiB. An interactive" \
    "request alone takes $(printf %.3f "$compute") s, a pass of the batch $(printf %.3f "$pass") s. Machine load: $before before, $(load) after."
  echo
  awk "$awk_functions"'BEGIN { head("model b|gap, s|requests|swaps of b|part of its pages|wall, s|bound, s|bound ÷ wall|latency bound, s|median, s|÷ bound|p99, s|÷ bound") }'
  cat "$work/cells.md"
} > "$result"
echo "$result" >&2
