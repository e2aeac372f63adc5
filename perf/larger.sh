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

meshes=${MESHES:-1x1 2x1 1x2}
ratios=${RATIOS:-0.5 1 2 4}
sequences=${SEQUENCES:-64}
repeats=${REPEATS:-3}
work=${WORK:-build/perf/larger}
result=perf/results/larger-$machine.md
page_size=4MiB
generated=25  # after 8 tokens of prompt: with the last one, which is never in the cache, two blocks of it
mkdir -p "$work" perf/results

model=$(checkpoint opt-swap)
"$program" workload --model m=1 --duration $((2 * sequences + 50)) --seed 1 --prompt-tokens 8 --max-tokens "$generated" \
  --vocab 8192 | sed -n "1,${sequences}p" | jq -c '.body.logprobs = 1' > "$work/requests.jsonl"
[ "$(wc -l < "$work/requests.jsonl")" = "$sequences" ]

# Passes that a token of all sequences takes: a pipeline shares them out over its stages.
groups() { echo $((sequences < ${1#*x} ? sequences : ${1#*x})); }

# run NAME MESH ARGUMENTS...: load before, load after, a pass, bytes fetched by the rank that fetched most, exposed s.
run() {
  local before
  before=$(load)
  serve "$1" "$2" --model "m=$model" --max-seqs "$sequences" "${@:3}"
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
  local mesh=$1 compute shard copy_s pages frames rate ratio repeat name
  compute=$(resident "$mesh")
  shard=$(figure "resident-$mesh" "$fetched_by_a_rank")
  copy_s=$(copy_s_a_byte "$mesh" "$model")
  pages=$(pages "resident-$mesh" m "${mesh%x*}")
  frames=$((pages / 2 + $(cache_frames inputs/models/opt-swap.json "$mesh" $((4 << 20)) "$sequences" $((8 + generated - 1)))))
  for ratio in $ratios; do
    rate=$(calculate 'shard / ratio / compute / 1e9' "shard=$shard" "ratio=$ratio" "compute=$compute")
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
  awk -F '\t' '
    function max(a, b) { return a > b ? a : b }
    # Of `count` numbers in `x`, sorted in place.
    function median(x, count,    i, j, t) {
      for (i = 2; i <= count; ++i) for (j = i; j > 1 && x[j - 1] > x[j]; --j) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
      return (x[int((count + 1) / 2)] + x[int(count / 2) + 1]) / 2
    }
    function row(    pass_s, moved_bytes, whole_s, least_s) {
      if (!runs) return
      pass_s = median(pass, runs)
      moved_bytes = median(moved, runs)
      computing_s = compute + moved_bytes * copy_s
      whole_s = max(shard / rate / 1e9, computing_s)
      least_s = max(moved_bytes / rate / 1e9, computing_s)
      printf "| %s | %s | %s of %s | %.3f | %.1f | %.1f | %.3f | %.1f (%.1f–%.1f) | %.1f | %.3f | %.1f | %.3f | %.2f | %s | %s–%s |\n",
        mesh, transfer_to_compute, frames, pages, rate, 1e3 * compute, 1e3 * shard / rate / 1e9, moved_bytes / shard,
        1e3 * pass_s, 1e3 * pass[1], 1e3 * pass[runs], 1e3 * whole_s, pass_s / whole_s, 1e3 * least_s, pass_s / least_s,
        median(exposed, runs), pass_s <= 1.1 * whole_s ? "met" : "missed", load_before, load_after
    }
    BEGIN {
      print "| tp, pp | transfer ÷ compute | frames of pages | GB/s a rank | resident pass ms | transfer of all ms | moved a pass ÷ shard | pass ms | bound ms | ÷ bound | bound of what moved ms | ÷ that | exposed s | target | machine load |"
      print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    }
    $1 $2 != key { row(); key = $1 $2; runs = 0; load_before = $10 }
    {
      mesh = $1; transfer_to_compute = $2; pages = $3; frames = $4; rate = $5; compute = $6; shard = $7; copy_s = $8
      load_after = $11; ++runs
      pass[runs] = $12; moved[runs] = ($13 - shard) / $9; exposed[runs] = $14
    }
    END { row() }'
}

for mesh in $meshes; do measure "$mesh"; done > "$work/runs.tsv"

{
  echo "# A model of twice the pool: $cpu, $cores cores"
  echo
  echo "Made by perf/larger.sh on $(date -u +%Y-%m-%d) at $(git describe --always --dirty); columns, bounds and target: perf/README.md."
  echo "One OPT model of $(stat -c %s "$model" | awk '{ printf "%.0f", $1 / 1e6 }') MB (inputs/models/opt-swap.json, float32) in pages of $page_size, frames for half of them and for the"
  echo "cache; $sequences sequences of 8 tokens of prompt and $generated generated, decoded together; one compute thread a rank, emulated links. Medians of"
  echo "$repeats runs, in brackets least and most; token ids and log probabilities of all runs are the resident run's. Machine load:"
  echo "one-minute average before the first and after the last run."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  table < "$work/runs.tsv"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
