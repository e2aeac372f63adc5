# shellcheck shell=bash disable=SC2034,SC2154
# Source me: parts of a script, each in a time box of its own, for a machine that is lent for minutes. A part that fails
# keeps no other from running. Expects $logs, a folder.

# Status lines in the order of the parts; what is not mentioned has not run.
parts=()
failed=0
began_at=$(date +%s)

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; }
# Ends the script where it could not do a thing.
needs_gpu() {
  has_gpu || { echo "${0##*/}: SKIPPED: this machine has no GPU (nvidia-smi -L lists none)" >&2; exit 77; }
}
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1; }
# "nvidia-h200", for the names of files.
gpu_slug() { gpu_name | tr -cs '[:alnum:]\n' '-' | tr '[:upper:]' '[:lower:]' | sed 's/^-*//; s/-*$//'; }

# part NAME SECONDS COMMAND...: output to the terminal and to $logs/NAME.log; returns the command's status. Ranks of a job
# that was killed may hold the pipe to tee open: nobody waits for them.
part() {
  local name=$1 limit=$2 begin status output tee
  shift 2
  begin=$(date +%s)
  echo "== $name (at most $limit s)"
  exec {output}> >(exec tee "$logs/$name.log")
  tee=$!
  timeout --kill-after=5 "$limit" "$@" >&"$output" 2>&1
  status=$?
  exec {output}>&-
  for _ in {1..20}; do kill -0 "$tee" 2>/dev/null && sleep 0.1; done
  case $status in
    0) note "$name" "passed" "$begin" ;;
    77) note "$name" "not run: $(tail -n 1 "$logs/$name.log")" "$begin" ;;
    124 | 137) note "$name" "FAILED: not over after $limit s" "$begin" ;;
    *) note "$name" "FAILED with $status: $(why "$logs/$name.log" | cut -c 1-160)" "$begin" ;;
  esac
  [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
  return "$status"
}

# The program's last complaint, behind which mpirun has some of its own; else the last line.
why() { grep -a '^computron: ' "$1" | tail -n 1 | grep . || tail -n 1 "$1"; }
note() { parts+=("$(printf '%-12s %4d s  %s' "$1" $(($(date +%s) - $3)) "$2")"); }
# left_out NAME WHY
left_out() { parts+=("$(printf '%-12s %4s    not run: %s' "$1" "-" "$2")"); }

summary() {
  echo
  echo "== ${0##*/}: $(($(date +%s) - began_at)) s"
  printf '%s\n' "${parts[@]}"
}
