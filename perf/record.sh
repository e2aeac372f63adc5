#!/usr/bin/env bash
# What a job's record costs, and what its replay says beside what comes true (perf/README.md, "Record"): jobs of three
# models that swap, on emulated links and processors, recorded; each played again as it was, and with other links, pools
# and pages beside a run that really had those. Writes perf/results/record-MACHINE.md.
#
#   perf/record.sh [MACHINE]
#
# SHAPES    arguments of the program but for ':' instead of ' '  (--tp:2 --pp:2 --groups:2)
# POLICIES  of those that the program has                       (fifo balanced throughput)
# RATE      of the links, GB/s                                  (0.002)
# GFLOPS    of the processors, slow beside the real ones        (0.05)
# REQUESTS  for each of the three models                        (8)
# COSTS     pairs of runs with and without --record             (5)
# PROGRAM   computron                                           (build/release/computron)
# INJECTED  computron with emulated processors                  (build/release/computron_injected)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, requests, records                            (build/perf/record)
# About a quarter of an hour. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

shapes=${SHAPES:---tp:2 --pp:2 --groups:2}
policies=${POLICIES:-fifo balanced throughput}
rate=${RATE:-0.002}
gflops=${GFLOPS:-0.05}
requests=${REQUESTS:-8}
costs=${COSTS:-5}
injected=${INJECTED:-build/release/computron_injected}
work=${WORK:-build/perf/record}
result=perf/results/record-$machine.md
before=$(load)
mkdir -p "$work" perf/results

cat > "$work/model.json" <<'JSON'
{"model_type": "opt", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 128, "word_embed_proj_dim": 128, "do_layer_norm_before": true}
JSON
model=$work/model.h5
[ -e "$model" ] || "$program" init "$model" --config "$work/model.json" --dtype f32 --seed 1 >&2
kib=$(($(stat -c %s "$model") >> 10))

# Requests of three models in Poisson order at a rate that keeps the ranks busy.
"$program" workload --models a,b,c --rates 1,1,1 --duration $((2 * requests + 40)) --seed 1 --prompt-tokens 16 \
  --max-tokens 8 --vocab 128 |
  awk -F '"' -v most="$requests" '{ split($4, id, "-"); if (id[2] + 0 < most) print }' > "$work/requests.jsonl"

# pool SHAPE: KiB in which two models of three fit with their caches, cut as the shape says.
pool() { case $1 in --groups*) echo $((5 * kib / 2)) ;; *) echo $((3 * kib / 2)) ;; esac; }

