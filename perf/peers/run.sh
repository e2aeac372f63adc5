#!/usr/bin/env bash
# This program beside CTranslate2, llama.cpp and transformers on the same random models (perf/README.md, "Peers").
# Installs the others and makes the models where they are missing. Writes perf/results/peers-MACHINE.{md,csv}.
#
#   perf/peers/run.sh [MACHINE]
#
# COMPUTRON_PEERS  environment of the others, made by perf/peers/setup.sh           (build/peers)
# SHAPES           of the models                                                    (gpt2 llama opt)
# BATCHES          sequences at once                                                (1 8)
# LENGTH, TOKENS   of a prompt, generated                                           (128 64)
# THREADS          of every engine                                                  (all cores)
# ROUNDS           each engine once a round                                         (5)
# ENGINES          to measure: all of one, or as llama.cpp:q8_0                   (all four)
# QUIET            wait up to so many seconds before a run until nothing else runs  (60)
# RETRIES          of a run which others disturbed; the least disturbed one counts  (1)
# LIMIT            seconds after which a run is given up                            (300)
# PROGRAM          computron                                                        (build/release/computron)
# NOTE             a file with lines for the result, such as why another one wins
# WORK             models and raw figures: 40 GB                                    (build/perf/peers)
# 14 GiB of memory. Nothing else should run on the machine meanwhile: engines whose threads spin while they wait for
# each other lose a hundredfold to one busy process, and the comparison would be of that.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

# shellcheck source=perf/common.sh
. perf/common.sh

peers=${COMPUTRON_PEERS:-build/peers}
shapes=${SHAPES:-gpt2 llama opt}
work=${WORK:-build/perf/peers}
export PROGRAM=$program THREADS=${THREADS:-$cores} BATCHES=${BATCHES:-1 8} PYTHONDONTWRITEBYTECODE=1
export LENGTH=${LENGTH:-128} TOKENS=${TOKENS:-64} ROUNDS=${ROUNDS:-5}
export QUIET=${QUIET:-60} RETRIES=${RETRIES:-1} LIMIT=${LIMIT:-300}
export ENGINES=${ENGINES:-computron ctranslate2 llama.cpp transformers}
result=perf/results/peers-$machine
mkdir -p "$work" perf/results

python=$peers/venv/bin/python
imports="import ctranslate2, gguf, llama_cpp, safetensors, torch, transformers"
"$python" -c "$imports" 2>/dev/null || perf/peers/setup.sh >&2

before=$(load)
csvs=()
for shape in $shapes; do
  nice "$python" perf/peers/make_models.py "$shape" "$work/$shape" "$program" >&2
  "$python" perf/peers/measure.py "$shape" "$work/$shape" "$work/$shape.csv"
  csvs+=("$work/$shape.csv")
done
after=$(load)

{
  echo "# Peers: $cpu, $cores cores"
  echo
  made_by peers/run
  echo "Random weights that bfloat16 holds exactly, the same for all; prompts of $LENGTH tokens, $TOKENS generated"
  echo "greedily; $THREADS threads each. Medians of $ROUNDS rounds, in brackets least and most; a ratio is the median"
  echo "of the rounds' ratios. Machine load, the runs themselves included: $before before, $after after."
  echo
  echo "$("$python" perf/peers/versions.py)."
  echo
  "$python" perf/peers/table.py "${csvs[@]}"
  if [ -n "${NOTE:-}" ]; then printf '\n' && cat "$NOTE"; fi
} > "$result.md.partial"
awk 'FNR > 1 || NR == 1' "${csvs[@]}" > "$result.csv"
mv "$result.md.partial" "$result.md"
echo "$result.md"
