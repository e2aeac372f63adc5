#!/usr/bin/env bash
# convert_families.sh PROGRAM FOLDERS OUT [DTYPE...]: every model of FOLDERS as OUT/NAME.h5 and OUT/NAME.DTYPE.h5 (bf16).
# Left out is what unsupported.txt beside FOLDERS names, one a line: families that Computron does not read yet.
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
    "$program" convert "$folder" "$out/$name.$dtype.h5" --dtype "$dtype"
  done
done
