#!/usr/bin/env bash
# convert_families.sh PROGRAM FOLDERS OUT [DTYPE...]: every model of FOLDERS as OUT/NAME.h5 and OUT/NAME.DTYPE.h5 (bf16).
# What is quantised in the folder is so in all of them. Left out is what unsupported.txt beside FOLDERS names, one a line:
# families that Computron does not read yet.
set -euo pipefail
program="$1" folders="$2" out="$3"
shift 3
[ $# -gt 0 ] || set -- bf16
mkdir -p "$out"
for folder in "$folders"/*/; do
  [ -e "$folder/config.json" ] || continue
  name="$(basename "$folder")"
  ! grep -qsxF "$name" "$folders/../unsupported.txt" || continue
  "$program" convert "$folder" "$out/$name.h5"
  for dtype in "$@"; do
    if grep -q quantization_config "$folder/config.json"; then  # whose values are what they are
      ln -f "$out/$name.h5" "$out/$name.$dtype.h5"
    else
      "$program" convert "$folder" "$out/$name.$dtype.h5" --dtype "$dtype"
    fi
  done
done
