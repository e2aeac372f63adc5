#!/usr/bin/env bash
# convert_families.sh PROGRAM FOLDERS OUT: every model of FOLDERS as OUT/NAME.h5 and, in bfloat16, OUT/NAME.bf16.h5.
set -euo pipefail
program="$1" folders="$2" out="$3"
mkdir -p "$out"
for folder in "$folders"/*/; do
  [ -e "$folder/config.json" ] || continue
  name="$(basename "$folder")"
  "$program" convert "$folder" "$out/$name.h5"
  "$program" convert "$folder" "$out/$name.bf16.h5" --dtype bf16
done
