#!/usr/bin/env bash
# job_scripts_test.sh SOURCE: what the job scripts make of how a run ends, with commands that stand in for Slurm's and
# write down how they were called. A real Slurm: slurm_test.sh.
set -uo pipefail
source="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cd "$work" || exit 1
failures=0
fail() { echo "job_scripts_test: $*"; failures=$((failures + 1)); }

# Each command notes its name and arguments. CODE: how the run ends. SIGNALS: what the run sends to its script, or as
# many callers above it as UP says; it notes those that come back, and ends with 75 at SIGUSR1.
for name in srun mpirun scontrol; do
  cat >"bin/$name" <<STAND_IN
#!/bin/bash
printf '%s' "$name" >>"$work/calls"
printf ' %s' "\$@" >>"$work/calls"
echo >>"$work/calls"
[ "$name \${1:-}" != "scontrol show" ] || echo "   Command=\${COMMAND:-(null)}"
[ "$name" != scontrol ] || exit 0
case "$name \$*" in  # on every node, which is here
  "srun --mpi=none "*) exec "\${@:4}" ;;
esac
if [ -n "\${SIGNALS:-}" ]; then
  trap 'exit 75' USR1
  trap 'echo "$name has SIGUSR2" >>"$work/calls"; came=yes' USR2
  to="\$PPID"
  [ -z "\${UP:-}" ] || to="\$(sed -n 's/^PPid:[^0-9]*//p' "/proc/\$PPID/status")"
  for signal in \$SIGNALS; do
    came=''
    kill -s "\$signal" "\$to"
    for _ in {1..200}; do [ -z "\$came" ] || break; sleep 0.02; done
  done
  exit 70
fi
exit "\${CODE:-0}"
STAND_IN
done
# Where a script looks for its control group, and in it for processes that were killed.
cat >bin/sed <<'STAND_IN'
#!/bin/bash
case "$*" in
  */proc/self/cgroup) echo "${GROUP:-}" ;;
  *) exec /usr/bin/env PATH=/usr/bin:/bin sed "$@" ;;
esac
STAND_IN
cat >bin/grep <<'STAND_IN'
#!/bin/bash
case "$*" in
  */slurm/job_5/memory.events) exit 0 ;;
  *) exec /usr/bin/env PATH=/usr/bin:/bin grep "$@" ;;
