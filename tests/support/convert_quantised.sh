#!/usr/bin/env bash
# convert_quantised.sh PROGRAM DRAWN_MODEL FIXTURES OUT: the quantised checkpoints of which FIXTURES/quantised says what
# they compute. OUT/NAME.SET.h5: of families/NAME by rows, and of the wider model of quantised/NAME in groups.
set -euo pipefail
program="$1" drawn_model="$2" fixtures="$3" out="$4"
mkdir -p "$out"
for folder in "$fixtures"/quantised/*/; do
  name="$(basename "$folder")"
  for codes in int8 fp8; do
    "$program" convert "$fixtures/families/$name" "$out/$name.$codes.row.h5" --dtype "$codes" --group-size row
  done
  "$drawn_model" "$folder" "$out/$name"
  for codes in int8 fp8 int4; do
    "$program" convert "$out/$name" "$out/$name.$codes.h5" --dtype "$codes"
  done
  case "$name" in
    bert* | vit*) ;;
    *) "$program" convert "$out/$name" "$out/$name.int4.head.h5" --dtype int4 --quantize-head ;;
  esac
done
