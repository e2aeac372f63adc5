#!/usr/bin/env bash
# What a dry run says of a job, by its roofline and by measured profiles, beside what the job takes (perf/README.md,
# "Profile"). Writes perf/results/profile-MACHINE.md.
#
#   perf/profile.sh [MACHINE]
#
# MESHES    TPxPP                            (1x1 2x1)
# REQUESTS  for each of the four models      (24)
# REPEATS   rounds, profiles and all         (5)
# PROGRAM   computron                        (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model, requests and raw figures  (build/perf/profile)
# Ten minutes; 2 GiB of memory. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
work=${WORK:-build/perf/profile}
page_size=2MiB
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

meshes=${MESHES:-1x1 2x1}
requests=${REQUESTS:-24}
repeats=${REPEATS:-5}
result=perf/results/profile-$machine.md
mkdir -p "$work" perf/results

model=$(checkpoint opt-mixed)
models=()
for m in 0 1 2 3; do models+=(--model "m$m=$model"); done
"$program" workload --models m0,m1,m2,m3 --rates 1,1,1,1 --duration $((2 * requests + 50)) --seed 1 --prompt-tokens 8 \
  --max-tokens 4 --vocab 4096 |
  awk -F '"' -v most="$requests" '{ split($4, id, "-"); if (id[2] + 0 < most) print }' > "$work/requests.jsonl"
memory=$(($(stat -c %s "$work/opt-mixed.h5") * 5 / 2))  # two of the four models, and caches

# dry_run MESH ARGUMENTS...: seconds that it says.
dry_run() {
  serve "dry-$1" "$1" "${models[@]}" --device-memory "$memory" --dry-run "${@:2}" > "$work/dry-$1.txt"
  sed -n 's/.* requests (.*) in \([0-9.]*\) s: .*/\1/p' "$work/dry-$1.txt"
}

# measure MESH ROUND: what the formula misses, seconds by roofline, by profiles, served.
measure() {
  local profiles=$work/profiles-$1-$2.json
  mpirun -n $((${1%x*} * ${1#*x})) "$program" profile "${models[@]}" --device cpu --threads 1 --page-size "$page_size" \
    --coded off --device-memory "$memory" --shapes "$1" --prompt-tokens 8 --max-tokens 4 --output "$profiles" > "$work/profile-$1.log" 2>&1 ||
    { cat "$work/profile-$1.log" >&2; return 1; }
  dry_run "$1"
  dry_run "$1" --profiles "$profiles"
  serve "served-$1" "$1" "${models[@]}" --device-memory "$memory" > /dev/null
  figure "served-$1" .wall_s
}

rows=$work/rows.txt
: > "$rows"
before=$(load)
for ((round = 1; round <= repeats; ++round)); do
  for mesh in $meshes; do
    # shellcheck disable=SC2046  # figures in words
    echo "$mesh" $(measure "$mesh" "$round") >> "$rows"
  done
done
{
  echo "# Profile: $cpu, $cores cores"
  echo
  made_by profile
  echo "Four OPT models of hidden size 512 and 12 layers, of which two fit, $requests requests of 8 + 4 tokens for each, all known;"
  echo "policy \`balanced\`. Medians of $repeats rounds, in brackets least and most. Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  awk "$awk_functions"'
    function figure(values, mesh,    i, x, middle) {
      for (i = 1; i <= rounds[mesh]; ++i) x[i] = values[mesh, i]
      middle = median(x, rounds[mesh])
      return sprintf("%.3f [%.3f-%.3f]", middle, x[1], x[rounds[mesh]])
    }
    {
      if (!($1 in rounds)) order[++meshes] = $1
      i = ++rounds[$1]
      roofline[$1, i] = $2; profiled[$1, i] = $3; served[$1, i] = $4
      by_roofline[$1, i] = $4 / $2; by_profile[$1, i] = $4 / $3
    }
    END {
      head("mesh|roofline s|profiles s|served s|served / roofline|served / profiles")
      for (m = 1; m <= meshes; ++m) {
        n = order[m]
        printf "| %s | %s | %s | %s | %s | %s |\n", n, figure(roofline, n), figure(profiled, n), figure(served, n),
          figure(by_roofline, n), figure(by_profile, n)
      }
    }' "$rows"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
