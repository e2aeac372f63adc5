#!/usr/bin/env bash
# What a resident model decodes and prefills, beside what memory and GEMMs allow (perf/README.md, "Forward"). Writes
# perf/results/forward-MACHINE.md.
#
#   perf/forward.sh [MACHINE]
#
# MODELS   ARCH/SIZE/DTYPE   (opt/1.3b and llama/3.2-1b in bf16, f16, f32, int8, fp8, int4; qwen3/1.7b in bf16;
#          qwen3_moe/30b-a3b-6-layers in bf16: 6 of the 48 layers of Qwen3-30B-A3B, so that 24 GiB and two threads do)
# BATCHES  that decode       (1,2,4,8,64)
# THREADS  compute threads   (all cores)
# REPEATS  rounds of each    (9)
# PROGRAM  computron         (build/release/computron)
# NOTE     a line for the result file, such as what else the machine was doing
# WORK     models and raw figures, kept between runs (build/perf/forward)
# About twenty minutes on a machine that does nothing else; 12 GiB of memory, 26 GiB of disk, and for the experts 9 GiB
# more of each. COMPUTRON_MAX_ISA=avx2 and so on stands for a processor with narrower vectors (kernels/cpu/isa.h).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=perf/common.sh
. perf/common.sh
needs_jq

models=${MODELS:-$(echo {opt/1.3b,llama/3.2-1b}/{bf16,f16,f32,int8,fp8,int4} qwen3/1.7b/bf16 qwen3_moe/30b-a3b-6-layers/bf16)}
threads=${THREADS:-$cores}
repeats=${REPEATS:-9}
work=${WORK:-build/perf/forward}
result=perf/results/forward-$machine.md
mkdir -p "$work" perf/results

# init CHECKPOINT ARCH SIZE DTYPE: random weights of a published size, or of one that was scaled to fit.
init() {
  if [ "$2/$3" = qwen3_moe/30b-a3b-6-layers ]; then
    jq -n '{model_type: "qwen3_moe", num_hidden_layers: 6, head_dim: 128, norm_topk_prob: true, max_position_embeddings: 40960,
            rope_theta: 1000000}' > "$work/$2-$3.json"
    "$program" init "$1" --config "$work/$2-$3.json" --dtype "$4" > /dev/null
  else
    "$program" init "$1" --arch "$2" --size "$3" --dtype "$4" > /dev/null
  fi
}

# A row a pass; a target where there is one.
rows() {
  jq -r --arg model "$1" --arg load "$2" '
    def digits(n): . * pow(10; n) | round / pow(10; n);
    def verdict(value; least): if value >= least then "met (\(least))" else "missed (\(least))" end;
    . as $all
    | def row(name; target): "| \($model) | \(name) | \(.tokens_per_s | digits(1)) | \(.pass_s * 1e3 | digits(1)) | \(
        .gemms_s * 1e3 | digits(1)) | \(.of_gemms_alone | digits(3)) | \(.of_plain_read | digits(3)) | \(
        .of_plain_read_with_cache | digits(3)) | \(.of_gemm_peak | digits(3)) | \(.of_bound | digits(3)) | \(target) | \($all.read_bytes_per_s / 1e9
        | digits(1)) | \($all.peak_flops_per_s / 1e9 | round) | \($load) |";
    (.dtype as $dtype | ["int8", "fp8", "int4"] | index($dtype) != null) as $codes
    | (.decode[] | row("decode \(.sequences)";
       if .sequences == 1 then verdict(.of_plain_read; {int8: 0.85, fp8: 0.85, int4: 0.7}[$all.dtype] // 0.9)
       elif .sequences <= 8 and $codes then verdict(.of_gemms_alone; 0.7)
       elif .sequences <= 8 then verdict(.of_bound; 0.85) else "" end)),
    (.prefill | row("prefill \(.rows)"; verdict(.of_gemm_peak; 0.75)))' "$3"
}

table=$(mktemp)
trap 'rm -f "$table"' EXIT
for model in $models; do
  IFS=/ read -r arch size dtype <<< "$model"
  file=$work/$arch-$size-$dtype.h5
  [ -f "$file" ] || init "$file" "$arch" "$size" "$dtype"
  before=$(load)
  "$program" bench forward "$file" --threads "$threads" --batches "${BATCHES:-1,2,4,8,64}" --repeats "$repeats" --json "$work/$arch-$size-$dtype.json"
  rows "$model" "$before–$(load)" "$work/$arch-$size-$dtype.json" >> "$table"
done

{
  echo "# Prefill and decode of a resident model: $cpu, $cores cores"
  echo
  made_by forward
  echo "Random weights, one rank, $threads threads, 128 tokens of context; medians of $repeats rounds. Machine load: one-minute"
  echo "average before and after, threads of the run itself included."
  [ -z "${NOTE:-}" ] || echo "$NOTE"
  echo
  awk "$awk_functions"' BEGIN { head("model|pass|tokens/s|ms|GEMMs ms|of GEMMs|of read|+ cache|of peak|of bound|target|read GB/s|peak GFLOP/s|machine load") }'
  cat "$table"
} > "$result"
echo "$result"
