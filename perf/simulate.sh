#!/usr/bin/env bash
# What the full simulation costs (perf/README.md, "Simulate"): an hour of 20 requests/s, 256 + 64 tokens each, for 1,000
# models on 1,024 ranks. Writes perf/results/simulate-MACHINE.md. Ends with 1 when a target is missed.
#
#   perf/simulate.sh [MACHINE]
#
# DURATION  seconds of requests             (3600)
# BUILD     folder of computron             (build/release)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      profiles, placement and outputs (build/perf/simulate)
# A few minutes of one core; 1 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=perf/common.sh
. perf/common.sh

duration=${DURATION:-3600}
build=${BUILD:-build/release}
work=${WORK:-build/perf/simulate}
result=perf/results/simulate-$machine.md
limit_s=600
mkdir -p "$work" perf/results

# 1,000 models of 26 GB, each in two of 128 groups of tp 4 x pp 2, whose ranks hold a dozen of their 16.
python3 - "$work" <<'PYTHON'
import json, sys
rows = [2**i for i in range(12)]
passes = [{"rows": r, "stage_s": [0.008 + 3e-5 * r] * 2} for r in rows]
shape = {"tp": 4, "pp": 2, "stage_s": [0.55] * 2, "stage_bytes": [3_250_000_000] * 2, "layers": [20, 20],
         "passes": passes, "cache_token_bytes": [102_400] * 2}
models = [{"id": f"model-{m}", "shapes": [shape]} for m in range(1000)]
machine = {"device_memory": "40GB", "link_gbps": 20, "page_size": "64MiB", "step_latency_s": 2e-5}
groups = [{"tp": 4, "pp": 2, "models": []} for _ in range(128)]
for m in range(1000):
    for group in (m % 128, (m * 7 + 64 + m // 128) % 128):
        names = groups[group]["models"]
        if f"model-{m}" not in names:
            names.append(f"model-{m}")
json.dump({"machine": machine, "models": models}, open(f"{sys.argv[1]}/profiles.json", "w"))
json.dump({"groups": groups}, open(f"{sys.argv[1]}/placement.json", "w"))
PYTHON

before=$(load)
start=$(date +%s.%N)
TIMEFORMAT=%U
for skew in 0 1; do
  { time "$build/computron" simulate "$work/profiles.json" --placement "$work/placement.json" --rate 20 --skew "$skew" \
    --duration "$duration" --prompt-tokens 256 --max-tokens 64 --quiet > "$work/$skew.txt"; } 2> "$work/$skew.processor_s"
done
end=$(date +%s.%N)
{
  echo "# The full simulation: $cpu, $cores cores"
  echo
  made_by simulate
  echo "Machine load: $before before, $(load) after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  echo "1,024 ranks in 128 groups of tp 4 x pp 2, 1,000 models of 26 GB, each in two groups; $duration s of 20 requests/s in"
  echo "all, 256 + 64 tokens each; \`balanced\`, one thread. Target: at most $limit_s s for an hour of them."
  for skew in 0 1; do
    echo
    echo "Skew $skew:"
    echo
    grep -E '^(simulated|simulation|of): ' "$work/$skew.txt" | sed 's/^/    /'
    echo "    processor time: $(tail -n 1 "$work/$skew.processor_s") s"
  done
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
awk -v all="$(echo "$end $start" | awk '{ print $1 - $2 }')" -v limit="$limit_s" -v duration="$duration" \
  'BEGIN { exit all / 2 > limit * duration / 3600 }'
