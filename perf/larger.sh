#!/usr/bin/env bash
# What a token of a model twice the size of its device memory takes, beside what it must take (perf/README.md,
# "Larger"), at emulated links of which the transfer of the whole model takes half to four times a resident pass.
# Writes perf/results/larger-MACHINE.md.
#
#   perf/larger.sh [MACHINE]
#   perf/larger.sh --coded [MACHINE]    of coded pages beside raw ones, bfloat16: perf/results/larger-coded-MACHINE.md
#
# MESHES     TPxPP                              (1x1 2x1 1x2)
# RATIOS     transfer of the model ÷ its pass   (0.5 1 2 4)
# SEQUENCES  decoded together                   (64)
# REPEATS    runs of each                       (3)
# PROGRAM    computron                          (build/release/computron)
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       model, requests and raw figures    (build/perf/larger, build/perf/larger-coded)
# About ten minutes, a quarter of an hour with --coded; 4 GiB of memory. Nothing else should run on the machine
# meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

mode='' codings=off dtype='' weights=float32
if [ "${1:-}" = --coded ]; then
  mode=--coded codings="off on" dtype=bf16 weights=bfloat16
  shift
fi
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

meshes=${MESHES:-1x1 2x1 1x2}
ratios=${RATIOS:-0.5 1 2 4}
sequences=${SEQUENCES:-64}
repeats=${REPEATS:-3}
work=${WORK:-build/perf/larger${mode#-}}
result=perf/results/larger${mode#-}-$machine.md
page_size=4MiB
generated=25  # after 8 tokens of prompt
tokens=32     # of a sequence in the cache, where the last one never is: two whole blocks
mkdir -p "$work" perf/results

model=$(checkpoint opt-swap "$dtype")
"$program" workload --model m=1 --duration $((2 * sequences + 50)) --seed 1 --prompt-tokens 8 \
  --max-tokens "$generated" --vocab 8192 | sed -n "1,${sequences}p" |
  jq -c '.body.logprobs = 1' > "$work/requests.jsonl"
[ "$(wc -l < "$work/requests.jsonl")" = "$sequences" ]

# Passes that a token of all sequences takes: a pipeline shares them out over its stages.
groups() { echo $((sequences < ${1#*x} ? sequences : ${1#*x})); }

# run NAME MESH ARGUMENTS...: load before, load after, a pass, bytes over the link of the rank that fetched most,
# exposed s, off or on, link bytes ÷ bytes.
run() {
  local before
  before=$(load)
  serve "$1" "$2" --model "m=$model" --max-seqs "$sequences" --policy throughput "${@:3}"
  printf '%s\t%s\t' "$before" "$(load)"
  jq -r --argjson passes "$(((generated - 1) * $(groups "$2")))" \
    "[(.latency_s.mean - .ttft_s.mean) / \$passes, ($fetched_by_a_rank),
      (.swaps | .exposed_s, \"$coded\", .link_bytes / .bytes)] | @tsv" "$work/$1.json"
}

# A resident pass: the median of the repeats.
resident() {
  local repeat bytes=$((2 * $(stat -c %s "$model") + (2 << 30)))
  for ((repeat = 0; repeat < repeats; ++repeat)); do
    run "resident-$1-$coded" "$1" --device-memory $((bytes / (${1%x*} * ${1#*x})))
  done | cut -f 3 | median
}

# measure MESH: a line a run and figures of the mesh, tab-separated. Compute, pool and link of raw pages are those of
# coded ones, too; no link is faster than both are copied without one.
measure() {
  local mesh=$1 compute most pages frames rate ratio repeat name coded
  local -A computes shard copies copy_s
  for coded in $codings; do
    computes[$coded]=$(resident "$mesh")
    shard[$coded]=$(figure "resident-$mesh-$coded" "$fetched_by_a_rank")
    copies[$coded]=$(copy_rate "$mesh" "$model")
    copy_s[$coded]=$(copy_s_a_byte "$mesh" "${copies[$coded]}")
  done
  compute=${computes[off]}
  most=$(printf '%s\n' "${copies[@]}" | sort -g | head -n 1)
  name=resident-$mesh-off
  pages=$(pages "$name" m "${mesh%x*}")
  frames=$((pages / 2 +
    $(cache_frames "$name" m inputs/models/opt-swap.json "$mesh" $((4 << 20)) "$sequences" "$tokens")))
  for ratio in $ratios; do
    rate=$(calculate 'min(shard / ratio / compute, most) / 1e9' "shard=${shard[off]}" "ratio=$ratio" \
      "compute=$compute" "most=$most")
    for ((repeat = 0; repeat < repeats; ++repeat)); do
      for coded in $codings; do
        name=streamed-$ratio-$mesh-$coded
        printf '%s\t' "${mesh/x/, }" "$ratio" "$pages" "$((pages / 2))" "$rate" "$compute" "${shard[$coded]}" \
          "${copy_s[$coded]}" $((generated * $(groups "$mesh") - 1))
        run "$name" "$mesh" --link-gbps "$rate" --device-memory "$((4 * frames))MiB"
        same_answers "resident-$mesh-off" "$name" >&2
      done
    done
  done
}

# For awk. Seconds of a pass, at least: the compute, and the least that any run has to copy where copies take cores.
computing_function='
  function computing(compute, frames, pages, shard, copy_s) { return compute + (1 - frames / pages) * shard * copy_s }'

# The runs on standard input as a Markdown table with the target of perf/README.md checked.
table() {
  awk -F '\t' "$awk_functions$computing_function"'
    function row(    pass_s, moved_bytes, computing_s, whole_s, least_s) {
      if (!runs) return
      pass_s = median(pass, runs)
      moved_bytes = median(moved, runs)
      computing_s = computing(compute, frames, pages, shard, copy_s)
      whole_s = max(shard / rate / 1e9, computing_s)
      least_s = max(moved_bytes / rate / 1e9, computing_s)
      printf "| %s | %.2f | %.1f | %s of %s ", mesh, shard / rate / 1e9 / compute, shard / 1e6, frames, pages
      printf "| %.3f | %.1f | %.1f ", rate, 1e3 * compute, 1e3 * shard / rate / 1e9
      printf "| %.3f | %.1f (%.1f–%.1f) ", moved_bytes / shard, 1e3 * pass_s, 1e3 * pass[1], 1e3 * pass[runs]
      printf "| %.1f | %.3f | %.1f | %.3f ", 1e3 * whole_s, pass_s / whole_s, 1e3 * least_s, pass_s / least_s
      printf "| %.2f | %s ", median(exposed, runs), pass_s <= 1.1 * whole_s ? "met" : "missed"
      printf "| %s–%s |\n", load_before, load_after
    }
    BEGIN {
      head("tp, pp|transfer ÷ compute|shard MB|frames of pages|GB/s a rank|resident pass ms|transfer of all ms|" \
        "moved ÷ shard|pass ms|bound ms|÷ bound|bound of what moved ms|÷ that|exposed s|target|machine load")
    }
    $1 $2 != key { row(); key = $1 $2; runs = 0; load_before = $10 }
    {
      mesh = $1; pages = $3; frames = $4; rate = $5; compute = $6; shard = $7; copy_s = $8
      load_after = $11; ++runs
      pass[runs] = $12; moved[runs] = ($13 - shard) / $9; exposed[runs] = $14
    }
    END { row() }'
}

# The runs on standard input as raw_and_coded wants them, in milliseconds; the bound is that of what moved. A run whose
# answers were others has ended this script.
beside() {
  awk -F '\t' -v OFS='\t' "$awk_functions$computing_function"'
    $15 == "off" { transfer = $7 / $5 / 1e9 }
    {
      bound = max(($13 - $7) / $9 / $5 / 1e9, computing($6, $4, $3, $7, $8))
      print $1, sprintf("%.2f", transfer / $6), sprintf("%.3f", $5), $15, 1e3 * $12, 1e3 * bound, $16, "same", 1,
        $10, $11
    }'
}

for mesh in $meshes; do measure "$mesh"; done > "$work/runs.tsv"

{
  echo "# A model of twice the pool: $cpu, $cores cores"
  echo
  made_by larger "$mode"
  echo "One OPT model (inputs/models/opt-swap.json, $weights) in pages of $page_size, frames for half of them and for"
  echo "its cache; $sequences sequences of 8 tokens of prompt and $generated generated, decoded together; one compute"
  echo "thread a rank, emulated links. Answers are token ids and log probabilities."
  repeated
  [ -z "$mode" ] || in_turn
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  if [ -z "$mode" ]; then
    table < "$work/runs.tsv"
  else
    beside < "$work/runs.tsv" |
      raw_and_coded "tp, pp|transfer of raw pages ÷ compute|GB/s a rank" "pass ms" "bound of what moved ms"
  fi
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
