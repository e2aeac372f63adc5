#!/usr/bin/env bash
# What host pages that ranks share take, and how fast they are copied from (perf/README.md, "Shared pages"): computron
# bench pages on a model of about 1 GiB. Writes perf/results/shared-pages-MACHINE.md.
#
#   perf/shared-pages.sh [MACHINE]
#
# RANKS     replicas of the model                           (4)
# REPEATS   rounds of copies of a run                       (15)
# RUNS      runs                                            (3)
# PROGRAM   computron                                       (build/release/computron)
# NOTE      a line for the result file, such as what else the machine was doing
# WORK      model and raw figures                           (build/perf/shared-pages)
# A minute; RANKS + 3 GiB of memory and the file in the page cache. Nothing else should run meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh

work=${WORK:-build/perf/shared-pages}
# shellcheck source=perf/common.sh
. perf/common.sh

ranks=${RANKS:-4}
repeats=${REPEATS:-15}
runs=${RUNS:-3}
result=perf/results/shared-pages-$machine.md
mkdir -p "$work" perf/results

# 20 layers of 12 x 1024 x 1024 weights and a vocabulary of 16384: 1 GiB in float32.
cat > "$work/model.json" <<'JSON'
{"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 16, "ffn_dim": 4096,
 "vocab_size": 16384, "max_position_embeddings": 2048, "word_embed_proj_dim": 1024, "do_layer_norm_before": true}
JSON
model=$work/model.h5
[ -e "$model" ] || "$program" init "$model" --config "$work/model.json" --dtype f32 --seed 1 >&2

for ((run = 1; run <= runs; ++run)); do
  echo "shared-pages.sh: run $run, machine load $(load)" >&2
  before=$(load)
  mpirun -n "$ranks" "$program" bench pages "$model" --repeats "$repeats" --quiet --csv > "$work/raw.csv"
  sed "1s/^/load_before,/; 2s/^/$before,/" "$work/raw.csv" > "$work/$run.csv"
done

thp=/sys/kernel/mm/transparent_hugepage
{
  echo "# Shared pages: $cpu, $cores cores"
  echo
  made_by shared-pages
  echo "$ranks ranks, each with the whole model; a row is a run of $repeats rounds: medians, in brackets least and most."
  echo "Huge pages of the system: anonymous $(sed 's/.*\[\(.*\)\].*/\1/' $thp/enabled)," \
    "shared $(sed 's/.*\[\(.*\)\].*/\1/' $thp/shmem_enabled). $(uname -sr). Machine load: one-minute average before the run."
  [ -z "${NOTE:-}" ] || echo "$NOTE"
  echo
  cat "$work"/[0-9]*.csv | awk -F, "$awk_functions"'
    function figure(key) { return $(column[key]) }
    function spread(key) {
      return sprintf("%.2f (%.2f–%.2f)", figure(key), figure(key "_min"), figure(key "_max"))
    }
    /^load_before/ { for (i = 1; i <= NF; ++i) column[$i] = i; next }
    !rows++ {
      printf "One copy: %.3f GiB.\n\n", figure("one_copy_bytes") / 1073741824
      head("memory, copies: shared, most|shared, settled|private, most|private, settled|huge pages mapped, of " $2 \
           " copies|load s: shared|private|shared without huge pages|target|machine load")
    }
    {
      target = figure("shared_most") <= 1.05 && figure("shared_settled") <= 1.05 ? "met" : "missed"
      printf "| %.3f | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f | %s | %s |\n", figure("shared_most"),
        figure("shared_settled"), figure("own_most"), figure("own_settled"), figure("shared_huge"),
        figure("shared_load_s"), figure("own_load_s"), figure("small_load_s"), target, figure("load_before")
      for (k = 0; k < 2; ++k) {
        p = k ? "alone_" : ""
        line[rows, k] = "| " (k ? "one alone" : "all at once") " | " spread(p "own_gb_per_s") " | " \
          spread(p "shared_gb_per_s") " | " spread(p "small_gb_per_s") " | " spread(p "shared_over_own") " | " \
          spread(p "small_over_own") " | " (!k ? "" : figure(p "shared_over_own") >= 0.97 ? "met" : "missed") " |"
      }
    }
    END {
      print ""
      head("ranks|private GB/s|shared GB/s|shared without huge pages GB/s|shared ÷ private|without huge pages ÷ private|target")
      for (k = 0; k < 2; ++k) for (row = 1; row <= rows; ++row) print line[row, k]
    }'
} > "$result"
echo "shared-pages.sh: $result" >&2
