#!/usr/bin/env bash
# Installs the other engines that perf/peers/run.sh measures beside this program: transformers, CTranslate2 and
# llama.cpp, each in the version below, in a Python environment of their own. Nothing of the project needs them.
#
#   perf/peers/setup.sh
#
# COMPUTRON_PEERS  where                                                            (build/peers)
# TORCH_VENV       an environment that has torch, transformers and safetensors: used instead of installing them
# JOBS             of the compiler                                                  (2)
# Python 3.11 or later; from PyPI. llama.cpp is compiled here, for this processor: about ten minutes of two cores. One
# line of it is mended: GCC 12 says of _tile_loadconfig that it reads eight bytes, drops the other stores to the
# configuration, and the first tile instruction ends the process (SIGILL; llama.cpp's pull request 26954).
set -euo pipefail
cd "$(dirname "$0")/../.."

peers=${COMPUTRON_PEERS:-build/peers}
torch_venv=${TORCH_VENV:-}
llama="llama-cpp-python==0.3.36"
llama_options="-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"

mkdir -p "$peers"
[ -e "$peers/venv/bin/python" ] || python3 -m venv "$peers/venv"
python=$peers/venv/bin/python
pip() { "$python" -m pip --disable-pip-version-check install --quiet "$@"; }

if [ -n "$torch_venv" ]; then
  "$torch_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
else
  pip torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
fi
pip --no-deps ctranslate2==4.8.5 gguf==0.19.0
pip requests==2.32.3 tqdm==4.70.1 pyyaml==6.0.3 jinja2==3.1.6 diskcache==5.6.3 typing_extensions==4.16.0

install_llama() {
  local folder tiles
  folder=$(mktemp -d "$peers/llama.XXXXXX")
  "$python" -m pip --disable-pip-version-check download --quiet --no-deps --no-binary llama-cpp-python --dest "$folder" "$llama"
  tar -xzf "$folder"/*.tar.gz -C "$folder"
  tiles=$(echo "$folder"/*/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp)
  sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" : : "r"(\&tc) : "memory");\n&/' "$tiles"
  grep -q 'asm volatile' "$tiles"
  CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} CMAKE_ARGS=$llama_options \
    nice "$python" -m pip --disable-pip-version-check install --no-deps --force-reinstall "$folder"/*/
  rm -r "$folder"
}
"$python" -c 'import llama_cpp' 2>/dev/null || install_llama
"$python" -c 'import ctranslate2, gguf, llama_cpp, safetensors, torch, transformers'
echo "$peers"
