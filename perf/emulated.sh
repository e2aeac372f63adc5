# shellcheck shell=bash disable=SC2034,SC2154
# Source me behind perf/common.sh: a small model for ranks whose links and processors are emulated (perf_groups).
# Expects $work and $build.

page_kib=64
prompt=1  # token of a request, and row of its pass: nothing that could be cut into several
emulated=(--device cpu --threads 1 --page-size "${page_kib}KiB" --idle sleep:200 --host-cache 0 --verify-swap off
  --coded off --prompt-tokens "$prompt")

# Four layers of 6 x 256 x 256 weights, which two stages halve evenly, in some hundred pages: model, model_bytes, model_pages.
emulated_model() {
  mkdir -p "$work" perf/results
  cat > "$work/model.json" <<'JSON'
{"model_type": "opt", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 256, "do_layer_norm_before": true}
JSON
  model=$work/model.h5
  [ -e "$model" ] || "$program" init "$model" --config "$work/model.json" --dtype f32 --seed 1 >&2
  # One processor of 1 Gflops and a link of 1 GB/s: seconds are 10^9 operations and bytes.
  perf_groups 1 --model "m=$model" --known 1 --gflops 1 --only-virtual --virtual-gbps 1 \
    --device-memory 64MiB "${emulated[@]}" > "$work/one.csv"
  giga_operations=$(csv_figure request_s "$work/one.csv")
  model_bytes=$(calculate 'bytes * 1e9' "bytes=$(csv_figure transfer_s "$work/one.csv")")
  model_pages=$(calculate "int(bytes / ($page_kib * 1024)) + 1" "bytes=$model_bytes")
}
# perf_groups RANKS ARGUMENTS...: started by $LAUNCH, unless in virtual time alone, which takes all of a core.
perf_groups() {
  local launch=${LAUNCH:-}
  [[ " $* " != *" --only-virtual "* ]] || launch=
  # shellcheck disable=SC2086
  mpirun -n "$1" $launch "$build/perf_groups" "${@:2}"
}
# csv_figure HEAD FILE: of the first line.
csv_figure() { awk -F , -v head="$1" 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i } NR == 2 { print $at[head] }' "$2"; }
# gflops_for SECONDS: the processor on which a request takes so long.
gflops_for() { calculate 'operations / seconds' "operations=$giga_operations" "seconds=$1"; }
