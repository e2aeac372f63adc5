#!/usr/bin/env bash
# What a job would find here: run it first, on a login node, then within an allocation, and put its output into a report.
#
#   jobs/doctor.sh [--json] [--program COMPUTRON] [--file CHECKPOINT.h5] [--ranks N] [--threads N]
#
#   --program   the program (COMPUTRON, build/release/computron of the repository, or the one of the PATH)
#   --file      a checkpoint, of which at most a gigabyte is read, past the cache where the file system allows it
#   --ranks     ranks on this node (what the launcher or Slurm says, or 1); --threads of each (SLURM_CPUS_PER_TASK, or 1)
#   --json      one object instead of lines
#   MPIRUN=...  the launcher, where it is neither mpirun nor mpiexec, or the PATH has another library's
#
# Each line is `ok|warn|fail  what: what was seen  -- what to do`. `fail`: a job would not run, or not as one; `warn`: it
# would, but slower or with less. Ends with 1 if a line says fail, else with 0; 64 for a wrong option. It changes nothing.
# Needs bash, coreutils, grep and sed; what else it asks (mpirun, srun, nvidia-smi, ldd) it asks where it is.
set -uo pipefail
export LC_ALL=C

json='' program="${COMPUTRON:-}" file='' ranks='' threads=''
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --json) json=yes ;;
    --program | --file | --ranks | --threads)
      [ $# -gt 1 ] || { echo "doctor.sh: $1 needs a value" >&2; exit 64; }
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "doctor.sh: unknown option '$1' (--help)" >&2; exit 64 ;;
  esac
  shift
done
for number in "$ranks" "$threads"; do
  case "$number" in
    *[!0-9]* | 0) echo "doctor.sh: --ranks and --threads are numbers from 1 on, not '$number'" >&2; exit 64 ;;
  esac
done

# --- How a line is said -----------------------------------------------------------------------------------------------

failed=0 items=()
quoted() {
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  text="${text//[$'\t\n\r']/ }"
  printf '"%s"' "${text//[[:cntrl:]]/}"
}
# say LEVEL WHAT SEEN [DO]
say() {
  local seen="${3//[$'\n\r\t']/ }"
  [ "$1" != fail ] || failed=1
  items+=("{\"level\": \"$1\", \"what\": \"$2\", \"seen\": $(quoted "$seen"), \"do\": $(quoted "${4:-}")}")
  [ -n "$json" ] || printf '%-4s  %s: %s%s\n' "$1" "$2" "$seen" "${4:+  -- $4}"
}
have() { command -v "$1" >/dev/null 2>&1; }
first_line() { sed -n 1p; }
contents() { [ -r "$1" ] && tr -d '\0' <"$1" 2>/dev/null; }

# --- Program and MPI --------------------------------------------------------------------------------------------------

version='' linked=''
find_program() {
  local here
  here="$(cd "$(dirname "$0")/.." && pwd)"
  if [ -z "$program" ]; then
    program="$here/build/release/computron"
    [ -x "$program" ] || program="$(command -v computron)" || program=''
  fi
}

check_program() {
  find_program
  if [ -z "$program" ] || [ ! -x "$program" ]; then
    say fail program "${program:-no computron on the PATH}" "build it (jobs/build.sh), load its module, or give --program"
    return
  fi
  local missing
  missing="$(have ldd && ldd "$program" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | tr '\n' ' ')"
  if [ -n "$missing" ]; then
    say fail program "$program lacks ${missing% }" "load the modules it was built with, or set LD_LIBRARY_PATH"
    return
  fi
  if ! version="$(timeout 20 "$program" --version 2>&1)"; then
    say fail program "$program --version: $version" "build it on a processor like this one, with libraries of this system"
    version=''
    return
  fi
  say ok program "${version//$'\n'/; }"
  case "$version" in
    *"Open MPI"*) linked='Open MPI' ;;
    *"Cray MPICH"* | *"CRAY MPICH"*) linked='Cray MPICH' ;;
    *"Intel"*"MPI"*) linked='Intel MPI' ;;
    *MVAPICH*) linked=MVAPICH ;;
    *MPICH*) linked=MPICH ;;
  esac
}

