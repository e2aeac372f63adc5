#!/usr/bin/env bash
# PipeSwitch's figure in our form (perf/README.md, "Interactive"): batch work of one model that takes all of the machine,
# and interactive requests of another one now and then, on an emulated link and processor; what the batch loses, and what
# the interactive requests wait for. Writes perf/results/interactive-MACHINE.md.
#
#   perf/interactive.sh [MACHINE]
#
# GAPS      seconds between interactive requests, and how many come  (0.2:300 0.4:300 1:300)
# RESIDENT  the same where both models fit in the pool               (0.2:300)
# RATE      of the link, GB/s                                        (0.125)
# GFLOPS    of the processor, slow beside the real one               (2.5)
# PROGRAM   computron                                                (build/release/computron)
# INJECTED  computron with emulated processors                       (build/release/computron_injected)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, requests, raw figures                             (build/perf/interactive)
# Eleven minutes. Gaps of 1, 2 and 5 s with a link and a processor that take five times as long are the same in an hour:
# GAPS="1:300 2:300 5:300" RESIDENT=1:300 RATE=0.025 GFLOPS=0.5. Nothing else should run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

gaps=${GAPS:-0.2:300 0.4:300 1:300}
resident=${RESIDENT:-0.2:300}
rate=${RATE:-0.125}
gflops=${GFLOPS:-2.5}
injected=${INJECTED:-build/release/computron_injected}
work=${WORK:-build/perf/interactive}
result=perf/results/interactive-$machine.md
before=$(load)
seqs=16 prompt=16 answer=64 # of the batch
short=8                     # tokens of an interactive answer
mkdir -p "$work" perf/results

cat > "$work/model.json" <<'JSON'
{"model_type": "opt", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 128, "word_embed_proj_dim": 128, "do_layer_norm_before": true}
JSON
for model in a b; do
  [ -e "$work/$model.h5" ] || "$program" init "$work/$model.h5" --config "$work/model.json" --dtype f32 --seed "$([ $model = a ] && echo 1 || echo 2)" >&2
done
kib=$(($(stat -c %s "$work/b.h5") >> 10))
cache=$(((seqs + 4) * 6 * 16 * 4 * 2 * 128 * 4 / 1024)) # KiB: 6 blocks of 16 tokens, of 4 layers, for each sequence
one=$((kib + kib / 4 + cache)) two=$((2 * kib + kib / 4 + cache))

# lines MODEL COUNT GAP_S TOKENS [MORE]: requests from second 1 on, one each GAP_S.
lines() {
  awk -v model="$1" -v count="$2" -v gap="$3" -v tokens="$4" -v more="${5:-}" -v prompt="$prompt" 'BEGIN {
    for (i = 0; i < count; ++i) {
      list = ""
      for (t = 0; t < prompt; ++t) list = list (t ? "," : "") (1 + (i * 7 + t * 3) % 120)
      printf "{\"custom_id\":\"%s-%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"arrival\":%g,\"body\":{%s\"model\":\"%s\"," \
        "\"prompt\":[%s],\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0}}\n", model, i, (gap > 0 ? 1 + i * gap : 0), more, model, list, tokens
    }
  }'
}
# run NAME POOL_KIB: serves $work/NAME.in; metrics in $work/NAME.json.
run() {
  local name=$work/$1
  rm -f "$name".jsonl* "$name.json"
  echo "interactive.sh: $1" >&2
  # shellcheck disable=SC2086
  mpirun -n 1 ${LAUNCH:-} "$injected" serve --quiet --device cpu --threads 1 --idle sleep:200 --verify-swap off --coded off \
    --model "a=$work/a.h5" --model "b=$work/b.h5" --requests "$name.in" --replay --output "$name.jsonl" \
    --metrics "$name.json" --inject-gflops "$gflops" --link-gbps "$rate" --device-memory "$2KiB" --page-size 64KiB \
    --max-seqs "$seqs" 2> "$name.log" || { cat "$name.log" >&2; return 1; }
}
metric() { jq -r "$2" "$work/$1.json"; }

# What an interactive request takes with nothing in its way, and what a second of batch work is.
lines b 20 0.5 "$short" > "$work/alone.in"
run alone "$two"
compute=$(metric alone .models.b.latency_s.p50)
lines a $((8 * seqs)) 0 "$answer" > "$work/batch.in"
run batch "$one"
a_second=$(calculate 'n / wall' "n=$((8 * seqs))" "wall=$(metric batch .wall_s)")
pass=$(calculate 'wall / passes' "wall=$(metric batch .wall_s)" "passes=$(metric batch .steps.passes)")
swap=$(calculate 'kib * 1024 / (rate * 1e9)' "kib=$kib" "rate=$rate")

# cell GAP:COUNT POOL_KIB KIND: a line of the table. The batch alone takes a little longer than requests come.
cell() {
  local gap=${1%:*} count=${1#*:} name=$3-${1%:*} batch wall alone p50 p99 bound exposed
  batch=$(calculate 'int((2 + gap * count) * rate) + 1' "gap=$gap" "count=$count" "rate=$a_second")
  lines a "$batch" 0 "$answer" > "$work/$name.in"
  lines b "$count" "$gap" "$short" '"service_tier":"priority",' >> "$work/$name.in"
  run "$name" "$2"
  alone=$(calculate 'n / rate' "n=$batch" "rate=$a_second")
  wall=$(metric "$name" .wall_s) exposed=$(metric "$name" .swaps.exposed_s)
  p50=$(metric "$name" .models.b.latency_s.p50) p99=$(metric "$name" .models.b.latency_s.p99)
  [ "$3" = cold ] && bound=$(calculate 's + c + p' "s=$swap" "c=$compute" "p=$pass") ||
    bound=$(calculate 'c + p' "c=$compute" "p=$pass")
  awk -v kind="$3" -v gap="$gap" -v n="$count" -v wall="$wall" -v alone="$alone" -v compute="$compute" -v exposed="$exposed" \
    -v p50="$p50" -v p99="$p99" -v bound="$bound" 'BEGIN {
      least = alone + n * compute + exposed
      printf "| %s | %g | %d | %.2f | %.2f | %.3f | %.3f | %.3f | %.2f | %.3f | %.2f |\n", kind, gap, n, wall, least, \
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
  echo "One rank, emulated: $gflops Gflops, a link of $rate GB/s, models of $kib KiB. A swap takes at least" \
    "$(printf %.3f "$swap") s, an interactive request alone $(printf %.3f "$compute") s, a pass of the batch" \
    "$(printf %.3f "$pass") s. Machine load: $before before, $(load) after."
  echo
  awk "$awk_functions"'BEGIN { head("model b|gap, s|requests|wall, s|bound, s|bound ÷ wall|latency bound, s|median, s|÷ bound|p99, s|÷ bound") }'
  cat "$work/cells.md"
} > "$result"
echo "$result" >&2
