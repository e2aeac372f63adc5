#!/usr/bin/env bash
# Builds and tests with another compiler, another MPI library, for another processor, as a package: what no check of a change
# does, since it takes hours. Says at the end what was built and tested, as rows of the table in perf/results/portable.md.
#
#   jobs/portable.sh [PART...]    aarch64 clang mpich gcc14 deb image spack (all for which the tools are here), or: here
#
#   aarch64   Debian's cross-compiler, the libraries of an arm64 root that mmdebstrap makes, and qemu: unit tests, ranks of
#             MPICH, and greedy tokens beside those of a program for this machine (PROGRAM=build/release/computron)
#   clang     the newest Clang from 16 on (CLANG=clang-19 names one), or where there is none Clang 19 of the next Debian, in
#             the root of gcc14: no warnings, all tests but long ones
#   mpich     GCC and Debian's MPICH: tests of ranks and of whole jobs but what jobs/README.md says of Hydra, and Slurm's PMI2
#   gcc14     GCC 14 with the libraries of the next Debian, in a root of it that mmdebstrap makes: part `here` within it
#   deb       the .deb of CPack, installed in a bare root of this Debian by its apt: the program, doctor, quickstart there
#   image     the steps of jobs/packages/computron.def, Apptainer's definition, in two plain roots of this Debian
#   spack     the recipe of jobs/packages/spack, concretised by a Spack that is here
#   here      what this system has: no warnings, all tests but long ones. For a machine that is not in the table yet
#
#   BUILD     where it builds (build/portable), each part in its folder, with roots that stay there
#   JOBS      files that are compiled, and tests that run, at a time (the number of cores)
#   SLOWER    what the tests' time limits are multiplied by (2; under qemu ten times that)
#   RUN       what builds and tests are started by (nothing): "nice -n 10", say
#
# A test that fails is run again, alone; a row says how many needed that. Exits with 0 if what was run passed, 1 if not, 77 if
# a PART that was named lacks its tools. ctest has them as portable.PART, label `portable`.
# shellcheck disable=SC2317  # functions are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/mpi-env.sh
readonly build="${BUILD:-$PWD/build/portable}" jobs="${JOBS:-$(nproc)}" slower="${SLOWER:-2}"
read -r -a run <<<"${RUN:-}"
export CCACHE_BASEDIR="$PWD" CCACHE_DEPEND=1 CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"
rows=()