# The library that a launcher belongs to, as it says itself.
launcher_of() {
  local text
  text="$(timeout 10 "$1" --version 2>&1 </dev/null | head -n 3)"
  case "$text" in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) echo 'Open MPI' ;;
    *"Intel(R) MPI"*) echo 'Intel MPI' ;;
    *HYDRA*) echo MPICH ;;
    *PALS*) echo 'Cray MPICH' ;;
  esac
}

# Libraries that one PMI starts: MPICH's children speak Hydra's.
family() {
  case "$1" in
    MPICH | 'Intel MPI' | MVAPICH) echo Hydra ;;
    *) echo "$1" ;;
  esac
}

# How this very process was started, if as a rank: by the PMI in which its launcher speaks to it.
spoken=''
if [ -n "${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-}}" ]; then spoken=pmix
elif [ -n "${PALS_RANKID:-}" ]; then spoken=cray_shasta
elif [ -n "${PMI_RANK:-}" ]; then spoken=pmi2
elif [ -n "${SLURM_STEP_ID:-}" ] && [ "${SLURM_STEP_NUM_TASKS:-1}" -gt 1 ]; then spoken=none; fi

check_mpirun() {
  local launcher started
  if [ -n "$spoken" ]; then
    say ok mpirun "this is a rank already"
    return
  fi
  [ -n "$temporary" ] || return  # it would fail, or make the folder
  launcher="$(if [ -n "${MPIRUN:-}" ]; then command -v "$MPIRUN"; else command -v mpirun || command -v mpiexec; fi)" || {
    if [ -n "${MPIRUN:-}" ]; then
      say fail mpirun "MPIRUN is $MPIRUN, which is not there" "load its module, or unset MPIRUN"
    elif have srun; then
      say ok mpirun "none; srun starts the ranks"
    else
      say fail mpirun "neither mpirun nor srun is on the PATH" "load the MPI module that the program was built with"
    fi
    return
  }
  started="$(launcher_of "$launcher")"
  if [ -z "$started" ]; then
    say warn mpirun "$launcher does not say whose it is" "it must belong to the program's MPI library, ${linked:-unknown}"
  elif [ -n "$linked" ] && [ "$(family "$started")" != "$(family "$linked")" ]; then
    say fail mpirun "$launcher is that of $started, the program's library is $linked: each rank would be rank 0 of 1" \
      "load $linked's module, or call its mpirun by its path (MPIRUN=mpirun.openmpi or mpirun.mpich)"
  else
    start_two "$launcher" "$started"
  fi
}

# Whether the launcher starts anything, and numbers it.
start_two() {
  local said ranks_seen
  # shellcheck disable=SC2016
  said="$(timeout 30 "$1" -n 2 sh -c 'echo "rank ${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${PALS_RANKID:-none}}}}"' \
    2>&1 </dev/null)"
  ranks_seen="$(grep -c -x 'rank [01]' <<<"$said")"
  if [ "$ranks_seen" = 2 ]; then
    say ok mpirun "$1 ($2) starts two processes as ranks 0 and 1"
    return
  fi
  case "$said" in
    *"not enough slots"*)
      say warn mpirun "$1 has a slot for one process only" "more ranks than cores: . jobs/mpi-env.sh, or ask for more tasks" ;;
    *"run as root"* | *"running as root"* | *"as root"*)
      say warn mpirun "$1 refuses root" "be another user, or . jobs/mpi-env.sh in a container of your own" ;;
    *)
      say fail mpirun "$1 -n 2 does not start two ranks: $(grep -v '^[-[:space:]]*$' <<<"$said" | head -n 2)" \
        "ask the site how jobs are started; srun may be the only way" ;;
  esac
}

# The PMIs by which srun can start the program's library.
pmis_of() {
  case "$1" in
    'Open MPI') echo 'pmix' ;;
    'Cray MPICH') echo 'cray_shasta pmi2 pmix' ;;
    *) echo 'pmi2 pmix cray_shasta' ;;
  esac
}

