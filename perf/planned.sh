#!/usr/bin/env bash
# Planned placements in real time, beside what was predicted of them and beside placements that need no plan
# (perf/README.md, "Planned"): four ranks with emulated links and processors. Writes perf/results/planned-MACHINE.md.
#
#   perf/planned.sh [--quick] [MACHINE]     --quick: a tenth of the time, for a test of this script
#
# WORKLOADS  of those in perf/README.md                          (bursts sizes known mixed-bursts mixed-latency mixed-known)
# REQUEST_S  of a request for a small model on one processor     (0.1)
# DURATION   seconds in which requests arrive                    (40)
# REQUESTS   that are known                                      (240)
# REPEATS    rounds, each with requests of its own               (3)
# BUILD      folder of computron and computron_injected          (build/release)
# LAUNCH     what starts the ranks, such as "chrt -r 1" where other work keeps the cores busy
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       models and raw figures                              (build/perf/planned)
# Three quarters of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

quick=
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
work=${WORK:-build/perf/planned}
build=${BUILD:-build/release}
PROGRAM=$build/computron
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq
injected=$build/computron_injected
workloads=${WORKLOADS:-bursts sizes known mixed-bursts mixed-latency mixed-known}
request_s=${REQUEST_S:-${quick:+0.02}}
request_s=${request_s:-0.1}
duration=${DURATION:-${quick:+2}}
duration=${duration:-40}
repeats=${REPEATS:-${quick:+1}}
repeats=${repeats:-3}
overheads=2:1.36,4:1.49  # of tp 2 and 4, as AlpaServe measured them on V100s
page_kib=64
result=perf/results/planned-$machine.md
emulated=(--device cpu --threads 1 --page-size "${page_kib}KiB" --idle sleep:200 --verify-swap off --coded off
  --reproducible --inject-overheads "$overheads")
mkdir -p "$work" perf/results

# model NAME LAYERS: 6 x 256 x 256 weights a layer, and hardly anything else.
model() {
  cat > "$work/$1.json" <<JSON
{"model_type": "opt", "hidden_size": 256, "num_hidden_layers": $2, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 256, "do_layer_norm_before": true}
JSON
  [ -e "$work/$1.h5" ] || "$program" init "$work/$1.h5" --config "$work/$1.json" --dtype f32 --seed 1 >&2
}
model small 4
model large 12
model huge 24
# A pass of one row: two operations a value of a weight of four bytes.
gflops=$(calculate '4 * 6 * 256 * 256 * 2 / s / 1e9' "s=$request_s")

