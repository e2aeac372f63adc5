#!/usr/bin/env bash
# What a step costs rank 0 of a job of 128 groups of 8 ranks with 1,000 models (perf/README.md, "Rank 0"): writes
# perf/results/rank0-MACHINE.md. Ends with 1 when a target is missed.
#
#   perf/rank0.sh [MACHINE]
#
# STEPS     measured, which the target is for (4000000)
# MORE      measured of each further number of open requests (400000)
# OPEN      requests that are open at any time, over all groups: of the target, and further ones (1000 10000 100000)
# MESH      of a group: TPxPP of 8 ranks (8x1)
# BUILD     folder of perf_rank0 (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# About ten minutes on two cores; 1 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

build=${BUILD:-build/release}
result=perf/results/rank0-$machine.md
mkdir -p perf/results
before=$(load)
read -r -a open <<<"${OPEN:-1000 10000 100000}"
measure() { mpirun -n 9 "$build/perf_rank0" "$1" "${MESH:-8x1}" "$2"; }
met=0
tables=$(measure "${STEPS:-4000000}" "${open[0]}") || met=1
for more in "${open[@]:1}"; do
  tables+=$'\n\n'$(measure "${MORE:-400000}" "$more" | grep -v ^processor) || true  # without a target
done
{
  echo "# What a step costs rank 0: $cpu, $cores cores"
  echo
  made_by rank0
  echo "Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$tables"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
exit "$met"
