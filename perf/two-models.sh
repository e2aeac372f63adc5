#!/usr/bin/env bash
# AlpaServe's example of two models on two processors, really served and in virtual time (perf/README.md, "Two models"):
# a group for each, a pipeline of both, replicas of both that swap. Writes perf/results/two-models-MACHINE.md.
#
#   perf/two-models.sh [MACHINE]
#
# REQUEST_S  of a request on one emulated processor   (0.2)
# DURATION   seconds in which requests arrive         (30)
# REPEATS    rounds, each with arrivals of its own     (3)
# BUILD      folder of computron and perf_groups      (build/release)
# LAUNCH     what starts the ranks, such as "chrt -r 1" where other work keeps the cores busy
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       model and raw figures                    (build/perf/groups)
# A quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

work=${WORK:-build/perf/groups}
build=${BUILD:-build/release}
PROGRAM=$build/computron
# shellcheck source=perf/common.sh
. perf/common.sh
# shellcheck source=perf/emulated.sh
. perf/emulated.sh

request_s=${REQUEST_S:-0.2}
duration=${DURATION:-30}
repeats=${REPEATS:-3}
result=perf/results/two-models-$machine.md
load=1.185         # requests of one processor's time that come in that time: their 3 a second of 0.395 s
longest=20000      # seconds of virtual time at 0.395 s a request, as theirs
emulated_model

models=(--model "a=$model" --model "b=$model")
echo '{"groups": [{"models": ["a"]}, {"models": ["b"]}]}' > "$work/dedicated.json"
gflops=$(gflops_for "$request_s")
gbps=$(calculate 'bytes / request_s / 1e9' "bytes=$model_bytes" "request_s=$request_s")
room=$((2 * model_pages + 16)) one=$((model_pages + 8))

# serve_two PLACEMENT RATES CV ARGUMENTS...: heads and figures.
serve_two() {
  local place=("${models[@]}" --gflops "$gflops" --rates "$2" --cv "$3" --max-seqs 4 "${emulated[@]}")
  case $1 in
    dedicated) place+=(--placement "$work/dedicated.json" --policy fifo --device-memory "$((room * page_kib))KiB") ;;
    pipeline) place+=(--tp 1 --pp 2 --policy fifo --device-memory "$((room * page_kib))KiB") ;;
    replicated) place+=(--groups 2 --tp 1 --pp 1 --policy balanced --device-memory "$((one * page_kib))KiB") ;;
  esac
  perf_groups 2 "${place[@]}" "${@:4}"
}
# rates SHARE: of both models, if the first has so much of all requests.
rates() {
  local all
  all=$(calculate "$load / request_s" "request_s=$request_s")
  echo "$(calculate 'share * all' "share=$1" "all=$all"),$(calculate '(1 - share) * all' "share=$1" "all=$all")"
}

before=$(load)
: > "$work/two-models.csv"
: > "$work/long.csv"
for ((round = 1; round <= repeats; ++round)); do
  for arrivals in "Poisson equal:0.5:1" "Poisson 20/80:0.2:1" "cv 3 equal:0.5:3"; do
    IFS=: read -r name share cv <<< "$arrivals"
    for placement in dedicated pipeline replicated; do
      echo "two-models.sh: round $round of $repeats: $placement, $name" >&2
      heads=arrivals,share,placement,load_before values="$name,$share,$placement,$(load)"
      serve_two "$placement" "$(rates "$share")" "$cv" --link-gbps "$gbps" --duration "$duration" --seed "$round" \
        --latencies "$work/latencies-$share-$cv-$placement-$round.csv" |
        sed "1s|^|$heads,|; 2s|^|$values,|" >> "$work/two-models.csv"
      [ "$round" = 1 ] || continue
      serve_two "$placement" "$(rates "$share")" "$cv" --only-virtual --virtual-gbps "$gbps" --seed 1 \
        --duration "$(calculate "$longest * request_s / 0.395" "request_s=$request_s")" |
        sed "1s|^|$heads,|; 2s|^|$values,|" >> "$work/long.csv"
    done
  done
done

