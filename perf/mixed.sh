#!/usr/bin/env bash
# What a batch over many models takes whose requests are all known, beside what it must take (perf/README.md, "Mixed"):
# requests over eight equal models in mixed order, device memory for three of them, at emulated links of which the
# transfer of a model takes twice, once and half the time of its compute. Writes perf/results/mixed-MACHINE.md.
#
#   perf/mixed.sh [MACHINE]
#   perf/mixed.sh --coded [MACHINE]    of coded pages beside raw ones, bfloat16: perf/results/mixed-coded-MACHINE.md
#
# MESHES    TPxPP                             (1x1 2x1)
# RATIOS    compute of a model ÷ its transfer (0.5 1 2)
# POLICIES  of those that the program has     (throughput balanced fifo interleaved)
# REQUESTS  for each of the eight models      (250)
# REPEATS   runs of each                      (3)
# PROGRAM   computron                         (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, requests and raw figures   (build/perf/mixed, build/perf/mixed-coded)
# About half an hour, three quarters of an hour with --coded; 4 GiB of memory. Nothing else should run on the machine
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

meshes=${MESHES:-1x1 2x1}
ratios=${RATIOS:-0.5 1 2}
requests=${REQUESTS:-250}
repeats=${REPEATS:-3}
work=${WORK:-build/perf/mixed${mode#-}}
result=perf/results/mixed${mode#-}-$machine.md
page_size=2MiB
sequences=64  # of a batch; a request has 8 tokens of prompt and 4 generated, the last of which is never in the cache
tokens=11
mkdir -p "$work" perf/results

policies=
for policy in ${POLICIES:-throughput balanced fifo interleaved}; do
  ! "$program" serve --help | grep -A 2 -e --policy | grep -qw "$policy" || policies="$policies $policy"
done

model=$(checkpoint opt-mixed "$dtype")
models=()
for m in 0 1 2 3 4 5 6 7; do models+=(--model "m$m=$model"); done

# Poisson arrivals make the order; as many of each model are kept.
make_requests() {
  "$program" workload --models m0,m1,m2,m3,m4,m5,m6,m7 --rates 1,1,1,1,1,1,1,1 --duration $((2 * requests + 50)) \
    --seed 1 --prompt-tokens 8 --max-tokens 4 --vocab 4096 |
    awk -F '"' -v most="$requests" '{ split($4, id, "-"); if (id[2] + 0 < most) print }' > "$work/requests.jsonl"
  [ "$(wc -l < "$work/requests.jsonl")" = $((8 * requests)) ]
}

# run NAME MESH ARGUMENTS...: load before, load after, wall, compute, swaps, bytes, exposed seconds, off or on, link
# bytes ÷ bytes.
run() {
  local before
  before=$(load)
  serve "$1" "$2" "${models[@]}" --max-seqs "$sequences" "${@:3}"
  printf '%s\t%s\t' "$before" "$(load)"
  figure "$1" "[.wall_s, .steps.compute_s, (.swaps | .count, .bytes, .exposed_s, \"$coded\", .link_bytes / .bytes)]
    | @tsv"
}

# Compute of a model, the median of all models and repeats: the first models' passes share the processor with copies.
resident() {
  local mesh=$1 repeat bytes=$((2 * 8 * $(stat -c %s "$model") + (1 << 29)))
  for ((repeat = 0; repeat < repeats; ++repeat)); do
    run "resident-$mesh-$coded" "$mesh" --policy throughput \
      --device-memory $((bytes / (${mesh%x*} * ${mesh#*x}))) > /dev/null
    figure "resident-$mesh-$coded" '.models[].steps.compute_s'
  done | median
}

# measure MESH: a line a run and figures of the mesh, tab-separated. Compute, pool and link of raw pages are those of
# coded ones, too.
measure() {
  local mesh=$1 compute frames rate ratio policy repeat name coded
  local -A computes shard copy_s
  for coded in $codings; do
    name=resident-$mesh-$coded
    computes[$coded]=$(resident "$mesh")
    shard[$coded]=$(figure "$name" ".models.m0 | $fetched_by_a_rank")
    copy_s[$coded]=$(copy_s_a_byte "$mesh" "$(copy_rate "$mesh" "$model")")
  done
  compute=${computes[off]}
  name=resident-$mesh-off
  frames=$((3 * ($(pages "$name" m0 "${mesh%x*}") +
    $(cache_frames "$name" m0 inputs/models/opt-mixed.json "$mesh" $((2 << 20)) "$sequences" "$tokens"))))
  for ratio in $ratios; do
    rate=$(calculate 'shard * ratio / compute / 1e9' "shard=${shard[off]}" "ratio=$ratio" "compute=$compute")
    for policy in $policies; do
      for ((repeat = 0; repeat < repeats; ++repeat)); do
        for coded in $codings; do
          name=$policy-$ratio-$mesh-$coded
          printf '%s\t' "${mesh/x/, }" "$ratio" "$policy" "$rate" "$compute" "${shard[$coded]}" "${copy_s[$coded]}" \
            "$frames" "$(figure "resident-$mesh-off" .swaps.bytes)"
          run "$name" "$mesh" --policy "$policy" --link-gbps "$rate" --device-memory "$((2 * frames))MiB"
          same_answers "resident-$mesh-off" "$name" >&2
        done
      done
    done
  done
}

# For awk. Seconds: of a model's transfer and compute, and of the copies of the other models where they take cores.
bound_function='
  function bound(transfer, compute, copies) {
    return max(8 * transfer + compute, transfer + 8 * compute + 7 * copies)
  }'

# The runs on standard input as a Markdown table with the targets of perf/README.md checked.
table() {
  awk -F '\t' "$awk_functions$bound_function"'
    function verdict(ratio,    missed) {
      if (policy !~ /throughput|balanced/) return "–"
      if (ratio > (policy == "throughput" ? 1.07 : 1.25)) missed = " wall"
      if (policy == "throughput" && most_swaps > 8) missed = missed " swaps"
      return missed == "" ? "met" : "missed:" missed
    }
    function row(    wall_s, ratio) {
      if (!runs) return
      wall_s = median(wall, runs)
      ratio = median(over, runs)
      printf "| %s | %s | %s | %.1f | %.4f ", mesh, compute_to_transfer, policy, shard / 1e6, rate
      printf "| %.2f | %.2f | %.2f (%.2f–%.2f) ", compute, transfer, wall_s, wall[1], wall[runs]
      printf "| %.2f | %.3f | %.3f ", bound(transfer, compute, copies), ratio, median(over_own, runs)
      printf "| %.2f | %d | %.2f ", median(own_compute, runs), median(swaps, runs), median(bytes, runs)
      printf "| %.2f | %s | %s–%s |\n", median(exposed, runs), verdict(ratio), load_before, load_after
    }
    BEGIN {
      head("tp, pp|compute ÷ transfer|policy|shard MB|GB/s a rank|compute of a model s|transfer of a model s|" \
        "wall s|bound s|÷ bound|÷ own bound|compute of the run s|swaps|bytes moved ÷ all models|exposed s|targets|" \
        "machine load")
    }
    $1 $2 $3 != key { row(); key = $1 $2 $3; runs = 0; most_swaps = 0; load_before = $10 }
    {
      mesh = $1; compute_to_transfer = $2; policy = $3; rate = $4; compute = $5; shard = $6
      transfer = shard / rate / 1e9; copies = shard * $7; load_after = $11; ++runs
      wall[runs] = $12
      over[runs] = $12 / bound(transfer, compute, copies)
      over_own[runs] = $12 / bound(transfer, $13 / 8, 0)
      own_compute[runs] = $13; swaps[runs] = $14; bytes[runs] = $15 / $9; exposed[runs] = $16
      most_swaps = max(most_swaps, $14)
    }
    END { row() }'
}

# The runs on standard input as raw_and_coded wants them. A run whose answers were others has ended this script.
beside() {
  awk -F '\t' -v OFS='\t' "$awk_functions$bound_function"'{
    print $1, $2, $3, sprintf("%.4f", $4), $17, $12, bound($6 / $4 / 1e9, $5, $6 * $7), $18, "same",
      $3 ~ /throughput|balanced/, $10, $11
  }'
}

make_requests
for mesh in $meshes; do measure "$mesh"; done > "$work/runs.tsv"

{
  echo "# Mixed batch: $cpu, $cores cores"
  echo
  made_by mixed "$mode"
  echo "$((8 * requests)) requests of 8 tokens of prompt and 4 generated, mixed over eight equal models"
  echo "(inputs/models/opt-mixed.json, $weights) as they would arrive at random, all known from the start; pool for"
  echo "three models and their caches; $sequences sequences a batch, one compute thread a rank, pages of $page_size,"
  echo "emulated links."
  repeated
  [ -z "$mode" ] || in_turn
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  if [ -z "$mode" ]; then
    table < "$work/runs.tsv"
  else
    beside < "$work/runs.tsv" |
      raw_and_coded "tp, pp|compute ÷ transfer of raw pages|policy|GB/s a rank" "wall s" "bound s"
  fi
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
