#!/usr/bin/env bash
# install_test.sh CMAKE BUILD SOURCE COMPILER: an installed Computron is whole. The program runs, the manual page is there, no
# file of the package names the source or build tree, and a program that only knows find_package(computron) builds, links
# and says how a model is cut.
set -euo pipefail
cmake="$1" build="$2" source="$3" compiler="$4"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

fail() { echo "install_test: $*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$prefix" --strip >"$work/install.log"
"$prefix/bin/computron" --version | grep -q '^computron [0-9]' || fail "the installed program does not say its version"
page=$(find "$prefix" -name computron.1)
[ -n "$page" ] || fail "no manual page"
grep -q 'computron serve' "$page" || fail "the manual page does not know serve"
for script in serve.sbatch scaling-study.sh study_tables.py; do
  [ -x "$prefix/share/computron/jobs/$script" ] || fail "no jobs/$script"
done
for file in jobs/mpi-env.sh inputs/models/opt-study.json; do
  [ -f "$prefix/share/computron/$file" ] || fail "no $file"
done
package=$(dirname "$(find "$prefix" -name computronConfig.cmake)")
if grep -rnE "$source/|$build/" "$package"; then fail "the package names the tree it was built from"; fi

"$cmake" -S "$source/tests/install/example" -B "$work/example" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; fail "the example does not configure"; }
"$cmake" --build "$work/example" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "the example does not build"; }

# 2 layers of 64: 2 x (4 x 64 x 64 + 2 x 64 x 256 + 256 + 5 x 64 + 4 x 64) + ln_f 128 + 500 x 64 + (32 + 2) x 64
cat >"$work/tiny.json" <<'JSON'
{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 500, "max_position_embeddings": 32, "word_embed_proj_dim": 64, "do_layer_norm_before": true}
JSON
"$prefix/bin/computron" init "$work/tiny.h5" --config "$work/tiny.json" >/dev/null
weights=$("$work/example/shard_sizes" "$work/tiny.h5" 1 1 | sed -n 's/^stage 0: \([0-9]*\) weights on each of 1 ranks$/\1/p')
[ "$weights" = 134272 ] || fail "shard_sizes says '$weights' weights"
two=$("$work/example/shard_sizes" "$work/tiny.h5" 2 1 | sed -n 's/^stage 0: \([0-9]*\) weights .*$/\1/p')
[ "$two" -lt "$weights" ] && [ $((2 * two)) -ge "$weights" ] || fail "two ranks hold $two of $weights weights each"
echo "install_test: passed"