# workload NAME: the models of a job, what asks for them and what counts, in: sizes (layers of each model), shares,
# cv, rate (requests a second of all), memory (KiB of a rank), slo, slo_scale, objective, placements, passes (that a
# model's transfer takes as long as) and seqs (of a model at a time: stages of a pipeline work on several).
workload() {
  sizes=() shares=() cv=1 rate=0 slo='' slo_scale='' known='' passes=1 seqs=1 placements="planned 4x1 2x2 1x1s round-robin"
  case $1 in
    # Twelve equal models, of which a rank holds two, called in bursts, some far more than others.
    bursts) sizes=(small small small small small small small small small small small small)
      shares=(8 6 4 3 2 2 1 1 1 1 1 1) cv=4 rate=$(calculate '0.35 * 4 / s' "s=$request_s")
      slo=$(calculate '5 * s' "s=$request_s") objective=attainment memory=$((2 * 6 * 1024 + 2 * 1024 + 512))
      placements="planned static 4x1 2x2 1x1s round-robin" ;;
    # Two large models among six small ones, which all fit on four ranks, no two large ones on one.
    sizes) sizes=(large small small small large small small small) shares=(1 3 3 3 1 3 3 3)
      rate=$(calculate '0.4 * 4 / (1.2 * s)' "s=$request_s") objective=latency memory=$((18 * 1024 + 6 * 1024)) ;;
    # All there from the start: a few models have most of the requests.
    known) sizes=(small large small small large small) known=${quick:+30} objective=makespan
      memory=$((18 * 1024 + 4 * 1024)) ;;
    # A model that no rank can hold, with four tenths of the work, among six small ones, of which a rank holds four.
    mixed-*) sizes=(small small huge small small small small) shares=(3 3 2 3 3 3 3) passes=4 seqs=8
      memory=$((4 * 6 * 1024 + 4 * 1024)) rate=$(calculate '0.5 * 4 / (1.5 * s)' "s=$request_s") ;;&
    mixed-bursts) cv=3 slo_scale=5 objective=attainment ;;
    mixed-latency) objective=latency ;;
    mixed-known) shares=() rate=0 known=${quick:+30} objective=makespan ;;
    *) echo "planned.sh: no workload '$1'" >&2; exit 64 ;;
  esac
  link=$(calculate 'bytes / (passes * s) / 1e9' "bytes=$((4 * 6 * 256 * 256 * 4))" "passes=$passes" "s=$request_s")
  ids=()
  models=()
  for m in "${!sizes[@]}"; do
    ids+=("m$m")
    models+=(--model "m$m=$work/${sizes[m]}.h5")
  done
  if [ "$objective" = makespan ]; then known=${known:-${REQUESTS:-240}}; fi
  total=0
  for share in "${shares[@]}"; do total=$((total + share)); done
  # Of a job, of one that is simulated, and of both.
  local both=(--link-gbps "$link" --device-memory "${memory}KiB" --host-cache 0 --max-batch-tokens 1 --max-seqs "$seqs")
  if [ -n "$known" ]; then both+=(--policy throughput); else both+=(--policy balanced --replay); fi
  if [ -n "$slo" ]; then both+=(--slo "$slo"); fi
  if [ "$objective" = attainment ]; then both+=(--on-late reject); fi
  job=("${emulated[@]}" "${both[@]}")
  simulated=("${both[@]}" ${slo_scale:+--slo-scale "$slo_scale"} --page-size "${page_kib}KiB" --coarse 0)
}
# Requests of each model, of those that are known: shares of 1, 1/2, 1/3, ..., as `computron plan --known --skew 1` has them.
known_counts() {
  awk -v total="$known" -v models="${#ids[@]}" 'BEGIN {
    for (m = 1; m <= models; ++m) all += 1 / m
    for (m = 1; m <= models; ++m) { exact = total / m / all; count[m] = int(exact); rest[m] = exact - count[m]; left += rest[m] }
    for (left = int(left + 0.5); left > 0; --left) {
      best = 1
      for (m = 2; m <= models; ++m) if (rest[m] > rest[best]) best = m
      ++count[best]; rest[best] = -1
    }
    for (m = 1; m <= models; ++m) print count[m]
  }'
}
# rate_of M: requests a second.
rate_of() { calculate 'rate * share / total' "rate=$rate" "share=${shares[$1]}" "total=$total"; }

launch() { # RANKS COMMAND...
  # shellcheck disable=SC2086
  mpirun -n "$1" ${LAUNCH:-} "${@:2}"
}

# requests NAME SEED: $work/NAME.jsonl.
requests() {
  local m i counts
  if [ -n "$known" ]; then
    mapfile -t counts < <(known_counts)
    for m in "${!ids[@]}"; do
      for ((i = 0; i < counts[m]; ++i)); do
        printf '{"custom_id": "%s-%s", "method": "POST", "url": "/v1/completions", "body": {"model": "%s", "prompt": [%s], "max_tokens": 1}}\n' \
          "${ids[m]}" "$i" "${ids[m]}" $((4 + i % 100))
      done
    done | shuf --random-source=<(yes "$2") > "$work/$1.jsonl"
    return
  fi
  local rates=()
  for m in "${!ids[@]}"; do rates+=(--model "${ids[m]}=$(rate_of "$m")"); done
  "$program" workload "${rates[@]}" --cv "$cv" --duration "$duration" --seed "$2" --prompt-tokens 1 --max-tokens 1 \
    --vocab 128 --output "$work/$1.jsonl" >&2
  [ -n "$slo_scale" ] || return 0
  # Each model's own deadline: so many times what a request takes alone on one rank.
  jq -c --argjson scale "$slo_scale" --argjson s "$request_s" --argjson layers '{"small": 4, "large": 12, "huge": 24}' \
    '($ARGS.positional[.body.model[1:] | tonumber]) as $size | .deadline = $scale * $s * $layers[$size] / 4' \
    "$work/$1.jsonl" --args "${sizes[@]}" > "$work/$1-due.jsonl"
  mv "$work/$1-due.jsonl" "$work/$1.jsonl"
}

