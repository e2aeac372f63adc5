#!/usr/bin/env bash
# How small coded pages of weights become and how fast they are decoded (perf/README.md, "Coded"): writes
# perf/results/coded-MACHINE.md. Ends with 1 when a target is missed.
#
#   perf/coded.sh [MACHINE]
#
# ROUNDS    of measuring, of each kind of weights (200)
# BUILD     folder of perf_coded (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# About half a minute; 1 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

build=${BUILD:-build/release}
result=perf/results/coded-$machine.md
mkdir -p perf/results
before=$(load)
met=0
table=$("$build/perf_coded" "${ROUNDS:-200}" inputs/trained/{base,manual,python,licence}) || met=1
{
  echo "# Coded pages: $cpu, one thread"
  echo
  made_by coded
  echo "Machine of $cores cores; its load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$table"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
exit "$met"
