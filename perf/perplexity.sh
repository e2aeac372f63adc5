#!/usr/bin/env bash
# What quantised weights cost trained models: the perplexity of held-out text (perf/README.md, "Perplexity"). Writes
# perf/results/perplexity-MACHINE.md.
#
#   perf/perplexity.sh [MACHINE]
#
# FOLDERS  trained models    (inputs/trained/{base,manual,python,licence})
# TOKENS   held-out text     (inputs/trained/held_out/tokens.json: {kind: [[token, ...], ...]})
# TYPES    of convert        (f32 bf16 int8 int8/row fp8 fp8/row int4 int4/head)
# PROGRAM  computron         (build/release/computron)
# NOTE     a line for the result file, such as where other models came from
# WORK     checkpoints and raw figures, kept between runs (build/perf/perplexity)
# About a minute. COMPUTRON_MAX_ISA=avx512 multiplies quantised weights in float32.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${WORK:-build/perf/perplexity}
page_size=256KiB
# shellcheck source=perf/common.sh
. perf/common.sh
# shellcheck source=jobs/mpi-env.sh
. jobs/mpi-env.sh
needs_jq

folders=${FOLDERS:-$(echo inputs/trained/{base,manual,python,licence})}
tokens=${TOKENS:-inputs/trained/held_out/tokens.json}
types=${TYPES:-f32 bf16 int8 int8/row fp8 fp8/row int4 int4/head}
result=perf/results/perplexity-$machine.md
mkdir -p "$work" perf/results

# convert FOLDER TYPE: prints the checkpoint.
convert() {
  local file=$work/${1##*/}-${2/\//-}.h5 more=()
  case "$2" in
    */row) more=(--group-size row) ;;
    */head) more=(--quantize-head) ;;
  esac
  "$program" convert "$1" "$file" --dtype "${2%/*}" "${more[@]}" > /dev/null
  echo "$file"
}

# Every row of every kind, scored by the model.
requests() {
  jq -c --arg model "$1" 'to_entries[] | .key as $kind | .value | to_entries[] | {custom_id: "\($kind).\(.key)",
    method: "POST", url: "/v1/completions",
    body: {model: $model, prompt: .value, max_tokens: 0, echo: true, logprobs: 0}}' "$tokens" > "$work/requests.jsonl"
}

# {kind: perplexity} of a run, and "all": of all tokens but the first of each row, which nothing foretells.
perplexities() {
  jq -s 'def perplexity: [.[].of[]] | -add / length | exp;
    [.[] | {kind: (.custom_id | split(".")[0]), of: .response.body.choices[0].logprobs.token_logprobs[1:]}]
    | {all: perplexity} + (group_by(.kind) | map({key: .[0].kind, value: perplexity}) | from_entries)' "$work/$1.jsonl"
}

for folder in $folders; do
  requests "${folder##*/}"
  for type in $types; do
    name=${folder##*/}-${type/\//-}
    serve "$name" 1x1 --quiet --device-memory 256MiB --model "${folder##*/}=$(convert "$folder" "$type")"
    perplexities "$name" > "$work/$name.perplexity"
  done
done

# A row a model and kind of text. Targets are those of all text: a kind has a few thousand tokens, whose chance is as large.
rows() {
  local folder type model
  for folder in $folders; do
    model=${folder##*/}
    for type in $types; do
      jq -c --arg model "$model" --arg type "$type" 'to_entries[] | {$model, $type, kind: .key, value}' \
        "$work/$model-${type/\//-}.perplexity"
    done
  done | jq -rs --arg types "$types" '
    def digits(n): . * pow(10; n) | round / pow(10; n);
    def allowed: {int8: 0.15, fp8: 0.3, int4: 4}[.];
    ($types | split(" ")) as $types | group_by([.model, .kind])[] | . as $cells
    | ($cells[] | select(.type == "f32").value) as $plain
    | "| \(.[0].model) | \(.[0].kind) | \($plain | digits(3)) |" + ([$types[1:][] as $type
      | ($cells[] | select(.type == $type).value / $plain * 100 - 100) as $more
      | " \(if $more >= 0 then "+" else "" end)\($more | digits(3))\(
        if ($type | allowed) == null or $cells[0].kind != "all" then "" elif $more <= ($type | allowed) then " met" else " missed" end) |"]
      | join(""))'
}

{
  echo "# Perplexity of quantised weights: $cpu, $cores cores"
  echo
  made_by perplexity
  echo "Held-out text; % more than in float32. Targets: int8 + 0.15 %, fp8 + 0.3 %, int4 + 4 %."
  [ -z "${NOTE:-}" ] || echo "$NOTE"
  echo
  awk -v types="$types" "$awk_functions"' BEGIN {
    sub(/^[^ ]+ /, "", types)
    gsub(/ /, " %|", types)
    head("model|text|float32|" types " %")
  }'
  rows
} > "$result"
echo "$result"