# run NAME SHAPE POLICY RATE POOL_KIB PAGE ARGUMENTS...: metrics in $work/NAME.json.
run() {
  local name=$work/$1 shape=${2//:/ }
  rm -f "$name".*
  echo "record.sh: $1" >&2
  # shellcheck disable=SC2086
  mpirun -n 2 "$injected" serve --quiet --device cpu --threads 1 --model-pages private --idle sleep:200 --verify-swap off --max-seqs 4 \
    --coded off --model "a=$model" --model "b=$model" --model "c=$model" --requests "$work/requests.jsonl" \
    --output "$name.jsonl" --metrics "$name.json" --inject-gflops "$gflops" $shape --policy "$3" --link-gbps "$4" \
    --device-memory "$5KiB" --page-size "$6" "${@:7}" 2> "$name.log" || { cat "$name.log" >&2; return 1; }
}

# replay NAME ARGUMENTS...: the lines of the table.
replay() { "$program" simulate --steps "$work/$1.record" "${@:2}"; }
# seconds WHAT: wall and mean latency, of the line of `simulate` that begins so.
seconds() { awk -v what="$1" 'index($0, what) == 1 { $0 = substr($0, 28); print $1, $9 }'; }
# beside PREDICTED TRUE: "1.234 (+1.2 %), 0.567 (-0.3 %)", of the two.
beside() {
  echo "$1 $2" | awk '{ printf "%.3f (%+.1f %%), %.3f (%+.1f %%)", $1, 100 * ($1 / $3 - 1), $2, 100 * ($2 / $4 - 1) }'
}
recorded() { replay "$1" | seconds recorded; }

# A line a job: its wall, and its replays.
own() {
  local name=$1 text same again wall
  text=$(replay "$name")
  wall=$(seconds recorded <<< "$text")
  same=$(seconds 'replayed: the same steps' <<< "$text")
  again=$(seconds 'replayed: decided again' <<< "$text")
  printf '| %s | %s | %s | %s | %s |\n' "$2" "$3" "${wall/ /, }" "$(beside "$same" "$wall")" "$(beside "$again" "$wall")" >> "$work/own.md"
}
# told NAME SHAPE POLICY WHAT TRUE_NAME ARGUMENTS...: what if, beside the run that had it.
told() {
  local text same again wall own
  text=$(replay "$1" "${@:6}")
  own=$(recorded "$1")
  wall=$(recorded "$5")
  same=$(seconds 'what if: the same steps' <<< "$text")
  again=$(seconds 'what if: decided again' <<< "$text")
  printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$2" "$3" "$4" "${own/ /, }" "${wall/ /, }" \
    "$([ -z "$same" ] && echo – || beside "$same" "$wall")" "$(beside "$again" "$wall")" >> "$work/told.md"
}

: > "$work/own.md"
: > "$work/told.md"
half=$(calculate 'r / 2' "r=$rate")
for shape in $shapes; do
  pool=$(pool "$shape")
  text=${shape//:/ }
  text=${text#--}
  for policy in $policies; do
    for kind in known arriving; do
      name=$policy-$kind${shape//:/-}
      more=()
      [ $kind = known ] || more=(--replay)
      run "$name" "$shape" "$policy" "$rate" "$pool" 64KiB --record "$work/$name.record" "${more[@]}"
      own "$name" "$text" "$policy, $kind"
      run "$name-half" "$shape" "$policy" "$half" "$pool" 64KiB --record "$work/$name-half.record" "${more[@]}"
      told "$name" "$text" "$policy, $kind" 'half the link rate' "$name-half" --link-scale 0.5
      [ "$policy-$kind" = balanced-known ] || continue
      run "$name-pool" "$shape" "$policy" "$rate" $((pool * 3 / 2)) 64KiB --record "$work/$name-pool.record"
      told "$name" "$text" "$policy, $kind" 'half as much memory again' "$name-pool" --device-memory $((pool * 3 / 2))KiB
      run "$name-page" "$shape" "$policy" "$rate" "$pool" 128KiB --record "$work/$name-page.record"
      told "$name" "$text" "$policy, $kind" 'pages twice as large' "$name-page" --page-size 128KiB
    done
  done
done

# With and without, in turn, a tiny model as fast as this machine computes: there are most steps a second then.
: > "$work/costs"
tiny=$(checkpoint opt-tiny-a)
run_plain() {
  local name=$work/$1
  rm -f "$name".*
  mpirun -n 1 "$program" serve --device cpu --threads 1 --coded off --model "a=$tiny" --requests "$work/many.jsonl" \
    --output "$name.jsonl" --metrics "$name.json" --device-memory 256MiB --max-seqs 4 "${@:2}" 2> "$name.log"
}
"$program" workload --models a --rates 50 --duration 10 --seed 2 --prompt-tokens 16 --max-tokens 64 --vocab 64 > "$work/many.jsonl"
run_plain warm-up
for ((pair = 0; pair < costs; ++pair)); do
  run_plain without
  run_plain with --record "$work/with.record"
  echo "$(figure without .wall_s) $(figure with .wall_s) $(figure with .steps.count) $(stat -c %s "$work/with.record")" \
    "$(sed -n 's/.*for which rank 0 took \([0-9.]*\) ms.*/\1/p' "$work/with.log")" >> "$work/costs"
done

{
  echo "# Record: $cpu, $cores cores"
  echo
  made_by record
  echo "Two ranks, three models of $kib KiB of which two fit, links of $rate GB/s and processors of $gflops Gflop/s, both"
  echo "emulated; $requests requests for each model, all known at once or arriving. Wall s, mean latency s. Machine load: one-minute average before"
  echo "$before, after $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  printf '\n## Played again as it was\n\n'
  echo "| ranks | requests | recorded | the same steps | decided again |"
  echo "|---|---|---|---|---|"
  cat "$work/own.md"
  printf '\n## What if, beside runs that had it\n\n'
  echo "| ranks | requests | what if | recorded | run that had it | the same steps | decided again |"
  echo "|---|---|---|---|---|---|---|"
  cat "$work/told.md"
  printf '\n## What recording costs\n\n'
  awk "$awk_functions"'
    { without[NR] = $1; with[NR] = $2; ratio[NR] = $2 / $1; took[NR] = $5 / $2 / 10; us[NR] = 1e3 * $5 / $3; steps = $3; bytes = $4 }
    END {
      printf "One tiny model on one rank, no emulation, %d steps: %.3f s without, %.3f s with a record (medians of %d pairs in turn); with ÷ without\n", \
        steps, median(without, NR), median(with, NR), NR
      m = median(ratio, NR)
      printf "%.4f (%.4f–%.4f). The record has %d bytes, %.0f a step.\n", m, ratio[1], ratio[NR], bytes, bytes / steps
      printf "Of the wall rank 0 spends %.3f %% on it by its own count, %.2f us a step, requests included.\n", median(took, NR), median(us, NR)
    }' "$work/costs"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