check_pmi() {
  if [ -n "$spoken" ]; then
    check_rank
    return
  fi
  if ! have srun; then
    say ok pmi "no srun here: mpirun starts the ranks"
    return
  fi
  local list pmi wanted='' default
  list="$(timeout 20 srun --mpi=list 2>&1)"
  for pmi in $(pmis_of "$linked"); do
    if grep -qw -- "$pmi" <<<"$list"; then wanted="$pmi"; break; fi
  done
  if ! grep -qiE 'plugin|pmi2|none' <<<"$list"; then
    say warn pmi "srun cannot say what it speaks: $(first_line <<<"$list")" "ask the site whether Slurm runs here"
    return
  fi
  if [ -z "$wanted" ]; then
    say fail pmi "srun speaks none of $(pmis_of "$linked") that ${linked:-the program} needs: $(tr -s '\n\t ' ' ' <<<"$list")" \
      "use jobs/serve-mpirun.sbatch"
    return
  fi
  default="$(timeout 20 scontrol show config 2>/dev/null | sed -n 's/^MpiDefault *= *//p')"
  say ok pmi "srun --mpi=$wanted starts ${linked:-the program} (the site's default: ${default:-unknown})"
}

# As a rank.
check_rank() {
  if grep -qw -- "$spoken" <<<"$(pmis_of "$linked")"; then
    say ok pmi "this rank's launcher speaks $spoken, as ${linked:-the program} does"
  else
    say fail pmi "this rank's launcher speaks $spoken, ${linked:-the program} only $(pmis_of "$linked"): each rank would be rank 0 of 1" \
      "srun --mpi=$(pmis_of "$linked" | cut -d ' ' -f 1), or the mpirun of ${linked:-the program}'s library"
  fi
}

# --- GPUs -------------------------------------------------------------------------------------------------------------

gpus=0
check_gpus() {
  local list
  if ! have nvidia-smi; then
    case "$version" in
      *CUDA*) say warn gpus "no nvidia-smi: the program, built with CUDA, will compute on the CPU" "on a login node all is well; else ask for a node with GPUs" ;;
      *) say ok gpus "none; the program computes on the CPU" ;;
    esac
    return
  fi
  list="$(timeout 60 nvidia-smi -L 2>&1)" || {
    say fail gpus "nvidia-smi: $(first_line <<<"$list")" "ask for GPUs (--gpus-per-node), or report the node's driver"
    return
  }
  gpus="$(grep -c '^GPU ' <<<"$list")"
  if [ "$gpus" = 0 ]; then
    say warn gpus "nvidia-smi sees none" "ask for GPUs (--gpus-per-node), or give --device cpu"
  elif [ "$gpus" -lt "$ranks" ]; then
    say fail gpus "$gpus for $ranks ranks of this node" "one rank a GPU: fewer ranks, no --gpus-per-task and no --gpu-bind"
  elif [ -n "$version" ] && [ "${version/CUDA/}" = "$version" ]; then
    say warn gpus "$gpus, and a program built without CUDA" "build it where nvcc is: jobs/build.sh cuda"
  else
    say ok gpus "$gpus: $(sed -n 's/^GPU [0-9]*: \(.*\) (UUID.*/\1/p' <<<"$list" | sort -u | tr '\n' ' ')"
  fi
  check_topology
}

# SYS: two GPUs whose way leads through the link between sockets.
check_topology() {
  [ "$gpus" -gt 1 ] || return
  local matrix worst
  matrix="$(timeout 60 nvidia-smi topo -m 2>/dev/null | grep -E '^GPU[0-9]+' | cut -f "2-$((gpus + 1))")"
  for worst in SYS NODE PHB PXB PIX NV; do
    grep -q "$worst" <<<"$matrix" && break
  done
  case "$worst" in
    NV) say ok topology "NVLink between all GPUs" ;;
    SYS) say warn topology "some GPUs reach each other only across sockets (SYS)" "keep --tp within a socket, --pp across" ;;
    *) say ok topology "the longest way between two GPUs is $worst" ;;
  esac
}

