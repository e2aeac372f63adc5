#!/usr/bin/env bash
# How near the GEMM kernels of this CPU are to what memory and multipliers allow (perf/README.md, "Gemm"): writes
# perf/results/gemm-MACHINE.md.
#
#   perf/gemm.sh [MACHINE]
#
# ROUNDS    (5)
# MIB       of weights of each type (512)
# BUILD     folder of perf_gemm (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# About a minute; 1 GiB of memory. COMPUTRON_MAX_ISA=avx2 and so on stands for a processor with narrower vectors.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

result=perf/results/gemm-$machine.md
mkdir -p perf/results
before=$(load)
table=$("${BUILD:-build/release}/perf_gemm" "${ROUNDS:-5}" "${MIB:-512}")
{
  echo "# GEMM kernels: $cpu, $cores cores"
  echo
  made_by gemm
  echo "Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "$table"
} > "$result"
echo "$result"
