#!/usr/bin/env bash
# slurm_test.sh PROGRAM SOURCE: the job scripts in a real Slurm that the test starts and ends itself, unedited. Jobs
# complete, are pre-empted, run into their time limit, are cut into an array, run on two nodes and in groups of ranks; the
# results are always those of an undisturbed run. Exits with 77, saying why, where Slurm cannot be had.
set -uo pipefail
exec 3>&2
program="$1" source="$2"
. "$source/tests/slurm/slurm.sh"
missing="$(slurm_missing)"
if [ -n "$missing" ]; then
  echo "SKIPPED: $missing (apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins libpmix2)"
  exit 77
fi

work="$(mktemp -d /tmp/computron_slurm.XXXXXX)"
memory="$(mktemp -d /dev/shm/computron_slurm.XXXXXX)"
end() {
  slurm_down "$work/slurm"
  rm -rf "$work" "$memory"
}
trap end EXIT
trap 'fail "stopped while it waited for this: $(squeue 2>&1)"' TERM INT HUP

fail() {
  exec >&3 2>&3  # it may have happened in the midst of a redirected command
  echo "slurm_test: $*"
  tail -n 60 "$work"/*.out
  tail -n 20 "$work"/slurm/log/*.log
  exit 1
}

# --- What is served ---------------------------------------------------------------------------------------------

cd "$work" || exit 1
ln -s "$source/jobs" jobs  # as in the repository's root
cat >tiny.json <<'JSON'
{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64, "do_layer_norm_before": true}
JSON
"$program" init one.h5 --config tiny.json --seed 1 >/dev/null || fail "no model"
"$program" init two.h5 --config tiny.json --seed 2 >/dev/null || fail "no model"
echo '[{"id": "one", "path": "one.h5"}, {"id": "two", "path": "two.h5"}]' >models.json
models=(one two)
for ((i = 0; i < 90; ++i)); do
  echo '{"custom_id": "r'$i'", "method": "POST", "url": "/v1/completions",' \
    '"body": {"model": "'${models[i % 2]}'", "prompt": [1, '$((i + 4))', 3], "max_tokens": 6}}'
done >requests.jsonl
# A request of its own each, a swap before it, over a link that takes a second for one.
slow='link-gbps = 0.0002
max-seqs = 1
policy = "fifo"
device-memory = "512KiB"
page-size = "64KiB"'
brisk="${slow/0.0002/0.002}"  # a tenth of that
fast='page-size = "64KiB"'

# --- The environment: this machine's, not the scripts' ------------------------------------------------------------

# More ranks than cores, as root; what Open MPI leaves goes where the test removes it.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_pml=ob1
export OMPI_MCA_orte_tmpdir_base="$work" OMPI_MCA_btl_vader_backing_directory="$memory"
unset OMPI_MCA_plm
export COMPUTRON="$program" ROSTER="$work/models.json" REQUESTS="$work/requests.jsonl"
small=(--ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 --mem=500)

submit() { sbatch --parsable "${small[@]}" "$@"; }
states() { squeue --noheader --jobs="$1" --states=PD,CF,R,CG,S --format=%T 2>/dev/null; }
ended() { [ -z "$(states "$1")" ]; }
restarts() { scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
restarted() { [ "$(restarts "$1")" -ge "$2" ]; }
has_results() { [ -s "$1.partial" ]; }
until_() {
  until "$@"; do sleep 0.2; done
}
wait_for() { until_ ended "$1"; }

expect_completed() {
  scontrol show job "$1" | grep -q 'JobState=COMPLETED' || fail "job $1 has not completed: $(scontrol show job "$1")"
}
# As the undisturbed run's, but for the order; and nothing else is left.
expect_results() {
  sort "$1" | cmp - undisturbed.sorted || fail "$1 differs from the undisturbed run's"
  for rest in partial journal lock spool; do [ ! -e "$1.$rest" ] || fail "$1.$rest is left"; done
}

echo "$fast" >undisturbed.toml
(. jobs/mpi-env.sh && mpirun -n 2 "$program" serve --quiet --models models.json --requests requests.jsonl \
  --output undisturbed.jsonl --config undisturbed.toml --threads 1) || fail "the undisturbed run"
sort undisturbed.jsonl >undisturbed.sorted
[ "$(wc -l <undisturbed.sorted)" = 90 ] || fail "the undisturbed run has not all results"

slurm_up "$work/slurm" 2 4 4 || fail "Slurm does not start"
lap() { echo "slurm_test: $1 ($SECONDS s)"; }
lap "Slurm runs"

# --- Pre-empted, then stopped at the time limit, then complete: both launchers at once ----------------------------

# The limit is a minute; the warning comes 50 s and more before.
disturbed() {
  echo "$slow" >"$1.toml"
  OUTPUT="$work/$1.jsonl" submit --time=1 --signal="$2" --job-name="$1" "jobs/$3" --config "$1.toml"
}
srun_job="$(disturbed srun USR1@45 serve.sbatch)" || fail "serve.sbatch is refused"
mpirun_job="$(disturbed mpirun B:USR1@45 serve-mpirun.sbatch)" || fail "serve-mpirun.sbatch is refused"
until_ has_results srun.jsonl
until_ has_results mpirun.jsonl
high="$(sbatch --parsable --partition=high --nodes=2 --exclusive --output=high.out --wrap true)"
wait_for "$high"
expect_completed "$high"
lap "pre-empted"
for job in "$srun_job" "$mpirun_job"; do
  until_ restarted "$job" 1
  until_ restarted "$job" 2
done
for name in srun mpirun; do
  [ ! -e "$name.jsonl" ] || fail "$name.jsonl is complete before its job is"
  echo "$fast" >"$name.toml"
done
lap "stopped at the time limit"
wait_for "$srun_job,$mpirun_job"
for job in "$srun_job" "$mpirun_job"; do
  expect_completed "$job"
done
for name in srun mpirun; do
  expect_results "$name.jsonl"
  [ "$(grep -c 'stopped early, to be gone on with' "$name"-*.out)" -ge 1 ] || fail "$name was never stopped in order"
done
lap "complete"

# --- An array, merged; two nodes, staged ---------------------------------------------------------------------------

# One task is stopped, the last, whose job ID is the array's; the others have never been started again. The nodes' job
# runs while it waits for its second start.
echo "$brisk" >array.toml
array="$(OUTPUT="$work/array.jsonl" submit --array=0-2 jobs/serve-array.sbatch --config array.toml)" ||
  fail "serve-array.sbatch is refused"
merge="$(sbatch --parsable --dependency="afterok:$array" --output=merge.out \
  --wrap "$program merge array.jsonl array.jsonl.[0-9]* --requests requests.jsonl")"
until_ has_results array.jsonl.2
scancel --signal=USR1 "${array}_2"
echo "$fast" >nodes.toml
# Two "nodes" of one machine: shared memory would be taken for another's.
nodes="$(OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo STAGE="$work/stage" \
  OUTPUT="$work/nodes.jsonl" submit --chdir="$work/slurm" --output="$work/%x-%j.out" jobs/serve-nodes.sbatch \
  --config "$work/nodes.toml")" || fail "serve-nodes.sbatch is refused"
# Ranks that all stop in order, but not at the same instant.
printf '#!/bin/bash\nsleep "$SLURM_PROCID"\nexit 75\n' >leaves
chmod +x leaves
leaving="$(COMPUTRON="$work/leaves" REQUEUE=0 OUTPUT="$work/leaves.jsonl" submit jobs/serve.sbatch)" ||
  fail "serve.sbatch is refused"
# A study, of a mesh and of two groups.
study="$(PROGRAM="$program" CONFIG="$work/tiny.json" MESHES="2x1 1x1x2" STUDIES="swap decode" REPEATS=1 REQUESTS=2 \
  PAGE_SIZE=64KiB submit --gpus-per-node=0 --oversubscribe --chdir="$work/slurm" --output="$work/study.out" jobs/scaling-study.sbatch \
  "$work/study")" || fail "scaling-study.sbatch is refused"
wait_for "$merge,$leaving"
scontrol show job "$leaving" | grep -q 'ExitCode=75:0' || fail "ranks that leave in turns do not end with 75"
expect_completed "$merge"
for task in 0 1 2; do
  again="$(restarts "${array}_$task")"
  [ "$again" = $((task / 2)) ] || fail "task $task of the array was started again $again times"
done
sort array.jsonl | cmp - undisturbed.sorted || fail "the array's results differ"
[ "$(head -n 1 array.jsonl)" = "$(grep '"batch_req_0"' undisturbed.jsonl)" ] || fail "merged results are in no order"
lap "array"

wait_for "$nodes,$study"
expect_completed "$nodes"
expect_completed "$study"
[ "$(grep -c '^swap-[a-z]*,2x1,.*,time,.*,ok,' study/study.csv)" = 4 ] ||
  fail "the study's rows: $(cat study/study.csv)"
grep -q '^decode-strong,1x1x2,2,1,1,2,1,time,.*,ok,' study/study.csv ||
  fail "the study's rows of groups: $(cat study/study.csv)"
grep -q "^# machine: .*; 1 node, Slurm job $study\$" study/study.csv || fail "a study does not name its job"
[ "$(wc -l <nodes.jsonl)" = 90 ] || fail "not all results of two nodes"
grep -q "checkpoints are in $work/stage" computron-nodes-*.out || fail "nothing was staged"
[ -z "$(ls -A "$work/stage")" ] || fail "staged files are left"
lap "two nodes, a study"

# --- Groups of ranks: one on each node, of a placement; two in each task of an array --------------------------------

# Each of two ranks that are tensor-parallel, as the undisturbed run's.
echo '{"groups": [{"tp": 2, "models": ["one"]}, {"tp": 2, "models": ["one", "two"]}]}' >placement.json
placed="$(OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo \
  OUTPUT="$work/placed.jsonl" submit jobs/serve-nodes.sbatch --config "$work/nodes.toml" \
  --placement "$work/placement.json" --metrics "$work/placed.json")" || fail "serve-nodes.sbatch is refused"
grouped="$(OUTPUT="$work/grouped.jsonl" submit --ntasks-per-node=4 --gpus-per-node=0 --oversubscribe --array=0-1 \
  jobs/serve-array.sbatch --config "$work/nodes.toml" --groups 2 --tp 2)" || fail "serve-array.sbatch is refused"
wait_for "$placed,$grouped"
expect_completed "$placed"
expect_completed "$grouped"
expect_results placed.jsonl
for group in 0 1; do
  [ "$(jq ".groups[$group] | .tp, .first_rank, .requests.ok > 0" placed.json | xargs)" = "2 $((2 * group)) true" ] ||
    fail "group $group of the placement: $(jq -c ".groups[$group] | {tp, first_rank, requests}" placed.json)"
done
sort grouped.jsonl.0 grouped.jsonl.1 | cmp - undisturbed.sorted || fail "the results of an array of groups differ"
lap "groups"