# lacks PART TOOL...: says which of the tools are not here; 1 if all are.
lacks() {
  local part="$1" tool missing=()
  shift
  for tool; do command -v "$tool" >/dev/null 2>&1 || missing+=("$tool"); done
  [ ${#missing[@]} -gt 0 ] || return 1
  echo "portable: $part: SKIPPED: not here: ${missing[*]}"
}

# build PART ARGUMENTS_OF_CMAKE...: all of it, without warnings. TARGETS: these only.
build() {
  local part="$1" launcher=()
  shift
  command -v ccache >/dev/null 2>&1 && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  "${run[@]}" cmake --preset release -B "$build/$part" -DCOMPUTRON_CUDA=OFF "${launcher[@]}" "$@" \
    >"$build/$part.configure.log" 2>&1 || { cat "$build/$part.configure.log"; return 1; }
  read -r -a targets <<<"${TARGETS:-all}"
  if ! "${run[@]}" cmake --build "$build/$part" --parallel "$jobs" --target "${targets[@]}" >"$build/$part.build.log" 2>&1; then
    grep -E 'error|FAILED' "$build/$part.build.log" | cut -c1-200 | head -20
    return 1
  fi
  if grep 'warning:' "$build/$part.build.log"; then return 1; fi
  allow_time "$build/$part" "${FACTOR:-$slower}"
}

# check PART COMPILER MPI ARCHITECTURE ARGUMENTS_OF_CTEST...: runs the tests and adds a row. Two tests a processor, since they
# wait for half of their time. What nohup and a background ignore, such as SIGINT, tests of signals need.
check() {
  local part="$1" what="$2 | $3 | $4" log="$build/$1.tests.${#rows[@]}.log" failed=0 all first last skipped
  shift 4
  local ctest=("${run[@]}" env --default-signal ctest --test-dir "$build/$part" --no-tests=error --output-on-failure)
  "${ctest[@]}" --parallel $((2 * jobs)) "$@" >"$log" 2>&1 || failed=1
  all="$(grep -oE 'tests failed out of [0-9]+' "$log" | grep -oE '[0-9]+' | tail -1)"
  first="$(failures "$log")" last="$first"
  if [ "$failed" = 1 ] && [ "$first" -gt 0 ]; then
    "${ctest[@]}" --rerun-failed --parallel 1 "$@" >"$log.again" 2>&1 && failed=0
    last="$(failures "$log.again")"
  fi
  skipped="$(grep -c '(Skipped)$' "$log")"
  [ "$failed" = 0 ] || sed -n '/The following tests FAILED/,$p' "$log.again" "$log" 2>/dev/null | cut -c1-200
  rows+=("| $what | $((${all:-0} - last - skipped)) of ${all:-0}$([ "$skipped" = 0 ] || echo ", $skipped skipped")$([ "$first" = "$last" ] ||
    echo " ($((first - last)) at the second try)") | $(commit), $(date -u +%F) |")
  return "$failed"
}
failures() { sed -n 's/.*[^0-9]\([0-9]*\) tests failed out of.*/\1/p' "$1" | grep . || echo 0; }
commit() { [ -n "${COMMIT:-}" ] && echo "$COMMIT" || git describe --always --dirty --abbrev=8 '--exclude=*' 2>/dev/null || echo unknown; }

# Tests name their own limits, which ctest's --timeout leaves as they are; configuring again restores them.
allow_time() {
  find "$1" -name CTestTestfile.cmake -exec perl -pi -e 's/ TIMEOUT "(\d+)"/" TIMEOUT \"" . $1 * '"$2"' . "\""/e' {} +
}

version() { "$@" --version | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -1; }

readonly all_tests=(--label-exclude '^(long|portable|gpu)$')
# The tests that need neither ranks nor another program, and those that convert what they read.
readonly unit_tests=(--label-exclude '^(long|portable|gpu|emulated|mpi|slurm|netns)$'
  --exclude-regex '^(house_.*|install_test|h5py_test|program_test|image_test|refused_job.*)$')

part_clang() {
  local clang="${CLANG:-$(compgen -c clang++- | grep -xE 'clang\+\+-[0-9]+' | sort -t- -k2n | awk -F- '$2 >= 16' | tail -1 | sed 's/++//')}"
  [ -n "$clang" ] || { in_next_debian clang clang; return; }
  lacks clang "$clang" cmake ninja mpicxx && return 77
  local cxx="${clang/clang/clang++}"
  build clang -DCMAKE_C_COMPILER="$clang" -DCMAKE_CXX_COMPILER="$cxx" || return 1
  check clang "Clang $(version "$cxx")" "Open MPI $(version mpirun)" x86-64 "${all_tests[@]}"
}

part_mpich() {
  lacks mpich mpicxx.mpich mpiexec.mpich cmake ninja && return 77
  build mpich -DMPI_CXX_COMPILER=mpicxx.mpich -DMPIEXEC_EXECUTABLE="$(command -v mpiexec.mpich)" || return 1
  local with=("GCC $(version c++)" "MPICH $(mpichversion | awk '/MPICH Version/ { print $3 }')") failed=0
  # What Hydra does otherwise (jobs/README.md): a rank that ends before MPI is up ends nobody else, a stopped one's job with 9.
  GTEST_FILTER='-Failure.UnknownOptionIsUsage:Failure.ARankThatIsQuicker*:Failure.WhatIsWrongOnOneRankOnly*:Groups.AStoppedRank*' \
    check mpich "${with[@]}" "x86-64, tests labelled mpi" -L '^mpi$' -LE '^(long|portable|gpu|emulated)$' || failed=1
  check mpich "${with[@]}" "x86-64, install_test; serve.sbatch by PMI2" -R '^(install_test|slurm_pmi_test)$' || failed=1
  return "$failed"
}

part_here() {
  lacks here c++ mpicxx cmake ninja && return 77
  build here || return 1
  check here "$(c++ --version | sed -n '1s/c++ (Debian [^)]*)/GCC/p;1s/^.*clang version/Clang/p')" \
    "$(mpirun --version 2>&1 | sed -n '1s/mpirun (Open MPI)/Open MPI/p')" "$(uname -m)" "${all_tests[@]}"
}

# enter ROOT COMMAND...: within that root, where this tree, and what git has of it elsewhere, have the names that they have here.
enter() {
  local root="$1" git
  shift
  git="$(git rev-parse --path-format=absolute --git-common-dir 2>/dev/null || echo "$PWD")"
  mkdir -p "$root$PWD" "$root$build" "$root$git"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  # shellcheck disable=SC2016  # the inner shell expands it
  "${run[@]}" unshare --mount --pid --fork bash -c 'root="$1" tree="$2" build="$3" git="$4"
    shift 4
    mount -t proc none "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs none "$root/dev/shm" &&
      mount --rbind /sys "$root/sys" && mount -t tmpfs none "$root/tmp" && mount --bind -o ro "$git" "$root$git" &&
      mount --bind "$tree" "$root$tree" && mount --bind "$build" "$root$build" &&
      exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 bash -c "cd \"\$0\" && exec \"\$@\"" "$tree" "$@"' \
    enter "$root" "$PWD" "$build" "$git" "$@"
}

# make_root ROOT RELEASE ARGUMENTS_OF_MMDEBSTRAP...: a Debian of that release for this processor.
make_root() {
  local root="$1" release="$2"
  shift 2
  rm -rf "$root"
  "${run[@]}" mmdebstrap --quiet --mode=root "$@" "$release" "$root" http://deb.debian.org/debian >"$root.log" 2>&1 ||
    { tail -3 "$root.log"; return 1; }
}

part_gcc14() { in_next_debian gcc14 here; }

# in_next_debian PART ITS_PART: that part within a root of the next Debian, which is made once for all of them.
in_next_debian() {
  local part="$1" within="$2" root="$build/trixie" log="$build/$1.log" packages failed
  lacks "$part" mmdebstrap unshare && return 77
  [ "$(id -u)" = 0 ] || { echo "portable: $part: SKIPPED: only root makes a root here"; return 77; }
  if [ ! -x "$root/usr/bin/clang++-19" ]; then
    eval "$(sed -n '/^packages=(/,/)$/p' jobs/build.sh)"  # what a build needs
    packages="$(IFS=,; echo "${packages[*]},ccache,clang-19,git,python3")"
    make_root "$root" trixie --variant=minbase --include="$packages" || return 1
  fi
  mkdir -p "$build/$part"
  enter "$root" env COMMIT="$(commit)" BUILD="$build/$part" JOBS="$jobs" SLOWER="$slower" jobs/portable.sh "$within" >"$log" 2>&1
  failed=$?
  mapfile -O ${#rows[@]} -t rows < <(grep -E '^\| (GCC|Clang) ' "$log")
  grep -vE "^\\||^portable: $within: passed" "$log"
  return "$failed"
}

# What a user does with the .deb, where nothing else of Computron is: not even a compiler.
part_deb() {
  lacks deb mmdebstrap unshare cpack dpkg-shlibdeps cmake ninja mpicxx && return 77
  [ "$(id -u)" = 0 ] || { echo "portable: deb: SKIPPED: only root makes a root here"; return 77; }
  local root="$build/bare-deb" release deb lines log="$build/deb.log"
  release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  build deb -DBUILD_TESTING=OFF || return 1
  rm -rf "$build/deb/packages"
  "${run[@]}" cpack -G DEB --config "$build/deb/CPackConfig.cmake" -B "$build/deb/packages" >"$log" 2>&1 || { tail -5 "$log"; return 1; }
  deb="$(find "$build/deb/packages" -maxdepth 1 -name '*.deb')"
  make_root "$root" "$release" --variant=minbase || return 1
  mkdir -p "$root/srv/computron/jobs" "$root/srv/computron/inputs"
  cp jobs/quickstart.sh jobs/mpi-env.sh jobs/show_completions.sh "$root/srv/computron/jobs/"
  cp -r inputs/trained inputs/quickstart.jsonl "$root/srv/computron/inputs/"
  # shellcheck disable=SC2016  # the root's shell expands it
  enter "$root" bash -euc '
    export DEBIAN_FRONTEND=noninteractive
    ! command -v c++ mpirun
    apt-get update -q && apt-get install -q -y --no-install-recommends "$1"
    computron --version
    test -e /usr/share/man/man1/computron.1.gz -o -e /usr/share/man/man1/computron.1
    cd /srv/computron
    . jobs/mpi-env.sh
    /usr/share/computron/jobs/doctor.sh
    PROGRAM=computron jobs/quickstart.sh' deb "$deb" >>"$log" 2>&1 || { tail -20 "$log" | cut -c1-200; return 1; }
  lines="$(grep -vc '"error": {' "$root/srv/computron/build/quickstart/results.jsonl")"
  [ "$lines" = "$(wc -l <inputs/quickstart.jsonl)" ] || { echo "quickstart has $lines results"; return 1; }
  rows+=("| GCC $(version c++) | Open MPI $(version mpirun) | x86-64, the .deb in a bare $release | apt installs it; doctor; quickstart: $lines results | $(commit), $(date -u +%F) |")
}

# section STAGE TITLE: the lines of a section of the definition's STAGEth stage, with its arguments' values.
section() {
  awk -v stage="$1" -v title="$2" '/^Bootstrap:/ { n++; inside = 0 } /^%/ { inside = ($0 == title); next } n == stage && inside' \
    jobs/packages/computron.def | sed "s/{{ COMMIT }}/$(commit)/"
}

# %post as Apptainer runs it: by sh -e, from the top of the root.
part_image() {
  lacks image mmdebstrap unshare awk && return 77
  [ "$(id -u)" = 0 ] || { echo "portable: image: SKIPPED: only root makes a root here"; return 77; }
  local first="$build/image-build" final="$build/image-final" release log="$build/image.log" from to version
  release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  rm -f "$log"
  make_root "$first" "$release" --variant=minbase && make_root "$final" "$release" --variant=minbase || return 1
  while read -r from to; do
    [ -z "$from" ] || { mkdir -p "$first${to%/*}" && cp -a "$from" "$first$to" || return 1; }
  done < <(section 1 %files)
  enter "$first" env JOBS="$jobs" sh -ec "cd /; $(section 1 %post)" >>"$log" 2>&1 || { tail -5 "$log"; return 1; }
  while read -r from to; do
    [ -z "$from" ] || { mkdir -p "$final${to%/*}" && cp -a "$first$from" "$final$to" || return 1; }
  done < <(section 2 '%files from build')
  enter "$final" sh -ec "cd /; $(section 2 %post)" >>"$log" 2>&1 || { tail -5 "$log"; return 1; }
  version="$(enter "$final" sh -ec "cd /; $(section 2 %environment); $(section 2 %test)" 2>&1)" || { echo "$version"; return 1; }
  [[ "$version" == *"$(commit)"* ]] || { echo "the image does not tell its commit: $version"; return 1; }
  rows+=("| GCC $(version c++) | Open MPI $(version mpirun) | x86-64, computron.def's steps in a bare $release | builds; %test: $(sed -n 1p <<<"$version") | $(commit), $(date -u +%F) |")
}

# With settings and caches of its own; Spack may have to fetch its solver and its packages.
part_spack() {
  lacks spack spack && return 77
  local -x SPACK_USER_CONFIG_PATH="$build/spack/config" SPACK_USER_CACHE_PATH="$build/spack/cache"
  local log="$build/spack.log" specs=('computron@main' 'computron@main +cuda cuda_arch=90' 'computron@main +cuda ~nccl cuda_arch=80,90') spec
  rm -rf "$SPACK_USER_CONFIG_PATH"
  "${run[@]}" spack repo add jobs/packages/spack/spack_repo/computron >"$log" 2>&1 || { tail -5 "$log"; return 1; }
  for spec in "${specs[@]}"; do
    # shellcheck disable=SC2086  # words of a spec
    "${run[@]}" spack spec $spec >>"$log" 2>&1 || { echo "$spec is not concretised:"; tail -5 "$log"; return 1; }
  done
  rows+=("| Spack $(version spack) | | $(uname -m) | concretises ${#specs[@]} specs of the recipe | $(commit), $(date -u +%F) |")
}

# What the tests of aarch64 link, and their programs.
readonly arm64_packages=libc6-dev,libstdc++-12-dev,libhdf5-dev,libspdlog-dev,libfmt-dev,libjpeg-dev,libpng-dev,libpcre2-dev,\
libutf8proc-dev,libgtest-dev,libgmock-dev,libmpich-dev,libbenchmark-dev,libcli11-dev,nlohmann-json3-dev,libxxhash-dev,\
libsimde-dev
readonly arm64_tests='(comm_(all_reduce|mpi|stage_transfer)_test|topology_test)\.r[12]|family_test\.r[12]|convert_[a-z_]*'

# An arm64 root's files: nothing of it is run but by qemu, so no binfmt_misc is needed.
make_arm64_root() {
  [ ! -e "$COMPUTRON_SYSROOT/usr/include/simde/x86/avx2.h" ] || return 0
  lacks aarch64 mmdebstrap && return 77
  rm -rf "$COMPUTRON_SYSROOT"
  mmdebstrap --mode=root --arch=arm64 --variant=extract --include="$arm64_packages" bookworm "$COMPUTRON_SYSROOT" \
    >"$build/arm64-root.log" 2>&1 || { tail -5 "$build/arm64-root.log"; return 1; }
  rm -rf "${COMPUTRON_SYSROOT:?}/dev" "${COMPUTRON_SYSROOT:?}/tmp"  # qemu would open these instead of this machine's
}

# A program that others start themselves becomes a script, which starts it under qemu.
start_by_qemu() {
  [ "$(head -c 2 "$1")" != '#!' ] || return 0
  mv "$1" "$1.elf"
  # shellcheck disable=SC2016  # the script expands it
  printf '#!/bin/sh\nexec qemu-aarch64-static -L "$COMPUTRON_SYSROOT" "%s" "$@"\n' "$1.elf" >"$1"
  chmod +x "$1"
}

part_aarch64() {
  lacks aarch64 aarch64-linux-gnu-g++ qemu-aarch64-static mpiexec.mpich cmake ninja && return 77
  local FACTOR=$((10 * slower)) failed=0 gcc qemu program
  gcc="GCC $(version aarch64-linux-gnu-g++), cross"
  local -x COMPUTRON_SYSROOT="$build/arm64"
  make_arm64_root || return
  build aarch64 -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/aarch64-linux-gnu.cmake" || return 1
  for program in computron-checkpoint-index computron comm_session_program drawn_model; do
    start_by_qemu "$build/aarch64/$program"
  done
  qemu="$(version qemu-aarch64-static)"
  # Under qemu a process that cannot start another one is not told why, since its vfork shares no memory; and there are
  # neither mincore nor subreapers.
  GTEST_FILTER=-Helper.ThatIsNotThereIsNoFaultOfTheFile:DeviceMemory.IsAlignedZeroAndThere:SystemPages.AreMadeWhole:\
RequestReader.LauncherThatIsKilledIsNotTheEndOfTheInput check aarch64 \
    "$gcc" MPICH "aarch64 (qemu $qemu), unit tests" "${unit_tests[@]}" || failed=1
  check aarch64 "$gcc" "MPICH" "aarch64 (qemu $qemu), ranks" -R "^($arm64_tests)\$" || failed=1
  GTEST_FILTER='*ServeFamilies.ChooseTheTokens*tp2pp1:*ServeFamilies.ChooseTheTokens*tp1pp2' check aarch64 \
    "$gcc" MPICH "aarch64 (qemu $qemu), served by two ranks" -R '^serve_test$' -FA '.*' || failed=1
  program="${PROGRAM:-build/release/computron}"
  if [ -x "$program" ]; then
    tests/support/greedy_tokens.py "$build/aarch64/families" "$build/greedy" \
      "env COMPUTRON_MAX_ISA=avx2 mpirun -n 2 $program" \
      "cmake/toolchains/mpiexec-qemu.sh -n 2 $build/aarch64/computron" || failed=1
  else
    echo "portable: aarch64: no $program to compare tokens with (PROGRAM)"
    failed=1
  fi
  return "$failed"
}

mkdir -p "$build"
parts=("$@")
[ $# -gt 0 ] || parts=(aarch64 clang mpich gcc14 deb image spack)
ended=0
for part in "${parts[@]}"; do
  declare -F "part_$part" >/dev/null || { echo "${0##*/}: no part '$part': aarch64, clang, mpich, gcc14, deb, image, spack, here" >&2; exit 64; }
  "part_$part"
  case $? in
    0) echo "portable: $part: passed" ;;
    77) [ $# -eq 0 ] || [ $ended -ne 0 ] || ended=77 ;;
    *) echo "portable: $part: FAILED (logs: $build/$part.*.log)"; ended=1 ;;
  esac
done
[ ${#rows[@]} -eq 0 ] || printf '%s\n' '| compiler | MPI | processor | tests passed | commit, day |' '|---|---|---|---|---|' "${rows[@]}"
exit $ended
