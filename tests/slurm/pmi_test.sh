#!/usr/bin/env bash
# pmi_test.sh PROGRAM SOURCE: jobs/serve.sbatch at a site with other habits than slurm_test.sh's: srun speaks nothing to
# ranks unless it is told to, kills a step at the first bad exit, and jobs take no environment along. The PMI is that of the
# program's MPI library: PMIx of Open MPI, PMI2 of MPICH, whose mpirun is tried as well. Exit codes of srun are those that
# jobs/README.md has. Exits with 77, saying why, where Slurm cannot be had.
# shellcheck disable=SC2016  # ranks expand it
set -uo pipefail
program="$1" source="$2"
. "$source/tests/slurm/slurm.sh"
missing="$(slurm_missing)"
[ -z "$missing" ] || { echo "SKIPPED: $missing (apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins libpmix2)"; exit 77; }
case "$("$program" --version)" in
  *'Open MPI'*) pmi=pmix launchers=(srun) ;;  # slurm_test.sh has its mpirun
  *MPICH*) pmi=pmi2 launchers=(srun mpirun) ;;
  *) echo "SKIPPED: neither Open MPI nor MPICH: $("$program" --version)"; exit 77 ;;
esac

work="$(mktemp -d /tmp/computron_pmi.XXXXXX)"
trap 'slurm_down "$work/slurm"; rm -rf "$work"' EXIT
fail() {
  echo "pmi_test: $pmi: $*"
  tail -n 40 "$work"/*.out "$work"/slurm/log/*.log
  exit 1
}
trap 'fail "stopped while it waited for this: $(squeue 2>&1)"' TERM INT HUP
cd "$work" || exit 1
ln -s "$source/jobs" jobs
cat >tiny.json <<'JSON'
{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64, "do_layer_norm_before": true}
JSON
"$program" init one.h5 --config tiny.json --seed 1 >/dev/null || fail "no model"
"$program" init two.h5 --config tiny.json --seed 2 >/dev/null || fail "no model"
echo '[{"id": "one", "path": "one.h5"}, {"id": "two", "path": "two.h5"}]' >models.json
models=(one two)
for ((i = 0; i < 30; ++i)); do
  echo '{"custom_id": "r'$i'", "method": "POST", "url": "/v1/completions",' \
    '"body": {"model": "'"${models[i % 2]}"'", "prompt": [1, '$((i + 4))', 3], "max_tokens": 6}}'
done >requests.jsonl
# A swap of a second before each request of the slow ones.
slow=(--link-gbps 0.0002 --max-seqs 1 --policy fifo --device-memory 512KiB --page-size 64KiB)
fast=(--page-size 64KiB)

for name in ${!SLURM_*} ${!OMPI_*}; do unset "$name"; done
mkdir slurm
MPI_DEFAULT=none MORE_CONF='KillOnBadExit=1' slurm_up "$work/slurm" 1 4 2 || fail "Slurm does not start"

# --- Exit codes of srun, as serve.sbatch calls it ----------------------------------------------------------------------

# ends CODE WHAT COMMAND...: two ranks.
ends() {
  local code="$1" what="$2" got
  shift 2
  timeout 60 srun --quiet --chdir="$work" --ntasks=2 --overcommit --mpi="$pmi" --kill-on-bad-exit=0 --wait=4 "$@" >step.out 2>&1
  got=$?
  [ "$got" = "$code" ] || fail "$what: srun ends with $got, not $code: $(cat step.out)"
}
ends 5 "all end with 5" sh -c 'exit 5'
ends 76 "ranks end with 75 and 76" sh -c 'exit $((75 + SLURM_PROCID))'
ends 137 "a rank is killed" sh -c '[ "$SLURM_PROCID" = 0 ] || kill -KILL $$'
ends 139 "a rank has a fault" sh -c '[ "$SLURM_PROCID" = 0 ] || kill -SEGV $$'

# --- A job that is stopped and goes on, and one that is not -------------------------------------------------------------

# Nothing of this shell's environment: what the job needs it is told.
submit() {
  local name="$1" script="$2" environment
  shift 2
  environment="COMPUTRON=$program,ROSTER=$work/models.json,REQUESTS=$work/requests.jsonl,OUTPUT=$work/$name.jsonl,SRUN_MPI=$pmi"
  environment+=",MPIRUN=mpirun.mpich,PATH=$PATH,OMPI_MCA_mpi_yield_when_idle=1,OMPI_MCA_orte_tmpdir_base=$work,SLURM_CONF=$SLURM_CONF"
  sbatch --parsable --export="$environment" --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 --mem=500 \
    --time=10 --job-name="$name" "jobs/$script" "$@"
}
until_() { until "$@"; do sleep 0.1; done; }
has_results() { [ -s "$1.jsonl.partial" ]; }
ended() {
  local states
  states="$(squeue --noheader --jobs="$1" --states=PD,CF,R,CG,S --format=%T 2>/dev/null)" && [ -z "$states" ]
}
restarted() { [ "$(scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p')" -ge 1 ]; }
expect_completed() {
  scontrol show job "$1" | grep -q 'JobState=COMPLETED' || fail "job $1 has not completed: $(scontrol show job "$1")"
  [ "$(wc -l <"$2.jsonl")" = 30 ] || fail "$2 has $(wc -l <"$2.jsonl") results"
}
whole="$(submit whole serve.sbatch "${fast[@]}")" || fail "serve.sbatch is refused"
until_ ended "$whole"
expect_completed "$whole" whole
for launcher in "${launchers[@]}"; do
  script=serve.sbatch
  [ "$launcher" = srun ] || script="serve-$launcher.sbatch"
  job="$(submit "$launcher" "$script" "${slow[@]}")" || fail "$script is refused"
  until_ has_results "$launcher"
  scancel --batch --signal=USR1 "$job"
  until_ restarted "$job"  # on its way back it is in no state that is asked for
  until_ ended "$job"
  expect_completed "$job" "$launcher"
  [ "$(grep -c 'stopped early, to be gone on with' "$launcher"-*.out)" = 1 ] || fail "$launcher's job was not stopped in order"
  cmp <(sort "$launcher.jsonl") <(sort whole.jsonl) || fail "$launcher's job, which went on, has other results"
done
echo "pmi_test: $pmi: passed ($SECONDS s)"