check_nccl() {
  case "$version" in
    *NCCL*) ;;
    *) say ok nccl "not in this program: MPI carries sums"; return ;;
  esac
  [ "$gpus" -gt 1 ] || { say ok nccl "nothing to carry between GPUs of this node"; }
  local off=() name
  for name in NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE NCCL_NVLS_DISABLE; do
    [ "${!name:-0}" = 0 ] || off+=("$name=${!name}")
  done
  [ ${#off[@]} = 0 ] || say warn nccl "the environment turns off: ${off[*]}" "unset it unless the site says otherwise"
  if [ -d /sys/class/cxi ]; then
    if libraries | grep -q 'libnccl-net'; then
      say ok nccl "Slingshot, with NCCL's plugin for libfabric"
    else
      say warn nccl "Slingshot, but no libnccl-net.so: NCCL would use sockets" "load the site's aws-ofi-nccl module; NCCL_NET='AWS Libfabric'"
    fi
  elif [ -d /sys/class/infiniband ] && [ -n "$(ls -A /sys/class/infiniband)" ]; then
    say ok nccl "InfiniBand: $(basename -a /sys/class/infiniband/* | tr '\n' ' ')"
  elif [ "${SLURM_NNODES:-1}" -gt 1 ]; then
    say warn nccl "between nodes only sockets (${NCCL_SOCKET_IFNAME:-any interface})" "--pp across nodes; NCCL_SOCKET_IFNAME names the fast network"
  fi
}
libraries() {
  local folder
  while read -r -d : folder; do ls "$folder" 2>/dev/null; done <<<"${LD_LIBRARY_PATH:-}:"
}

# --- Memory -----------------------------------------------------------------------------------------------------------

kib_text() { if [ "$1" -ge 10485760 ]; then echo "$(($1 / 1048576)) GiB"; else echo "$(($1 / 1024)) MiB"; fi; }

# InfiniBand registers what it sends; what the CUDA driver pins does not count.
check_locked() {
  local limit do='the site raises memlock in limits.conf, and for Slurm PropagateResourceLimitsExcept=MEMLOCK'
  limit="$(ulimit -l)"
  if [ "$limit" = unlimited ]; then
    say ok memlock "unlimited"
  elif [ -d /sys/class/infiniband ] && [ -n "$(ls -A /sys/class/infiniband)" ] && [ "$limit" -lt 1048576 ]; then
    say fail memlock "$limit KiB may be locked: InfiniBand cannot register its buffers" "ulimit -l unlimited; $do"
  elif [ "$limit" -lt 1024 ]; then
    say warn memlock "$limit KiB may be locked" "ulimit -l unlimited; $do"
  else
    say ok memlock "$limit KiB, and no InfiniBand here that would need more"
  fi
}

check_huge_pages() {
  local pages
  pages="$(contents /sys/kernel/mm/transparent_hugepage/enabled)" || pages=''
  case "$pages" in
    *'[always]'* | *'[madvise]'*) say ok hugepages "transparent huge pages: $pages" ;;
    '') say warn hugepages "/sys says nothing of transparent huge pages" "mount it, or ask whether the kernel has them" ;;
    *) say warn hugepages "transparent huge pages: $pages" "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (root): weights then cost fewer TLB misses" ;;
  esac
}

