#!/usr/bin/env bash
# What a step costs beside its computation (perf/README.md, "Step"): computron bench step at 1, 2 and 4 ranks with 1, 64
# and 512 sequences. Writes perf/results/step-MACHINE.md.
#
#   perf/step.sh [MACHINE]
#
# REPEATS   runs of each mesh, in turns; medians      (5)
# PROGRAM   computron                                 (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      raw figures                               (build/perf/step)
# About two minutes. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

repeats=${REPEATS:-5}
work=${WORK:-build/perf/step}
result=perf/results/step-$machine.md
meshes='1x1 2x1 1x2 4x1 2x2'
mkdir -p "$work" perf/results

before=$(load)
for ((run = 1; run <= repeats; ++run)); do
  for mesh in $meshes; do
    echo "step.sh: $mesh, run $run" >&2
    mpirun -n $((${mesh%x*} * ${mesh#*x})) "$program" bench step --quiet --tp "${mesh%x*}" --pp "${mesh#*x}" \
      --json "$work/$mesh-$run.json" > /dev/null
  done
done

# median_of MESH ROW KEY
median_of() {
  for ((run = 1; run <= repeats; ++run)); do jq ".rows[$2].$3" "$work/$1-$run.json"; done | median
}

{
  echo "# A step's cost: $cpu, $cores cores"
  echo
  made_by step
  echo "Medians of $repeats runs in turns, microseconds. Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "| tp × pp | sequences | wall | compute | overhead | rank 0's own | bare exchange | target |"
  echo "|---|---|---|---|---|---|---|---|"
  for mesh in $meshes; do
    for row in 0 1 2; do
      overhead=$(median_of "$mesh" "$row" overhead_us)
      target=
      if [ "$mesh:$row" = 1x1:1 ]; then
        target=$(awk -v us="$overhead" 'BEGIN { print us <= 50 ? "met" : "missed" }')
      fi
      printf '| %s | %s | %.0f | %.0f | %.1f | %.1f | %.1f | %s |\n' "${mesh/x/ × }" \
        "$(jq ".rows[$row].sequences" "$work/$mesh-1.json")" "$(median_of "$mesh" "$row" wall_us)" \
        "$(median_of "$mesh" "$row" compute_us)" "$overhead" "$(median_of "$mesh" "$row" own_us)" \
        "$(median_of "$mesh" "$row" exchange_us)" "$target"
    done
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
