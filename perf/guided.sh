#!/usr/bin/env bash
# What guiding answers costs beside a decode step (perf/README.md, "Guided"): writes perf/results/guided-MACHINE.md.
# Ends with 1 when a target is missed.
#
#   perf/guided.sh FOLDER [MACHINE]     FOLDER has the files of a tokenizer of some 128,000 tokens
#
# STEP_MS   a decode step of eight sequences (52.3: Llama 3.2 1B, results/peers-amd-epyc-2-cores.md)
# BUILD     folder of perf_guided (build/release)
# NOTE      a line for the result file, such as where the tokenizer comes from
# A few seconds.
set -euo pipefail
folder=$(realpath "$1")
shift
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

build=${BUILD:-build/release}
result=perf/results/guided-$machine.md
mkdir -p perf/results
before=$(load)
met=0
table=$("$build/perf_guided" "$folder" tests/fixtures/guided/schemas.jsonl "${STEP_MS:-52.3}") || met=1
{
  echo "# What guiding answers costs: $cpu, $cores cores"
  echo
  made_by guided
  echo "Machine load: $before before, $(load) after; times are the thread's own."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$table"
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
exit "$met"