# Where MPI exchanges messages within a node: 4 MiB of each rank for each other one with Open MPI, one segment with MPICH.
check_shared_memory() {
  local free need=$((ranks * 32768))
  if [ ! -d /dev/shm ] || [ ! -w /dev/shm ]; then
    say fail shm "/dev/shm is not there, or nobody may write to it" "mount a tmpfs there (containers: --shm-size, --ipc=host)"
    return
  fi
  case "$(stat -f -c %T /dev/shm 2>/dev/null)" in
    tmpfs | ramfs) ;;
    *) say warn shm "/dev/shm is a folder of a disk" "mount a tmpfs there: messages within the node go through it"; return ;;
  esac
  free="$(df -Pk /dev/shm 2>/dev/null | sed -n '$s/  */ /gp' | cut -d ' ' -f 4)"
  case "$free" in
    '' | *[!0-9]*) say warn shm "nobody says how much /dev/shm has left" "df -k /dev/shm" ;;
    *)
      if [ "$free" -lt $((need / 4)) ]; then
        say fail shm "/dev/shm has $free KiB left, $ranks ranks want $need" "remove what ended jobs left there, or mount it larger (containers: --shm-size)"
      elif [ "$free" -lt "$need" ]; then
        say warn shm "/dev/shm has $(kib_text "$free") left, $ranks ranks want $(kib_text "$need")" "mount it larger (containers: --shm-size)"
      else
        say ok shm "/dev/shm has $(kib_text "$free") left"
      fi
      ;;
  esac
}

# The least limit of this process's control groups, of either version, in KiB; empty without one.
cgroup_limit_kib() {
  local id controllers path folder file value least=''
  while IFS=: read -r id controllers path; do
    case "$id:$controllers" in
      0:) folder=/sys/fs/cgroup file=memory.max ;;
      *:*memory*) folder=/sys/fs/cgroup/memory file=memory.limit_in_bytes ;;
      *) continue ;;
    esac
    while :; do
      value="$(contents "$folder$path/$file")"
      case "$value" in
        '' | max | *[!0-9]*) ;;
        *) value=$((value / 1024)); if [ -z "$least" ] || [ "$value" -lt "$least" ]; then least="$value"; fi ;;
      esac
      [ -n "${path%/}" ] || break
      path="${path%/*}"
    done
  done </proc/self/cgroup
  echo "$least"
}

check_memory() {
  local total limit size=0
  total="$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
  if [ -z "$total" ]; then
    say warn memory "/proc is not mounted" "mount it: the program reads there what memory is left"
    return
  fi
  limit="$(cgroup_limit_kib)"
  [ -n "$limit" ] && [ "$limit" -lt "$total" ] || limit="$total"
  [ -z "$file" ] || [ ! -r "$file" ] || size=$(($(stat -L -c %s "$file") / 1024))
  if [ "$limit" -lt $((ranks * 262144 + size)) ]; then
    say fail memory "this job may have $(kib_text "$limit") of the node's $(kib_text "$total"), $ranks ranks need $(kib_text $((ranks * 262144 + size)))" \
      "ask for more (--mem); every rank holds its share of all models"
  elif [ "$limit" -lt "$total" ]; then
    say ok memory "the control group allows $(kib_text "$limit") of the node's $(kib_text "$total")"
  else
    say ok memory "$(kib_text "$total"), not limited"
  fi
}

# --- Cores, clock, files ----------------------------------------------------------------------------------------------

check_cores() {
  local allowed online list
  allowed="$(nproc 2>/dev/null)" online="$(nproc --all 2>/dev/null)"
  [ -n "$allowed" ] || { say warn cores "nobody says how many there are" "install coreutils"; return; }
  list="$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status 2>/dev/null)"
  # Within a rank its own cores count, elsewhere those of all ranks.
  local wanted=$((ranks * threads)) whom="$ranks ranks of $threads threads"
  if [ -n "$spoken" ] && [ "$allowed" -lt "$online" ]; then
    wanted="$threads" whom="this rank's $threads threads"
  fi
  if [ "$allowed" -lt "$wanted" ]; then
    say warn cores "$whom on $allowed of $online cores (${list:-unknown})" \
      "ask for --cpus-per-task=$threads a rank (mpirun: --bind-to none or --map-by slot:PE=$threads), or fewer --threads"
  else
    say ok cores "$whom on $allowed of $online cores (${list:-unknown})"
  fi
}