esac
STAND_IN
chmod +x bin/*
export PATH="$work/bin:$PATH" SLURM_JOB_ID=5 SLURM_CPUS_PER_TASK=3
export ROSTER=models.json REQUESTS=requests.jsonl OUTPUT=out.jsonl
ln -s "$source/jobs" jobs

# run SCRIPT [NAME=VALUE...] -- [ARGUMENT...]: its exit code in `code`, its words in `said`, the calls in `calls`.
run() {
  local script="$1" settings=()
  shift
  while [ "$1" != -- ]; do settings+=("$1"); shift; done
  shift
  : >calls
  said="$(env "${settings[@]}" bash "jobs/$script" "$@" 2>&1)"
  code=$?
  calls="$(cat calls)"
}
ends_with() { [ "$code" = "$1" ] || fail "$2: ends with $code instead of $1: $said"; }
# requeues WHEN [ID]: the script's job, or ID, and nothing else.
requeues() {
  [ "$(grep '^scontrol requeue' calls)" = "scontrol requeue ${2:-5}" ] ||
    fail "$1: does not go back into the queue: $calls"
}
stays_out() { [[ "$calls" != *requeue* ]] || fail "$1: goes back into the queue"; }
says() { [[ "$said" == *"$1"* ]] || fail "does not say '$1': $said"; }
calls_with() { [[ "$calls" == *"$1"* ]] || fail "does not call '$1': $calls"; }

for script in serve.sbatch serve-mpirun.sbatch; do
  run "$script" -- --tp 2
  ends_with 0 "$script, in order"
  stays_out "$script, in order"
  calls_with "computron serve --models models.json --requests requests.jsonl --output out.jsonl --threads 3"
  calls_with "--tp 2"
  # The program takes each of these once.
  run "$script" -- --threads 7 --drain=5
  calls_with "--output out.jsonl --threads 7 --drain=5"
  run "$script" -- --drain-warned 9
  calls_with "--output out.jsonl --threads 3 --drain 20 --drain-warned 9"
  for wrong in 64 65 66 70 73 74 78; do
    run "$script" CODE="$wrong" --
    ends_with "$wrong" "$script, $wrong"
    stays_out "$script, $wrong"
  done
  run "$script" CODE=75 SLURM_RESTART_COUNT=99 --
  ends_with 0 "$script, stopped early"
  requeues "$script, stopped early, however often"
  [ ! -e out.jsonl.losses ] || fail "$script counts an orderly stop as a loss"
  run "$script" CODE=75 REQUEUE=0 --
  ends_with 75 "$script, stopped early, REQUEUE=0"
  stays_out "$script, stopped early, REQUEUE=0"
  launcher=
  [ "$script" = serve.sbatch ] || launcher=244
  for lost in 69 76 79 137 138 139 143 $launcher; do
    seq -f "5 loss %g" 9 >out.jsonl.losses  # and starts that were no losses
    run "$script" CODE="$lost" SLURM_RESTART_COUNT=40 --
    requeues "$script, $lost"
    run "$script" CODE="$lost" SLURM_RESTART_COUNT=41 --
    ends_with "$lost" "$script, $lost for the eleventh time"
    stays_out "$script, $lost for the eleventh time"
  done
  run "$script" CODE=139 SLURM_JOB_ID=6 SLURM_RESTART_COUNT=1 MAX_RESTARTS=1 --
  requeues "$script, MAX_RESTARTS, after another job's losses" 6
  run "$script" CODE=139 SLURM_JOB_ID=6 SLURM_RESTART_COUNT=2 MAX_RESTARTS=1 --
  stays_out "$script, MAX_RESTARTS"
  if [ -n "$launcher" ]; then  # Hydra's codes of killed ranks
    for signal in 9 11 15; do
      rm -f out.jsonl.losses
      run "$script" CODE="$signal" --
      requeues "$script, $signal"
    done
    rm -f out.jsonl.losses
  fi
  run "$script" CODE=0 --
  [ ! -e out.jsonl.losses ] || fail "$script leaves out.jsonl.losses after success"
  run "$script" CODE=139 MAX_RESTARTS=1 --
  run "$script" CODE=75 --
  run "$script" CODE=139 MAX_RESTARTS=1 --
  requeues "$script, a loss after an orderly stop"
  rm -f out.jsonl.losses
  run "$script" CODE=137 GROUP=/slurm/job_5 --
  ends_with 137 "$script, killed for memory"
  stays_out "$script, killed for memory"
  says "out of memory: ask Slurm for more (--mem)"
  run "$script" CODE=75 SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=2 --
  requeues "$script, the last task of an array, alone" 5_2
  run "$script" REQUESTS= --
  [ "$code" != 0 ] && [ -z "$calls" ] || fail "$script: runs without REQUESTS"
done

# What starts the ranks is each site's choice.
run serve.sbatch --
calls_with 'srun --mpi=pmix '
for pmi in pmi2 cray_shasta; do
  for script in serve.sbatch serve-nodes.sbatch serve-array.sbatch; do
    run "$script" SRUN_MPI="$pmi" SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=2 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 --
    calls_with "srun --mpi=$pmi "
  done
done
mv bin/mpirun bin/mpiexec.site
run serve-mpirun.sbatch MPIRUN=mpiexec.site MPIRUN_ARGS='--ppn 4' --
calls_with 'mpirun --ppn 4 computron serve'  # it calls itself by its first name
mv bin/mpiexec.site bin/mpirun

# What comes to a script goes on to the ranks: the question how the job stands, and the warning.
for script in serve.sbatch serve-mpirun.sbatch; do
  run "$script" SIGNALS="USR2 USR1" --
  calls_with "has SIGUSR2"
  requeues "$script, told to stop"
  run serve-nodes.sbatch SIGNALS="USR2 USR1" UP=1 SERVE="jobs/$script" SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 --
  calls_with "has SIGUSR2"
  requeues "serve-nodes.sbatch with $script, told to stop"
done
run serve-mpirun.sbatch SIGNALS=TERM --
requeues "serve-mpirun.sbatch, SIGTERM"
calls_with "mpirun --bind-to none computron serve"
run serve-mpirun.sbatch MPIRUN_ARGS="--map-by slot:PE=3 --bind-to core" --
calls_with "mpirun --map-by slot:PE=3 --bind-to core computron serve"

run serve.sbatch --
calls_with "srun --mpi=pmix --kill-on-bad-exit=0 --wait=60 --cpus-per-task=3 --cpu-bind=cores computron serve"

run serve-array.sbatch SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_COUNT=3 -- --tp 2
ends_with 0 "serve-array.sbatch"
calls_with "--output out.jsonl.2 "
calls_with "--shard 2/3 --tp 2"
run serve-array.sbatch SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=1 SHARDS=8 SERVE=serve-mpirun.sbatch --
calls_with "mpirun "
calls_with "--shard 5/8"
run serve-array.sbatch SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=1 --
ends_with 64 "serve-array.sbatch, task 5 of 1"
[ -z "$calls" ] || fail "serve-array.sbatch serves a shard that is none"

run serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 CODE=76 -- --max-seqs 8
requeues "serve-nodes.sbatch, 76"
calls_with "--tp 4 --pp 2 --max-seqs 8"
run serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 -- --tp 8 --pp=1
calls_with "--drain 20 --tp 8 --pp=1"
run serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 -- --pp 2 --max-seqs 8
calls_with "--drain 20 --tp 4 --pp 2 --max-seqs 8"
run serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 -- --groups 2 --tp 4
calls_with "--drain 20 --groups 2 --tp 4"
run serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 CODE=65 --
ends_with 65 "serve-nodes.sbatch, 65"

# Checkpoints are staged under any name that JSON takes as it is; else they are read where they are.
mkdir -p models disk
echo one >models/a.h5
echo two >"models/b,&.h5"
echo three >models/adapter.h5
cat >models.json <<ROSTER
[{"id": "a", "path":
   "models/a.h5"}, {"id": "b", "path" : "$work/models/b,&.h5", "pinned": true},
 {"id": "c", "path": "models/a.h5", "adapter": "models/adapter.h5"}]
ROSTER
cat >keeps_models <<'STAND_IN'
cp "$ROSTER" "$(dirname "$ROSTER")"/*.h5 "$KEPT/"
STAND_IN
mkdir kept
nodes=(SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 KEPT="$work/kept" SERVE="$work/keeps_models")
run serve-nodes.sbatch "${nodes[@]}" STAGE="$work/disk/a&b, c" --
ends_with 0 "serve-nodes.sbatch, staged"
says "checkpoints are in $work/disk/a&b, c/computron-5 on every node"
python3 - "$work" <<'PYTHON' || fail "the staged model list is $(cat kept/models.json)"
import json, sys
work = sys.argv[1]
folder = work + "/disk/a&b, c/computron-5/"
assert json.load(open(work + "/kept/models.json")) == [
    {"id": "a", "path": folder + "a.h5"}, {"id": "b", "path": folder + "b,&.h5", "pinned": True},
    {"id": "c", "path": folder + "a.h5", "adapter": folder + "adapter.h5"}]
PYTHON
cmp -s kept/b,\&.h5 models/b,\&.h5 || fail "a staged checkpoint is not the original"
cmp -s kept/adapter.h5 models/adapter.h5 || fail "a staged adapter is not the original"
[ -z "$(ls -A "disk/a&b, c")" ] || fail "staged files are left"
run serve-nodes.sbatch "${nodes[@]}" STAGE="$work/disk/a\\b" --
says "not staged: the checkpoints are read where they are"
echo '[{"id": "a", "path": "models\/a.h5"}]' >models.json
run serve-nodes.sbatch "${nodes[@]}" STAGE="$work/disk" --
says "not staged: the checkpoints are read where they are"
rm models.json

# Slurm runs a copy of what was submitted, from whatever folder; what belongs to it is found beside the original, in
# jobs/, or where the program is installed.
mkdir -p spool elsewhere/jobs prefix/bin prefix/share/computron
array=(SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=1)
# copy SCRIPT [NAME=VALUE...] --: as `run`, of a copy and from elsewhere/.
copy() {
  cp "$source/jobs/$1" spool/slurm_script
  shift
  cd elsewhere || exit 1
  : >"$work/calls"
  said="$(env "${@:1:$#-1}" bash "$work/spool/slurm_script" 2>&1)"
  code=$?
  cd "$work" || exit 1
  calls="$(cat calls)"
}
copy serve-array.sbatch "${array[@]}" --
ends_with 66 "serve-array.sbatch alone"
says "no serve.sbatch in"
copy serve-array.sbatch "${array[@]}" COMMAND="$source/jobs/serve-array.sbatch --config a/b" --
calls_with "--shard 0/1"
copy serve-nodes.sbatch SLURM_NNODES=2 SLURM_NTASKS_PER_NODE=4 SERVE=jobs/serve-mpirun.sbatch \
  COMMAND="jobs/serve-nodes.sbatch" SLURM_SUBMIT_DIR="$source" --
calls_with "mpirun "
calls_with "--tp 4 --pp 2"
ln -s "$source/jobs" prefix/share/computron/jobs
printf '#!/bin/sh\n' >prefix/bin/computron
chmod +x prefix/bin/computron
copy serve-array.sbatch "${array[@]}" PATH="$work/prefix/bin:$PATH" --
calls_with "--shard 0/1"
echo 'echo "$LAUNCH, $1"' >elsewhere/jobs/scaling-study.sh
copy scaling-study.sbatch --
says "--cpus-per-task=3 --cpu-bind=cores"
says "srun --mpi=pmix "
says "--ntasks, scaling-study-5"
copy scaling-study.sbatch SRUN_MPI=pmi2 --
says "srun --mpi=pmi2 "

# Figures of a study whose model has no room on one rank, from a fixture: compared with the first mesh.
study_of() { (cd "$work" && python3 "$source/jobs/study_tables.py" csv runs own abc 2x1 1x2); }
mkdir runs
for mesh in 2x1 1x2; do
  echo '{"custom_id": "r", "response": {"body": {"choices": [{"token_ids": [1, 2]}]}}}' >"runs/decode-strong.$mesh.1.jsonl"
  echo '{"device": "cuda 0: NVIDIA H200", "requests": {"total": 1, "ok": 1}, "latency_s": {"mean": 3.3},
    "ttft_s": {"mean": 0.1}}' >"runs/decode-strong.$mesh.1.json"
done
ranks='{"bytes": 2, "busy_s": 1}, {"bytes": 2, "busy_s": 1}, {"bytes": 3, "busy_s": 1}, {"bytes": LAST, "busy_s": 1}'
swap_run() {
  echo '{"device": "cuda 1: NVIDIA H200", "mesh": {"ranks": 4, "tp": 2, "pp": 2}, "link":
    {"bytes_per_s_by_rank_and_round": [{"plain": [1]}]},
    "requests": [{"response_s": 1, "bound_s": 1, "ranks": ['"${ranks/LAST/$1}"']}]}' >runs/swap-weak.2x1.1.json
}
swap_run 3
said="$(SLURM_JOB_NUM_NODES=1 study_of 2>&1)"
says "# machine: NVIDIA H200; "
says "; 1 node, Slurm job 5"
says "decode-strong,2x1,2,2,1,1,1,time,0.1,s,,ok,"
says "decode-strong,1x2,2,1,2,1,1,time,0.1,s,,ok,"
says "swap-weak,2x1,2,2,1,1,1,link,2e-09,GB/s,1e-09,ok,"
swap_run 2
said="$(study_of 2>&1)"
says "GB/s,1e-09,bytes,"
sed -i 's/1, 2/1, 3/' runs/decode-strong.1x2.1.jsonl
said="$(study_of 2>&1)"
says "1 answers differ from those of 2x1"

# Of groups: their figures, and the rate of links that swaps of one group have shown.
rm runs/*
for name in decode-strong.2x1.1 decode-strong.2x1x3.1 mixed-weak.2x1x3.1; do
  echo '{"custom_id": "r", "response": {"body": {"choices": [{"token_ids": [1, 2]}]}}}' >"runs/$name.jsonl"
  echo '{"device": "cpu", "requests": {"total": 1, "ok": 1}, "latency_s": {"mean": 3.3}, "ttft_s": {"mean": 0.1},
    "swaps": {"gb_per_s_per_rank": 1e-9, "busy_s": 4, "count": 9}, "steps": {"compute_s": 1}, "wall_s": 8,
    "tokens": {"generated_per_s": 5}}' >"runs/$name.json"
done
swap_run 3
said="$(python3 jobs/study_tables.py csv runs own abc 2x1 2x1x3 2>&1)"
says "decode-strong,2x1x3,6,2,1,3,1,time,0.1,s,,ok,"
says "mixed-weak,2x1x3,6,2,1,3,1,time,8,s,4,ok,"
says "swap-weak,2x1,2,2,1,1,1,link,2e-09,GB/s,1e-09,ok,"
echo "$said" >study.csv
said="$(python3 jobs/study_tables.py table study.csv 2>&1)"
says "# ranks groups   tp   pp "
says "$(printf '%6d %6d %4d %4d' 6 3 2 1)     0.10000"

# How a study starts its runs: groups swap as their mesh does, and of weak runs each group has requests of its own.
cat >bin/computron <<'STAND_IN'
#!/bin/bash
printf 'computron' >>"$WORK/calls"
printf ' %s' "$@" >>"$WORK/calls"
echo >>"$WORK/calls"
last=''
for argument in "$@"; do
  case "$last" in
    --json | --metrics) cp "$WORK/run$last" "$argument" ;;
    --output) cp "$WORK/run.jsonl" "$argument" ;;
    init) touch "$argument" ;;
  esac
  last="$argument"
done
[ "$1" != --version ] || echo "commit abc, today"
STAND_IN
printf '#!/bin/bash\nshift\nexec "$@"\n' >bin/launch  # on so many ranks
chmod +x bin/computron bin/launch
mv runs/decode-strong.2x1.1.jsonl run.jsonl
mv runs/decode-strong.2x1.1.json run--metrics
sed 's/^{/{"page_bytes": 4, "shard_bytes": 9,/' runs/swap-weak.2x1.1.json >run--json
study=(WORK="$work" LAUNCH=launch PROGRAM=computron DEVICE=cpu REPEATS=1 SEQUENCES=2 REQUESTS=2)
run scaling-study.sh "${study[@]}" MESHES="1x1 1x1x3" STUDIES="mixed decode" -- study
ends_with 0 "scaling-study.sh, groups"
[ "$(grep -c '^computron bench swap .* --tp 1 --pp 1 --device' calls)" = 2 ] || fail "swaps of a study of groups: $calls"
for study_of_one in mixed decode; do
  for kind in strong weak; do
    lines="$(sed -n "s/.*--requests \([^ ]*\) .*$study_of_one-$kind.1x1x3.*--groups 3 .*/\1/p" calls | xargs wc -l)"
    each=$([ "$study_of_one" = mixed ] && echo 16 || echo 2)
    [ "${lines%% *}" = "$((each * ($([ "$kind" = weak ] && echo 3 || echo 1))))" ] ||
      fail "$study_of_one, $kind, has $lines lines of requests"
  done
done
grep -q '^decode-weak,1x1x3,3,1,1,3,1,time,' study/study.csv || fail "rows of groups: $(cat study/study.csv)"
run scaling-study.sh "${study[@]}" MESHES="1x1 1x1x2x3" -- study
ends_with 64 "scaling-study.sh, a mesh that is none"
says "not 1x1x2x3"

for script in jobs/*.sbatch; do
  bash -n "$script" || fail "$script is no bash"
  [ -x "$script" ] || fail "$script is not executable"
  ! grep -qE '^#SBATCH.*--(gpus-per-task|gpu-bind)' "$script" || fail "$script binds GPUs to tasks"
done
# The same first lines, in the order that Slurm's users expect.
wanted="job-name account partition nodes ntasks-per-node gpus-per-node cpus-per-task time signal requeue open-mode output "
for script in jobs/serve*.sbatch; do
  order="$(grep -oE '^##?SBATCH --[a-z-]+' "$script" | grep -vE -- '--array' | sed 's/.*--//' | tr '\n' ' ')"
  [ "$order" = "$wanted" ] ||
    fail "$script: options in another order: $order"
done
[ "$failures" = 0 ] && echo "job_scripts_test: passed"
[ "$failures" = 0 ]