{
  echo "# Two models on two processors: $cpu, $cores cores"
  echo
  made_by two-models
  echo "Emulated processors and links: a request takes $request_s s of one processor, a swap as long;"
  echo "requests arrive for $duration s, the same in real and in virtual time. Medians of $repeats rounds, each with arrivals of"
  echo "its own, in brackets least and most. Machine load: one-minute average before the first and the last round's run."
  echo "Before all: $before, after: $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk -F , "$awk_functions"'
    function at(key) { return $(column[key]) }
    function m_d_1(rate, d) { return d + rate * d * d / (2 * (1 - rate * d)) }
    # Closed forms of the queue with one server and equal requests; replicas with swaps, and bursts, have none.
    function formula(    d, r, p) {
      d = at("request_s"); r = '"$load"' / d; p = at("share")
      if (at("cv") != 1 || at("placement") == "replicated") return "–"
      if (at("placement") == "pipeline") return sprintf("%.3f", d / 2 + m_d_1(r, d / 2))
      return sprintf("%.3f", p * m_d_1(p * r, d) + (1 - p) * m_d_1((1 - p) * r, d))
    }
    function of(values, key,    i) { for (i = 1; i <= count[key]; ++i) x[i] = values[key, i]; return median(x, count[key]) }
    function verdict(key, ratio,    place) {
      if (key ~ /20\/80 dedicated/) {
        place = of(between, key)
        return place >= 0 && place <= 1 ? "met" : "missed"
      }
      return ratio >= 0.9 && ratio <= 1.1 ? "met" : "missed"
    }
    BEGIN {
      head("arrivals|placement|requests|real: mean s|p99 s|swaps|virtual: mean s|p99 s|swaps|D less and more by 1 %: ÷ virtual|" \
        "real ÷ virtual|target|pass ÷ nominal|own CPU ÷ passes|20,000 s of theirs, virtual: mean s|formula s|machine load")
    }
    $1 == "arrivals" { for (i = 1; i <= NF; ++i) column[$i] = i; next }
    FILENAME ~ /long/ {
      key = at("arrivals") " " at("placement")
      long[key] = at("virtual_s"); closed[key] = formula()
      next
    }
    {
      key = at("arrivals") " " at("placement")
      n = ++count[key]
      if (n == 1) {
        order[++keys] = key; first[key] = at("arrivals") " | " at("placement"); low[key] = at("load_before")
        if (at("placement") == "dedicated") arrivals[++kinds] = at("arrivals")
      }
      requests[key, n] = at("requests"); real[key, n] = at("real_s"); p99[key, n] = at("real_p99_s")
      swaps[key, n] = at("real_swaps"); planned[key, n] = at("virtual_s"); planned_p99[key, n] = at("virtual_p99_s")
      planned_swaps[key, n] = at("virtual_swaps"); ratio[key, n] = at("real_s") / at("virtual_s")
      less[key, n] = at("virtual_low_s") / at("virtual_s"); more[key, n] = at("virtual_high_s") / at("virtual_s")
      between[key, n] = (at("real_s") - at("virtual_low_s")) / (at("virtual_high_s") - at("virtual_low_s"))
      pass[key, n] = at("pass_ratio"); cpu[key, n] = at("pass_cpu")
      low[key] = min(low[key], at("load_before")); high[key] = max(high[key], at("load_before"))
    }
    END {
      for (k = 1; k <= keys; ++k) {
        key = order[k]
        printf "| %s | %d | %.3f | %.3f | %d ", first[key], of(requests, key), of(real, key), of(p99, key), of(swaps, key)
        printf "| %.3f | %.3f | %d ", of(planned, key), of(planned_p99, key), of(planned_swaps, key)
        printf "| %.3f–%.3f ", of(less, key), of(more, key)
        r = of(ratio, key)
        printf "| %.3f (%.3f–%.3f) | %s ", r, x[1], x[count[key]], verdict(key, r)
        printf "| %.4f | %.2f | %.3f | %s ", of(pass, key), of(cpu, key), long[key], closed[key]
        printf "| %s–%s |\n", low[key], high[key]
      }
      printf "\n"
      head("arrivals|dedicated ÷ pipeline: real|20,000 s of theirs, virtual|their simulator|" \
        "dedicated ÷ replicated: real|20,000 s of theirs, virtual")
      theirs["Poisson equal"] = "1.25"; theirs["Poisson 20/80"] = "7.1"; theirs["cv 3 equal"] = "1.9"
      for (k = 1; k <= kinds; ++k) {
        a = arrivals[k]; d = a " dedicated"; p = a " pipeline"; r = a " replicated"
        printf "| %s | %.2f | %.2f | %s | %.2f | %.2f |\n", a, of(real, d) / of(real, p), long[d] / long[p], theirs[a],
          of(real, d) / of(real, r), long[d] / long[r]
      }
    }' "$work/long.csv" "$work/two-models.csv"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
