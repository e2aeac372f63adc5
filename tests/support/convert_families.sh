#!/usr/bin/env bash
# convert_families.sh PROGRAM FIXTURES OUT: every folder of FIXTURES as OUT/NAME.h5 and, in bfloat16, OUT/NAME.bf16.h5.
set -euo pipefail
program="$1" fixtures="$2" out="$3"
mkdir -p "$out"
for folder in "$fixtures"/*/; do
  name="$(basename "$folder")"
  "$program" convert "$folder" "$out/$name.h5"
  "$program" convert "$folder" "$out/$name.bf16.h5" --dtype bf16
done
