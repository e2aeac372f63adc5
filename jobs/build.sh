#!/usr/bin/env bash
# Builds Computron: jobs/build.sh [PRESET]
#
# Installs the Debian packages that are missing (with sudo where needed), configures preset PRESET (CMakePresets.json;
# default: release) and builds it into build/PRESET. The program is build/PRESET/computron.
#   JOBS=N          compile N files at a time (default: the number of cores)
#   TARGETS=...     build these targets only, e.g. computron: the program without the tests
#   CMAKE_ARGS=...  more arguments for configuring, e.g. -DCOMPUTRON_CUDA=ON
set -euo pipefail
cd "$(dirname "$0")/.."
preset="${1:-release}"

packages=(build-essential cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev libcli11-dev libgtest-dev
  libgmock-dev nlohmann-json3-dev libspdlog-dev libbenchmark-dev libxxhash-dev libpng-dev libjpeg-dev
  libpcre2-dev libutf8proc-dev)
[ "$(uname -m)" = x86_64 ] || packages+=(libsimde-dev)

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_packages() {
  local missing=() sudo=()
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "Ask for these packages: ${missing[*]}" >&2; exit 77; }
    sudo=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# On a cluster the software comes from modules; what is missing there, CMake will name.
say_what_to_load() {
  cat <<'TEXT'
This system has no apt-get. What the build needs from elsewhere:
  a C++20 compiler (g++ 12 or newer), CMake 3.25 or newer, Ninja, pkg-config
  an MPI library (Open MPI 4.1 or newer, built with PMIx), HDF5 1.10 or newer (serial)
  CLI11 2.1, nlohmann_json 3.11, spdlog 1.10 with fmt, xxHash 0.8, libpng 1.6, libjpeg-turbo 2.1,
  PCRE2 10.42, utf8proc 2.8, on aarch64 SIMDe 0.7.4
  GoogleTest 1.12, Google Benchmark 1.7
for example: module load gcc cmake ninja openmpi hdf5   (names differ from site to site)
TEXT
}

if command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1; then
  install_packages
else
  say_what_to_load
fi

arguments=()
if command -v ccache >/dev/null 2>&1; then
  arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # Without this it keeps nothing that reads a precompiled header.
  export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"
fi
read -r -a more <<<"${CMAKE_ARGS:-}"
cmake --preset "$preset" "${arguments[@]}" "${more[@]}"
read -r -a targets <<<"${TARGETS:-all}"
cmake --build "build/$preset" --parallel "${JOBS:-$(nproc)}" --target "${targets[@]}"
echo "Built build/$preset"
