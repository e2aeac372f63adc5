#!/usr/bin/env bash
# convert_adapters.sh PROGRAM FAMILIES ADAPTERS OUT: every adapter of ADAPTERS as OUT/NAME.adapter.h5, its base in float32
# as OUT/base.BASE.h5, and both merged as OUT/NAME.h5; the latter two in bfloat16 as *.bf16.h5.
set -euo pipefail
program="$1" families="$2" adapters="$3" out="$4"
mkdir -p "$out"
for folder in "$adapters"/*/; do
  name="$(basename "$folder")"
  base="$(sed -n 's/.*"base_model_name_or_path": "\(.*\)".*/\1/p' "$folder/adapter_config.json")"
  "$program" convert "$families/$base" "$out/base.$base.h5" --dtype f32
  "$program" convert "$out/base.$base.h5" "$out/$name.adapter.h5" --adapter "$folder"
  "$program" convert "$out/base.$base.h5" "$out/$name.h5" --merge "$out/$name.adapter.h5"
  "$program" convert "$families/$base" "$out/base.$base.bf16.h5" --dtype bf16
  "$program" convert "$out/base.$base.bf16.h5" "$out/$name.bf16.h5" --merge "$out/$name.adapter.h5"
done
