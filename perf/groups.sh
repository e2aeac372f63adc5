#!/usr/bin/env bash
# One large mesh or many small groups, for requests that are known and for requests that arrive (perf/README.md,
# "Groups"): four ranks with emulated links and processors, eight equal models, room for five. Writes
# perf/results/groups-MACHINE.md.
#
#   perf/groups.sh [--quick] [MACHINE]     --quick: a round of one ratio at a tenth of the time, for a test of this script
#
# SHAPES     GROUPSxTPxPP                                        (1x4x1 1x2x2 2x2x1 4x1x1)
# RATIOS     compute of a model's known requests ÷ its transfer  (0.5 1 2)
# CVS        of arriving requests                                (1 4)
# REQUEST_S  of a request on one emulated processor              (0.15)
# DURATION   seconds in which requests arrive                    (6)
# REPEATS    rounds                                              (3)
# BUILD      folder of computron and perf_groups                 (build/release)
# LAUNCH     what starts the ranks, such as "chrt -r 1" where other work keeps the cores busy
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       model and raw figures                               (build/perf/groups)
# Twenty minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

quick=
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
work=${WORK:-build/perf/groups}
build=${BUILD:-build/release}
PROGRAM=$build/computron
# shellcheck source=perf/common.sh
. perf/common.sh
# shellcheck source=perf/emulated.sh
. perf/emulated.sh

shapes=${SHAPES:-1x4x1 1x2x2 2x2x1 4x1x1}
ratios=${RATIOS:-${quick:+1}}
ratios=${ratios:-0.5 1 2}
cvs=${CVS:-1 4}
request_s=${REQUEST_S:-${quick:+0.02}}
request_s=${request_s:-0.15}
duration=${DURATION:-${quick:+1}}
duration=${duration:-6}
repeats=${REPEATS:-${quick:+1}}
repeats=${repeats:-3}
known=8      # requests for each model
load=0.3     # of the four processors, of requests that arrive
sweep="0.125 0.25 0.5 1 2 4 8 16"  # ratios, in virtual time alone
overheads="1 1.1 1.25 1.5 2 3"     # what a rank of a mesh takes ÷ its share of what one processor takes
sweep_s=${quick:+2}
sweep_s=${sweep_s:-150}  # in which requests arrive, three times
alone=4x1x1        # the shape that nothing is shared in, so that it has no overhead
result=perf/results/groups-$machine.md
emulated_model

models=()
for m in 0 1 2 3 4 5 6 7; do models+=(--model "m$m=$model"); done
gflops=$(gflops_for "$request_s")
rate=$(calculate "$load * 4 / 8 / request_s" "request_s=$request_s")
rates=$rate,$rate,$rate,$rate,$rate,$rate,$rate,$rate
pool=$((model_pages * 5 / 4 + 8))  # pages: five models on four ranks, and caches
gbps_for() { calculate 'bytes / (known * request_s / ratio) / 1e9' "bytes=$model_bytes" "known=$known" "request_s=$request_s" "ratio=$1"; }

# serve_groups SHAPE KIND ARGUMENTS...: heads and figures. KIND: known, or the coefficient of variation of arrivals.
serve_groups() {
  local shape=$1 kind=$2 groups tp pp requests
  IFS=x read -r groups tp pp <<< "$shape"
  requests=(--rates "$rates" --cv "$kind" --policy balanced)
  [ "$kind" != known ] || requests=(--known "$known" --policy throughput)
  perf_groups 4 "${models[@]}" --groups "$groups" --tp "$tp" --pp "$pp" --gflops "$gflops" \
    --max-seqs 4 --device-memory "$((pool * page_kib))KiB" "${requests[@]}" "${emulated[@]}" "${@:3}"
}

# Each line of the program's under `heads` and behind `values`.
keep() { sed "1s/^/$1,/; 2,\$s/^/$2,/"; }

before=$(load)
: > "$work/groups.csv"
for ((round = 1; round <= repeats; ++round)); do
  for kind in known $cvs; do
    for ratio in $ratios; do
      for shape in $shapes; do
        echo "groups.sh: round $round of $repeats: $kind, $ratio, $shape" >&2
        before_one=$(load)
        serve_groups "$shape" "$kind" --link-gbps "$(gbps_for "$ratio")" --duration "$duration" --seed "$round" |
          keep load_before,round,kind,ratio,shape "$before_one,$round,$kind,$ratio,$shape" >> "$work/groups.csv"
      done
    done
  done
done

