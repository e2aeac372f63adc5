# shellcheck shell=bash
# Source me: a Slurm of one machine for tests, all of it below a folder of its own. No systemd, control groups, munge or
# names; loopback only. Needs root, for the device files that stand for GPUs and because slurmd insists.
#
#   slurm_missing            says what is not there, or nothing
#   slurm_up ROOT NODES CPUS GPUS     n1, n2, ...; partitions main and, above it, high; SLURM_CONF is set
#                            MPI_DEFAULT=pmix MORE_CONF=...: what srun speaks unasked; more lines of slurm.conf
#   slurm_down ROOT          whatever was started ends, also what jobs have left

slurm_missing() {
  local program
  for program in slurmctld slurmd sbatch srun scontrol squeue scancel setpriv; do
    command -v "$program" >/dev/null 2>&1 || { echo "no $program"; return; }
  done
  [ "$(id -u)" = 0 ] || echo "only root can start slurmd"
}

# A port that nobody listens at, and so many after it.
free_ports() {
  local first="$1" count="$2" port
  for ((port = first; port < first + count; ++port)); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      free_ports $((port + 1)) "$count"
      return
    fi
  done
  echo "$first"
}

slurm_configure() {
  local root="$1" nodes="$2" cpus="$3" gpus="$4" port host
  port="$(free_ports $((20000 + $$ % 20000)) $((nodes + 1)))"
  host="$(hostname -s)"
  # cred_expire: a requeued job waits until its old credentials are void. TmpFS: where Slurm's PMIx makes its folders,
  # which two nodes of one machine must not share. config_overrides: nodes may claim more cores than there are.
  cat >"$root/slurm.conf" <<CONF
ClusterName=computron_test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmctldPort=$port
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool.%n
TmpFS=$root/tmp.%n
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/slurmd.%n.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=${MPI_DEFAULT:-pmix}
${MORE_CONF:-}
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,default_queue_depth=100
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=3
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=4000 Gres=gpu:fake:$gpus State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=10 PreemptMode=OFF
CONF
  printf 'CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n' >"$root/cgroup.conf"
}

# Device files, as Slurm wants them; nobody opens them.
slurm_make_gpus() {
  local root="$1" nodes="$2" gpus="$3" n g
  : >"$root/gres.conf"
  for ((n = 1; n <= nodes; ++n)); do
    for ((g = 0; g < gpus; ++g)); do mknod "$root/dev/n$n.gpu$g" c 1 3 || return 1; done
    echo "NodeName=n$n Name=gpu Type=fake File=$root/dev/n$n.gpu[0-$((gpus - 1))]" >>"$root/gres.conf"
  done
}

slurm_up() {
  local root="$1" nodes="$2" n
  mkdir -p "$root"/{state,log,dev}
  slurm_make_gpus "$root" "$nodes" "$4" || return 1
  slurm_configure "$@"
  export SLURM_CONF="$root/slurm.conf"
  setpriv --pdeathsig KILL slurmctld -D -c >"$root/log/slurmctld.out" 2>&1 &
  for ((n = 1; n <= nodes; ++n)); do
    mkdir -p "$root/spool.n$n" "$root/tmp.n$n"
    setpriv --pdeathsig KILL slurmd -D -N "n$n" >"$root/log/slurmd.n$n.out" 2>&1 &
  done
  for ((n = 0; n < 300; ++n)); do
    [ "$(sinfo --noheader --partition=main --states=idle --format=%D 2>/dev/null)" = "$nodes" ] && return 0
    sleep 0.1
  done
  tail -n 20 "$root"/log/*
  return 1
}

# Processes that know this Slurm: its own, and those of jobs.
slurm_processes() {
  local environ
  for environ in /proc/[0-9]*/environ; do
    grep -qzsxF "SLURM_CONF=$1/slurm.conf" "$environ" && basename "$(dirname "$environ")"
  done
}

slurm_down() {
  local root="$1" pids
  if [ -n "${SLURM_CONF:-}" ]; then timeout 10 scancel --signal=KILL --full --user=root 2>/dev/null; fi
  for _ in 1 2 3; do
    readarray -t pids < <(slurm_processes "$root")
    [ "${#pids[@]}" -gt 0 ] || return 0
    disown -a
    kill -KILL "${pids[@]}" 2>/dev/null
    sleep 0.2
  done
}
