#!/usr/bin/env bash
# What a search for a placement costs and finds (perf/README.md, "Placement"): writes perf/results/placement-MACHINE.md.
# Ends with 1 when a target is missed.
#
#   perf/placement.sh [MACHINE]
#
# BUILD     folder of perf_placement (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# Two or three minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

build=${BUILD:-build/release}
result=perf/results/placement-$machine.md
mkdir -p perf/results
before=$(load)
met=0
table=$("$build/perf_placement") || met=1
family=$(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -n 1)
model=$(sed -n 's/^model[^n:]*: //p' /proc/cpuinfo | head -n 1)
vectors=256
if grep -q avx512f /proc/cpuinfo; then vectors=512; fi
{
  echo "# What a search for a placement costs and finds: $cpu, $cores cores"
  echo
  made_by placement
  echo "Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "processor family $family, model $model, vectors of $vectors bits"
  echo
  echo "$table"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
exit "$met"