check_clock() {
  local source year
  year="$(date +%Y)"
  source="$(contents /sys/devices/system/clocksource/clocksource0/current_clocksource)" || source=''
  if [ "$year" -lt 2025 ]; then
    say fail clock "it is $(date -u +%FT%TZ) here" "have the node's clock set: Slurm's credentials and times of files depend on it"
    return
  fi
  case "$source" in
    tsc | kvm-clock | arch_sys_counter | hyperv_clocksource* | xen | '') say ok clock "$(date -u +%FT%TZ), ${source:-unknown source}" ;;
    *) say warn clock "$(date -u +%FT%TZ), read from $source, which takes microseconds" "the site boots with tsc, if the processor's is stable" ;;
  esac
}

check_file() {
  if [ -z "$file" ]; then
    say ok checkpoint "not read" "--file CHECKPOINT.h5 measures how fast its file system is"
    return
  fi
  if [ ! -r "$file" ] || [ ! -f "$file" ]; then
    say fail checkpoint "$file cannot be read" "the same name must be there on every node"
    return
  fi
  local began took size kind way='past the cache' count=256
  size="$(stat -L -c %s "$file")"
  kind="$(stat -L -f -c %T "$file" 2>/dev/null)"
  began="$(date +%s%N)"
  if ! dd if="$file" of=/dev/null bs=4M count=$count iflag=direct 2>/dev/null; then
    way='perhaps from the cache' began="$(date +%s%N)"
    dd if="$file" of=/dev/null bs=4M count=$count 2>/dev/null || { say fail checkpoint "reading $file fails" "look at dd if=$file of=/dev/null"; return; }
  fi
  took=$((($(date +%s%N) - began) / 1000 + 1))
  [ "$size" -le $((count * 4194304)) ] || size=$((count * 4194304))
  local mb_per_s=$((size / took))
  local seen="$mb_per_s MB/s of ${kind:-an unknown file system}, $((size / 1000000)) MB of one reader, $way"
  if [ "$size" -lt 16000000 ]; then
    say ok checkpoint "$seen" "too small a file to tell a rate"
  elif [ "$mb_per_s" -lt 200 ]; then
    say warn checkpoint "$seen" "stripe the file (lustre: lfs setstripe -c -1), or stage it: STAGE of jobs/serve-nodes.sbatch"
  else
    say ok checkpoint "$seen"
  fi
}

check_temporary() {
  local folder="${TMPDIR:-/tmp}"
  temporary=''
  if [ -d "$folder" ] && [ -w "$folder" ]; then
    temporary="$folder"
    say ok tmp "$folder"
  else
    say fail tmp "$folder is not a folder that can be written" "set TMPDIR: MPI's session and the flight recorder are there"
  fi
}

# --- All of it --------------------------------------------------------------------------------------------------------

per_node="${SLURM_NTASKS_PER_NODE:-${SLURM_STEP_TASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-}}}"
per_node="${per_node%%[!0-9]*}"  # "2(x4)": two on each of four nodes
ranks="${ranks:-${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-${per_node:-1}}}}"
threads="${threads:-${SLURM_CPUS_PER_TASK:-1}}"
[ -n "$json" ] || echo "doctor.sh: $(uname -n), $(uname -sr) $(uname -m)${SLURM_JOB_ID:+, Slurm job $SLURM_JOB_ID}"
check_program
check_temporary  # before mpirun, which makes the folder where it may
check_mpirun
check_pmi
check_gpus
check_nccl
check_locked
check_huge_pages
check_shared_memory
check_memory
check_cores
check_clock
check_file
if [ -n "$json" ]; then
  printf '{"host": %s, "system": %s, "job": %s, "ok": %s, "checks": [\n' "$(quoted "$(uname -n)")" \
    "$(quoted "$(uname -srm)")" "$(quoted "${SLURM_JOB_ID:-}")" "$([ "$failed" = 0 ] && echo true || echo false)"
  for ((i = 0; i < ${#items[@]}; ++i)); do
    printf '  %s%s\n' "${items[i]}" "$([ $((i + 1)) = ${#items[@]} ] || echo ,)"
  done
  echo ']}'
fi
exit "$failed"