# The same in virtual time, for many ratios and overheads: where the best shape changes.
: > "$work/sweep.csv"
links=$(for ratio in $sweep; do gbps_for "$ratio"; done | paste -sd ,)
for kind in known $cvs; do
  for shape in $shapes; do
    for overhead in $overheads; do
      [ "$shape" != "$alone" ] || [ "$overhead" = 1 ] || continue
      echo "groups.sh: virtual time: $kind, $shape, overhead $overhead" >&2
      serve_groups "$shape" "$kind" --only-virtual --virtual-gbps "$links" --duration "$sweep_s" --seed 1 \
        --seeds "$([ "$kind" = known ] && echo 1 || echo 3)" --overhead "$overhead" |
        keep kind,shape,overhead "$kind,$shape,$overhead" >> "$work/sweep.csv"
    done
  done
done

rows() {
  awk -F , -v wanted="$1" "$awk_functions"'
    function at(key) { return $(column[key]) }
    function spread(x, count,    m) {
      m = median(x, count)
      return count < 2 ? sprintf("%.2f", m) : sprintf("%.2f (%.2f–%.2f)", m, x[1], x[count])
    }
    function verdict(key, ratio) {
      if (key !~ /^known/) return "–"
      if (best[case_of[key]] != key) return "not the best"
      return ratio <= 1.07 ? "met" : "missed"
    }
    BEGIN {
      head("requests|compute ÷ transfer|groups x tp x pp|" (wanted == "known" ? "wall s" : "mean latency s") \
        "|bound s|÷ bound|virtual s|÷ virtual|swaps|bytes moved ÷ all models|" \
        (wanted == "known" ? "" : "p99 s|") "pass ÷ nominal|own CPU ÷ passes|cores a rank|exposed s|target|machine load")
    }
    $1 == "load_before" { for (i = 1; i <= NF; ++i) column[$i] = i; next }
    (wanted == "known") == (at("kind") == "known") {
      key = at("kind") " " at("ratio") " " at("shape")
      if (!(key in count)) order[++keys] = key
      n = ++count[key]
      kind[key] = at("kind"); ratio_of[key] = at("ratio"); shape[key] = at("shape")
      case_of[key] = at("kind") " " at("ratio")
      real[key, n] = at("real_s"); bound[key, n] = at("bound_s"); planned[key, n] = at("virtual_s")
      swaps[key, n] = at("real_swaps"); moved[key, n] = at("real_bytes") / (8 * bytes)
      pass[key, n] = at("pass_ratio"); pass_cpu[key, n] = at("pass_cpu"); cpu[key, n] = at("cpu")
      exposed[key, n] = at("exposed_s"); p99[key, n] = at("real_p99_s")
      low[key] = n == 1 ? at("load_before") : min(low[key], at("load_before"))
      high[key] = max(high[key], at("load_before"))
    }
    function of(values, key,    i) { for (i = 1; i <= count[key]; ++i) x[i] = values[key, i]; return median(x, count[key]) }
    function over(values, key,    i) {
      for (i = 1; i <= count[key]; ++i) x[i] = real[key, i] / values[key, i]
      return median(x, count[key])
    }
    END {
      for (k = 1; k <= keys; ++k) {
        key = order[k]; m = of(real, key)
        if (!(case_of[key] in best) || m < of(real, best[case_of[key]])) best[case_of[key]] = key
      }
      for (k = 1; k <= keys; ++k) {
        key = order[k]
        printf "| %s | %s | %s ", kind[key] == "known" ? "known" : "cv " kind[key], ratio_of[key], shape[key]
        m = of(real, key)
        printf best[case_of[key]] == key ? "| **%s** " : "| %s ", spread(x, count[key])
        printf "| %.2f ", of(bound, key)
        r = over(bound, key)
        printf "| %.3f (%.3f–%.3f) ", r, x[1], x[count[key]]
        printf "| %.2f | %.3f | %d | %.2f ", of(planned, key), over(planned, key), of(swaps, key), of(moved, key)
        if (wanted != "known") printf "| %.2f ", of(p99, key)
        printf "| %.3f | %.2f | %.2f | %.2f ", of(pass, key), of(pass_cpu, key), of(cpu, key), of(exposed, key)
        printf "| %s | %s–%s |\n", verdict(key, r), low[key], high[key]
      }
    }' bytes="$model_bytes" "$work/groups.csv"
}

