#!/usr/bin/env bash
# What a token of a model twice the size of its device memory takes, beside what it must take (perf/README.md,
# "Larger"), at emulated links of which the transfer of the whole model takes half to four times a resident pass.
# Writes perf/results/larger-MACHINE.md.
#
#   perf/larger.sh [MACHINE]
#
# MESHES     TPxPP                              (1x1 2x1 1x2)
# RATIOS     transfer of the model ÷ its pass   (0.5 1 2 4)
# SEQUENCES  decoded together                   (64)
# REPEATS    runs of each                       (3)
# PROGRAM    computron                          (build/release/computron)
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       model, requests and raw figures    (build/perf/larger)
# About ten minutes; 4 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

meshes=${MESHES:-1x1 2x1 1x2}
ratios=${RATIOS:-0.5 1 2 4}
sequences=${SEQUENCES:-64}
repeats=${REPEATS:-3}
work=${WORK:-build/perf/larger}
result=perf/results/larger-$machine.md
page_size=4MiB
generated=25  # after 8 tokens of prompt
tokens=32     # of a sequence in the cache, where the last one never is: two whole blocks
mkdir -p "$work" perf/results

model=$(checkpoint opt-swap)
"$program" workload --model m=1 --duration $((2 * sequences + 50)) --seed 1 --prompt-tokens 8 \
  --max-tokens "$generated" --vocab 8192 | sed -n "1,${sequences}p" |
  jq -c '.body.logprobs = 1' > "$work/requests.jsonl"
[ "$(wc -l < "$work/requests.jsonl")" = "$sequences" ]

# Passes that a token of all sequences takes: a pipeline shares them out over its stages.
groups() { echo $((sequences < ${1#*x} ? sequences : ${1#*x})); }

# run NAME MESH ARGUMENTS...: load before, load after, a pass, bytes fetched by the rank that fetched most, exposed s.
run() {
  local before
  before=$(load)
  serve "$1" "$2" --model "m=$model" --max-seqs "$sequences" --policy throughput "${@:3}"
  printf '%s\t%s\t' "$before" "$(load)"
  jq -r --argjson passes "$(((generated - 1) * $(groups "$2")))" \
    "[(.latency_s.mean - .ttft_s.mean) / \$passes, ($fetched_by_a_rank), .swaps.exposed_s] | @tsv" "$work/$1.json"
}

# A resident pass: the median of the repeats.
resident() {
  local repeat bytes=$((2 * $(stat -c %s "$model") + (2 << 30)))
  for ((repeat = 0; repeat < repeats; ++repeat)); do
    run "resident-$1" "$1" --device-memory $((bytes / (${1%x*} * ${1#*x})))
  done | cut -f 3 | median
}

# measure MESH: a line a run and figures of the mesh, tab-separated.
measure() {
  local mesh=$1 compute shard most copy_s pages frames rate ratio repeat name
  compute=$(resident "$mesh")
  shard=$(figure "resident-$mesh" "$fetched_by_a_rank")
  most=$(copy_rate "$mesh" "$model")
  copy_s=$(copy_s_a_byte "$mesh" "$most")
  pages=$(pages "resident-$mesh" m "${mesh%x*}")
  frames=$((pages / 2 + $(cache_frames inputs/models/opt-swap.json "$mesh" $((4 << 20)) "$sequences" "$tokens")))
  for ratio in $ratios; do
    rate=$(calculate 'min(shard / ratio / compute, most) / 1e9' "shard=$shard" "ratio=$ratio" "compute=$compute" \
      "most=$most")
    for ((repeat = 0; repeat < repeats; ++repeat)); do
      name=streamed-$ratio-$mesh
      printf '%s\t' "${mesh/x/, }" "$ratio" "$pages" "$((pages / 2))" "$rate" "$compute" "$shard" "$copy_s" \
        $((generated * $(groups "$mesh") - 1))
      run "$name" "$mesh" --link-gbps "$rate" --device-memory "$((4 * frames))MiB"
      same_answers "resident-$mesh" "$name" >&2
    done
  done
}

# The runs on standard input as a Markdown table with the target of perf/README.md checked.
table() {
  awk -F '\t' "$awk_functions"'
    function row(    pass_s, moved_bytes, computing_s, whole_s, least_s) {
      if (!runs) return
      pass_s = median(pass, runs)
      moved_bytes = median(moved, runs)
      computing_s = compute + (1 - frames / pages) * shard * copy_s  # the least that any run has to copy
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

for mesh in $meshes; do measure "$mesh"; done > "$work/runs.tsv"

{
  echo "# A model of twice the pool: $cpu, $cores cores"
  echo
  made_by larger
  echo "One OPT model (inputs/models/opt-swap.json, float32) in pages of $page_size, frames for half of them and for"
  echo "its cache; $sequences sequences of 8 tokens of prompt and $generated generated, decoded together; one compute"
  echo "thread a rank, emulated links. Answers are token ids and log probabilities."
  repeated
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  table < "$work/runs.tsv"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
