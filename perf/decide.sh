#!/usr/bin/env bash
# What a decision of rank 0 costs with 8 models and with 1,000 (perf/README.md, "Decide"): writes
# perf/results/decide-MACHINE.md. Ends with 1 when a target is missed.
#
#   perf/decide.sh [MACHINE]
#
# STEPS     measured of each job (20000)
# BUILD     folder of perf_decide (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# About two minutes; 2 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

build=${BUILD:-build/release}
result=perf/results/decide-$machine.md
mkdir -p perf/results
before=$(load)
met=0
table=$("$build/perf_decide" "${STEPS:-20000}") || met=1
{
  echo "# What a decision costs: $cpu, $cores cores"
  echo
  made_by decide
  echo "Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$table"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
exit "$met"