# A line a ratio: each shape without overhead, and the overhead at which it takes as long as groups of one rank, by
# straight lines in logarithms.
crossovers() {
  awk -F , "$awk_functions"'
    function at(key) { return $(column[key]) }
    function crossing(shape, k,    i, before, now) {
      for (i = 1; i <= overheads; ++i) {
        now = log(s[k, shape, i] / s[k, alone, 1])
        if (now >= 0) return i == 1 ? "none" : sprintf("%.2f", exp(log(overhead[i - 1]) + \
          (log(overhead[i]) - log(overhead[i - 1])) * before / (before - now)))
        before = now
      }
      return "> " overhead[overheads]
    }
    # With an overhead between two that were run.
    function seconds(shape, k, with,    i, part) {
      if (shape == alone) return s[k, alone, 1]
      for (i = 2; i < overheads && overhead[i] < with; ++i) {}
      part = (log(with) - log(overhead[i - 1])) / (log(overhead[i]) - log(overhead[i - 1]))
      return exp((1 - part) * log(s[k, shape, i - 1]) + part * log(s[k, shape, i]))
    }
    # By which overhead: 1, or those of V100s (AlpaServe, OSDI 2023): of tp 4 and of tp 2.
    function of_shape(shape, v100) { return !v100 ? 1 : shape ~ /x4x/ ? 1.49 : 1.36 }
    function time(shape, k, v100) { return seconds(shape, k, of_shape(shape, v100)) }
    function best_of(k, v100,    a, best) {
      best = name[1]
      for (a = 2; a <= shapes; ++a) if (time(name[a], k, v100) < time(best, k, v100)) best = name[a]
      return best
    }
    # In which order the best shapes come as the ratio grows, and where they change.
    function changes(v100,    k, old, new, u, v, text) {
      old = best_of(1, v100)
      text = old
      for (k = 2; k <= ratios; ++k) {
        new = best_of(k, v100)
        if (new == old) continue
        u = log(time(old, k - 1, v100) / time(new, k - 1, v100)); v = log(time(old, k, v100) / time(new, k, v100))
        text = text sprintf(" up to a ratio of %.2f, then %s", exp(log(ratio[k - 1]) + log(ratio[k] / ratio[k - 1]) * u / (u - v)), new)
        old = new
      }
      return text
    }
    $1 == "kind" { for (i = 1; i <= NF; ++i) column[$i] = i; next }
    at("kind") == wanted {
      if (at("shape") != last_shape) { last_shape = name[++shapes] = at("shape"); number = 0; last = "" }
      if (at("overhead") != last) { last = overhead[++number] = at("overhead"); k = 0 }
      overheads = max(overheads, number)
      ratio[++k] = known * request_s * at("gbps") * 1e9 / bytes
      s[k, at("shape"), number] = at("virtual_s")
      ratios = max(ratios, k)
    }
    END {
      columns = "compute ÷ transfer"
      for (a = 1; a <= shapes; ++a) columns = columns "|" name[a] ": s"
      for (a = 1; a <= shapes; ++a) if (name[a] != alone) columns = columns "|" name[a] " wins up to overhead"
      head(columns "|best with the overheads of V100s")
      for (k = 1; k <= ratios; ++k) {
        printf "| %.3g ", ratio[k]
        best = s[k, name[1], 1]
        for (a = 2; a <= shapes; ++a) best = min(best, s[k, name[a], 1])
        for (a = 1; a <= shapes; ++a) printf s[k, name[a], 1] == best ? "| **%.3f** " : "| %.3f ", s[k, name[a], 1]
        for (a = 1; a <= shapes; ++a) if (name[a] != alone) printf "| %s ", crossing(name[a], k)
        printf "| %s |\n", best_of(k, 1)
      }
      print "\nBest without overhead: " changes(0) "."
      print "Best with 1.49 at tp 4 and 1.36 at tp 2: " changes(1) "."
    }' wanted="$1" alone="$alone" bytes="$model_bytes" known="$known" request_s="$request_s" "$work/sweep.csv"
}

{
  echo "# Groups: $cpu, $cores cores"
  echo
  made_by groups
  echo "Four ranks, eight equal models of $(calculate 'b / 1e6' "b=$model_bytes") MB, a pool of"
  echo "$((pool * page_kib)) KiB a rank: room for five models together. Emulated links and processors: a request takes"
  echo "$request_s s of one processor. Medians of $repeats rounds, each of all rows in turn and with arrivals of its own; in"
  echo "brackets least and most. Machine load: one-minute average before the first and the last round's run. Before all:"
  echo "$before, after: $(load)."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  printf '\n## All known: %s requests for each model, throughput\n\n' "$known"
  rows known
  printf '\n## Arriving: %s of the processors in use, balanced\n\n' "$load"
  rows arriving
  for kind in known $cvs; do
    if [ "$kind" = known ]; then printf '\n## Virtual time: all known, wall s\n\n'
    else printf '\n## Virtual time: arriving for %s s, cv %s, three seeds, mean latency s\n\n' "$sweep_s" "$kind"; fi
    crossovers "$kind"
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