# plan NAME SWAP: $work/NAME.json.
plan() {
  local options=(--ranks 4 --device-memory "${memory}KiB" --objective "$objective"
    --swap "$2" --replicas any --prompt-tokens 1 --max-tokens 1 --max-seqs "$seqs"
    --max-batch-tokens 1 --quiet) m
  [ "$2" = off ] || options+=(--link-gbps "$link" --page-size "${page_kib}KiB")
  [ -z "$slo" ] || options+=(--slo "$slo")
  [ -z "$slo_scale" ] || options+=(--slo-scale "$slo_scale")
  if [ -n "$known" ]; then
    options+=(--known "$known" --skew 1)
  else
    for m in "${!ids[@]}"; do options+=(--model "${ids[m]}=$(rate_of "$m")"); done
    options+=(--cv "$cv" --duration "$((quick ? 60 : 600))")
  fi
  "$program" plan "$work/$w-profiles.json" "${options[@]}" --output "$work/$1.json" > "$work/$1.txt"
}

# round_robin FILE: models in turn to four groups of one rank.
round_robin() {
  local g m list
  {
    echo '{"groups": ['
    for g in 0 1 2 3; do
      list=
      for ((m = g; m < ${#ids[@]}; m += 4)); do list+="${list:+, }\"${ids[m]}\""; done
      echo "{\"models\": [$list]}$([ "$g" = 3 ] || echo ,)"
    done
    echo ']}'
  } > "$1"
}

mesh_of() { # PLACEMENT_NAME: options of serve
  case $1 in
    4x1) echo --tp 4 --pp 1 ;;
    2x2) echo --tp 2 --pp 2 ;;
    1x1s) echo --groups 4 --tp 1 --pp 1 ;;
    *) echo --placement "$work/$w-$1.json" ;;
  esac
}
# placed PLACEMENT_NAME: the ids of the models that it serves, one a line.
placed() {
  if [ -e "$work/$w-$1.json" ]; then jq -r '[.groups[].models[]] | unique[]' "$work/$w-$1.json"; else printf '%s\n' "${ids[@]}"; fi
}

# real PLACEMENT_NAME ROUND: a line of figures: attainment, mean latency of what was served, makespan. What is asked of
# models that are in no group is asked of nobody, and not in time.
real() {
  local name=$work/$w-$1-$2 served=() id
  rm -f "$name".*
  for id in $(placed "$1"); do served+=(--model "$id=$work/${sizes[${id#m}]}.h5"); done
  jq -c --arg placed "$(placed "$1")" '.body.model as $model | select($placed | split("\n") | index($model))' \
    "$work/$w-requests-$2.jsonl" > "$name-requests.jsonl"
  # shellcheck disable=SC2046
  launch 4 "$injected" serve "${served[@]}" --model-pages private "${job[@]}" $(mesh_of "$1") --profiles "$work/$w-profiles.json" \
    --inject-gflops "$gflops" \
    --requests "$name-requests.jsonl" --output "$name.jsonl" --metrics "$name.json" --quiet 2> "$name.log" ||
    { cat "$name.log" >&2; return 1; }
  jq -r --argjson total "$(wc -l < "$work/$w-requests-$2.jsonl")" --arg objective "$objective" \
    'if $objective == "attainment" then .deadlines.met else .requests.ok end | . / $total' "$name.json"
  jq -r '.latency_s.mean, .wall_s' "$name.json"
}

# predicted PLACEMENT_NAME ROUND: the same of the same requests, in virtual time.
predicted() {
  local name=$work/$w-$1-$2-predicted
  # shellcheck disable=SC2046
  "$program" simulate "$work/$w-profiles.json" $(mesh_of "$1") --requests "$work/$w-requests-$2.jsonl" \
    "${simulated[@]}" --quiet --json "$name.json" > "$name.txt"
  jq -r '.predicted | .attainment, .mean_latency_s, .makespan_s' "$name.json"
}

# Profiles of every shape on the emulated machine, a plan with swapping and one without, and the requests.
prepare() {
  local round
  launch 4 "$injected" profile "${models[@]}" "${emulated[@]}" --link-gbps "$link" --device-memory "${memory}KiB" \
    --max-batch-tokens 1 --max-seqs "$seqs" --prompt-tokens 1 --max-tokens 1 --inject-gflops "$gflops" \
    --output "$work/$w-profiles.json" > "$work/$w-profile.log" 2>&1 ||
    { cat "$work/$w-profile.log" >&2; return 1; }
  plan "$w-planned" on
  plan "$w-static" off
  round_robin "$work/$w-round-robin.json"
  for ((round = 1; round <= repeats; ++round)); do requests "$w-requests-$round" $((100 * round)); done
}

