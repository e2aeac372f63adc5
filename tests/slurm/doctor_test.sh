#!/usr/bin/env bash
# doctor_test.sh PROGRAM SOURCE: jobs/doctor.sh finds nothing amiss here, names each fault that is injected, and knows a
# Slurm's steps from one another. What needs mount namespaces, or Slurm, is left out where those cannot be had; it says so.
# shellcheck disable=SC2016  # what stands in expands it
set -uo pipefail
program="$1" source="$2"
. "$source/tests/slurm/slurm.sh"
. "$source/jobs/mpi-env.sh"
work="$(mktemp -d /tmp/computron_doctor.XXXXXX)"
trap 'slurm_down "$work/slurm"; rm -rf "$work"' EXIT
for name in ${!SLURM_*}; do unset "$name"; done

# examine CODE LINE ARGUMENTS...: the doctor ends with CODE and says a line that begins with LINE. `within` is what it is
# started by, `$work/bin` the commands that stand in for the machine's.
within=()
mkdir "$work/bin"
examine() {
  local code="$1" line="$2" said got
  shift 2
  said="$(PATH="$work/bin:$PATH" "${within[@]}" "$source/jobs/doctor.sh" --program "$program" "$@" 2>&1)"
  got=$?
  if [ "$got" != "$code" ] || ! grep -q -- "^$line" <<<"$said" || grep -q 'doctor.sh: line' <<<"$said"; then
    printf 'doctor_test: not %s and "%s", but %s:\n%s\n' "$code" "$line" "$got" "$said"
    exit 1
  fi
}
# stand_in NAME LINE...: a command of that name does what the lines say.
stand_in() {
  printf '%s\n' '#!/bin/sh' "${@:2}" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
withdraw() { rm "$work/bin/$1"; }

# --- Nothing is amiss ---------------------------------------------------------------------------------------------------

stand_in srun 'echo "MPI plugin types are..."; echo "	none"; echo "	pmi2"; echo "	pmix"'
stand_in nvidia-smi '[ "$1" = -L ] && echo "GPU 0: Fake (UUID: 0)"; exit 0'
examine 0 'ok    mpirun'
examine 0 'ok    pmi: srun --mpi=pmix'
# From here on one that takes no time.
quick=('[ "$1" = --version ] && exec echo "mpirun (Open MPI) 4.1.4"; printf "rank 0\nrank 1\n"')
stand_in mpirun "${quick[@]}"
examine 0 'ok    memory'
head -c 20000000 /dev/zero >"$work/model.h5"
examine 0 '[a-z]*  *checkpoint: [0-9]* MB/s' --file "$work/model.h5"
"$source/jobs/doctor.sh" --json --program "$program" >"$work/said.json"
if command -v jq >/dev/null; then
  [ "$(jq '[.checks[] | select(.level and .what and .seen)] | length >= 12' "$work/said.json")" = true ] ||
    { echo "doctor_test: no object: $(cat "$work/said.json")"; exit 1; }
fi
examine 64 "doctor.sh: unknown option '--jsn'" --jsn
examine 64 'doctor.sh: --ranks' --ranks none

# --- Each fault is named ------------------------------------------------------------------------------------------------

examine 1 'fail  program: /no/such' --program /no/such
stand_in ldd 'printf "\tlibmpi.so.40 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"'
examine 1 'fail  program: .* lacks libmpi.so.40 '
withdraw ldd
stand_in old 'echo "GLIBC_2.38 not found" >&2; exit 1'
examine 1 'fail  program: .*/old --version: GLIBC_2.38 not found' --program "$work/bin/old"
withdraw old
stand_in mpirun 'echo "HYDRA build details:"'
examine 1 "fail  mpirun: .*mpirun is that of MPICH, the program's library is Open MPI"
stand_in mpirun.site "${quick[@]}"
within=(env MPIRUN=mpirun.site)
examine 0 'ok    mpirun: .*/mpirun.site (Open MPI) starts two'
within=(env MPIRUN=mpirun.none)
examine 1 'fail  mpirun: MPIRUN is mpirun.none, which is not there'
within=()
stand_in mpirun '[ "$1" != --version ] || exec echo "mpirun (Open MPI) 4.1.4"' 'echo "cannot open a session" >&2; exit 1'
examine 1 'fail  mpirun: .* does not start two ranks: cannot open a session'
stand_in mpirun "${quick[@]}"
stand_in srun 'echo "MPI plugin types are..."; echo "	none"; echo "	pmi2"'
examine 1 'fail  pmi: srun speaks none of pmix'
within=(env PMI_RANK=0 PMI_SIZE=2)
examine 1 "fail  pmi: this rank's launcher speaks pmi2, Open MPI only pmix"
withdraw srun
within=(env -u DISPLAY)
stand_in nvidia-smi 'echo "no driver"; exit 9'
examine 1 'fail  gpus: nvidia-smi: no driver'
stand_in nvidia-smi '[ "$1" = topo ] || exec printf "GPU 0: F (UUID: 0)\nGPU 1: F (UUID: 1)\n"' \
  'printf "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0\nGPU1\tSYS\t X \t0\n"'
examine 1 'fail  gpus: 2 for 4 ranks' --ranks 4
examine 0 'warn  topology: some GPUs reach each other only across sockets' --ranks 2
# A program of GPUs, whatever this one is.
stand_in gpu_program 'echo "computron 0.1.0, CUDA 12.9, NCCL 2.18, MPI 3.1: Open MPI v4.1.4"'
within=(env NCCL_P2P_DISABLE=1)
examine 0 'warn  nccl: the environment turns off: NCCL_P2P_DISABLE=1' --ranks 2 --program "$work/bin/gpu_program"
if [ ! -d /sys/class/cxi ] && [ ! -d /sys/class/infiniband ]; then
  within=(env SLURM_NNODES=2)
  examine 0 'warn  nccl: between nodes only sockets' --ranks 2 --program "$work/bin/gpu_program"
fi
within=(env -u DISPLAY)
withdraw nvidia-smi
within=(bash -c 'ulimit -l 64; exec "$@"' bash)
examine 0 'warn  memlock: 64 KiB'
within=(taskset -c 0)
examine 0 'warn  cores: 1 ranks of 2 threads on 1 of' --threads 2
within=()
examine 0 'warn  cores: 4 ranks of 64 threads on' --ranks 4 --threads 64
examine 1 'fail  checkpoint: /no/such.h5 cannot be read' --file /no/such.h5
stand_in dd 'sleep 0.3'
examine 0 'warn  checkpoint: [0-9]* MB/s' --file "$work/model.h5"
withdraw dd
within=(env TMPDIR=/no/such)
examine 1 'fail  tmp: /no/such'
stand_in date '[ "$1" = +%Y ] && echo 1970 || exec /bin/date "$@"'
within=()
examine 1 'fail  clock'
withdraw date

if unshare --mount true 2>/dev/null; then
  within=(unshare --mount bash -c 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"' bash)
  examine 1 'fail  shm: /dev/shm has 10[0-9]* KiB left, 1 ranks want 32768'
  within=(unshare --mount bash -c 'mount -t tmpfs -o size=24m none /dev/shm && exec "$@"' bash)
  examine 0 'warn  shm: /dev/shm has 2[0-9] MiB left'
  # A control group that allows 100 MiB, of whichever version this process has.
  # shellcheck disable=SC2016
  within=(unshare --mount bash -c 'mount -t tmpfs none /sys/fs/cgroup
    group="$(sed -n "s/^[0-9]*:[^:]*memory[^:]*://p" /proc/self/cgroup)"
    if [ -n "$group" ]; then folder="/sys/fs/cgroup/memory$group" file=memory.limit_in_bytes
    else folder="/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)" file=memory.max; fi
    mkdir -p "$folder" && echo 104857600 >"$folder/$file" && exec "$@"' bash)
  examine 1 "fail  memory: this job may have 100 MiB of the node's"
  # What the kernel says, said otherwise.
  hide=(unshare --mount bash -c 'echo "$1" >"$0.said" && mount --bind "$0.said" "$2" && shift 2 && exec "$@"' "$work/kernel")
  pages=/sys/kernel/mm/transparent_hugepage/enabled clock=/sys/devices/system/clocksource/clocksource0/current_clocksource
  if [ -e "$pages" ]; then
    within=("${hide[@]}" 'always madvise [never]' "$pages")
    examine 0 'warn  hugepages: transparent huge pages: always madvise \[never\]'
  fi
  if [ -e "$clock" ]; then
    within=("${hide[@]}" hpet "$clock")
    examine 0 'warn  clock: .*, read from hpet'
  fi
  within=()
else
  echo "doctor_test: no mount namespaces here: /dev/shm and control groups stay as they are"
fi

# --- In a Slurm ---------------------------------------------------------------------------------------------------------

missing="$(slurm_missing)"
if [ -n "$missing" ]; then
  echo "doctor_test: $missing: not tried in a Slurm"
  exit 0
fi
mkdir "$work/slurm"
slurm_up "$work/slurm" 1 4 1 || { echo "doctor_test: Slurm does not start"; exit 1; }
step=(srun --quiet --immediate=20 --chdir="$work" --ntasks=2 --ntasks-per-node=2 --overcommit)
within=("${step[@]}" --mpi=pmix)
examine 0 "ok    pmi: this rank's launcher speaks pmix"
within=("${step[@]}" --mpi=none)
examine 1 "fail  pmi: this rank's launcher speaks none, Open MPI only pmix"
within=("${step[@]}" --mpi=pmi2)
examine 1 "fail  pmi: this rank's launcher speaks pmi2, Open MPI only pmix"
within=(salloc --quiet --chdir="$work" --ntasks=4 --ntasks-per-node=4)
examine 0 'ok    pmi: srun --mpi=pmix starts Open MPI (the site.s default: pmix)'
[ "$(nproc)" -ge 4 ] || examine 0 'warn  cores: 4 ranks of 1 threads'