rows=$work/rows.txt
: > "$rows"
load_before=$(load)
for w in $workloads; do
  workload "$w"
  prepare
  for ((round = 1; round <= repeats; ++round)); do
    for placement in $placements; do
      echo "planned.sh: $w, $placement, round $round" >&2
      measured=$(real "$placement" "$round")
      said=$(predicted "$placement" "$round")
      # shellcheck disable=SC2086
      echo "$w" "$objective" "$placement" "$round" $measured $said >> "$rows"
    done
  done
done

{
  echo "# Planned: $cpu, $cores cores"
  echo
  made_by planned
  echo
  echo "Four ranks with links and processors of $gflops Gflop/s, both emulated; a request for a small model"
  echo "takes $request_s s on one of them, $duration s of requests ($repeats rounds, each with requests of its own; medians, in"
  echo "brackets least and most). Seconds but for attainments. Machine load: one-minute average before $load_before, after $(load)."
  if [ -n "${NOTE:-}" ]; then echo; echo "**$NOTE**"; fi
  for w in $workloads; do
    echo
    workload "$w"
    awk -v workload="$w" -v link="$link" "$awk_functions"'
      function figure(values, name, count,    i, x) {
        for (i = 1; i <= count; ++i) x[i] = values[name, i]
        x[0] = median(x, count)  # sorts
        return sprintf("%.4g [%.4g-%.4g]", x[0], x[1], x[count])
      }
      function middle(values, name, count,    i, x) {
        for (i = 1; i <= count; ++i) x[i] = values[name, i]
        return median(x, count)
      }
      $1 == workload {
        if (!($3 in rounds)) names[++placements] = $3
        i = ++rounds[$3]
        counts = $2
        at = $2 == "attainment" ? 0 : $2 == "latency" ? 1 : 2
        attained[$3, i] = $5; said_attained[$3, i] = $8
        late[$3, i] = $6; said_late[$3, i] = $9
        ends[$3, i] = $7; said_ends[$3, i] = $10
        counted[$3, i] = $(5 + at)
        points[$3, i] = 100 * ($5 - $8); of_late[$3, i] = $6 / $9; of_ends[$3, i] = $7 / $10
      }
      END {
        print "## " workload ": what counts is " (counts == "attainment" ? "attainment" : counts == "latency" ? "mean latency" : "makespan")
        printf "\nLinks of %.4g GB/s.\n\n", link
        head("placement|attainment|predicted|points|mean latency|predicted|ratio|makespan|predicted|ratio")
        for (p = 1; p <= placements; ++p) {
          n = names[p]; c = rounds[n]
          printf "| %s | %s | %.4g | %+.1f | %s | %.4g | %.3f | %s | %.4g | %.3f |\n", n, figure(attained, n, c),
            middle(said_attained, n, c), middle(points, n, c), figure(late, n, c), middle(said_late, n, c),
            middle(of_late, n, c), figure(ends, n, c), middle(said_ends, n, c), middle(of_ends, n, c)
        }
        # Round by round against the best of those that need no plan, by the median.
        for (p = 1; p <= placements; ++p) {
          n = names[p]
          if (n == "planned" || n == "static") continue
          value = middle(counted, n, rounds[n])
          if (best == "" || (counts == "attainment" ? value > best_value : value < best_value)) { best = n; best_value = value }
        }
        for (i = 1; i <= rounds["planned"]; ++i) {
          better[i] = 100 * (counts == "attainment" ? counted["planned", i] / counted[best, i] - 1 : 1 - counted["planned", i] / counted[best, i])
          if ("static" in rounds) static[i] = 100 * (counted["planned", i] / counted["static", i] - 1)
        }
        printf "\nPlanned is **%+.1f %%** better than the best fixed placement, %s", median(better, rounds["planned"]), best
        if ("static" in rounds) printf ", and **%+.1f %%** better than the plan without swapping", median(static, rounds["planned"])
        print "."
      }' "$rows"
    echo
    sed -n '/^group/,/^$/{/^$/!p}' "$work/$w-planned.txt" | sed 's/^/    /'
  done
} > "$result"
echo "$result" >&2
