#!/usr/bin/env bash
# What one GPU reaches beside what bounds it (perf/README.md, "GPU"). Writes perf/results/GPU.md; a part that did not run
# to its end says "not run" there. Exits with 0 if all did, 1 if not, 77 without a GPU.
#
#   perf/gpu.sh [PART...]    link swap-1.3b swap-6.7b swap-13b forward forward-int8 forward-int4 peer (all)
#
# LIMIT_S    seconds for all parts together; a part that could not end within them is left out (120)
# REQUESTS   swapped requests of a run      (10)
# REPEATS    rounds of bench forward        (5)
# PROGRAM    computron                      (build/release/computron)
# WORK       raw figures                    (build/perf/gpu)
# MODELS     models, kept between runs      (WORK): 53 GB, which are synced to its disk
# OPT-13b takes, since two ids serve it, 52 GB of pinned memory.
# shellcheck disable=SC2317  # functions are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. jobs/gpu-parts.sh
. jobs/mpi-env.sh
needs_gpu

program=${PROGRAM:-build/release/computron}
work=${WORK:-build/perf/gpu}
models=${MODELS:-$work}
limit=${LIMIT_S:-120}
requests=${REQUESTS:-10}
repeats=${REPEATS:-5}
chosen=" ${*:-link swap-1.3b swap-6.7b swap-13b forward forward-int8 forward-int4 peer} "
logs=$work/logs
result=perf/results/$(gpu_slug).md
mkdir -p "$models" "$logs" perf/results
rm -f "$work"/*.json

# model SIZE [DTYPE]: a random OPT of that published size, float16.
model() {
  local file=$models/opt-$1${2:+-$2}.h5
  [ -e "$file" ] || "$program" init "$file" --arch opt --size "$1" --dtype "${2:-f16}" >&2 || return
  echo "$file"
}

# swap SIZE NAME ARGUMENTS...: two ids of one file, device memory for one of them.
swap() {
  local file name=$2
  file=$(model "$1") || return
  shift 2
  mpirun -n 1 "$program" bench swap --quiet --device cuda --coded off --model "a=$file" --model "b=$file" --warmup 2 \
    --requests "$requests" --json "$work/$name.json.partial" "$@" && mv "$work/$name.json.partial" "$work/$name.json"
}

link() {
  local page
  for page in 4MiB 16MiB 64MiB 256MiB; do swap 1.3b "link-$page" --page-size "$page" || return; done
}

# forward [DTYPE]
forward() {
  local file name=forward${1:+-$1}
  file=$(model 6.7b "$@") || return
  "$program" bench forward "$file" --device cuda --prompt 2048 --context 512 --batches 1,8,64 --repeats "$repeats" \
    --json "$work/$name.json.partial" && mv "$work/$name.json.partial" "$work/$name.json"
}

peer() {
  python3 perf/gpu_peer.py --prompt 2048 --context 512 --batches 1,8,64 > "$work/peer.json.partial" &&
    mv "$work/peer.json.partial" "$work/peer.json"
}

export -f model swap link forward peer
export program work models requests repeats

# run PART SECONDS COMMAND: if it was chosen and there is time left; never longer than what is left.
run() {
  local left=$((limit - ($(date +%s) - began_at) - 3))
  case $chosen in *" $1 "*) ;; *) left_out "$1" "not asked for"; return ;; esac
  if [ "$left" -lt 5 ]; then left_out "$1" "no time left"; return; fi
  part "$1" $(($2 < left ? $2 : left)) bash -c "$3"
}

run link 40 link
run forward 50 forward
run forward-int8 40 "forward int8"
run forward-int4 40 "forward int4"
run swap-1.3b 20 "swap 1.3b swap-1.3b"
run swap-6.7b 40 "swap 6.7b swap-6.7b"
run peer 60 peer
run swap-13b 90 "swap 13b swap-13b"

summary
python3 perf/gpu_report.py "$work" "$(gpu_name)" "${parts[@]}" > "$result.partial" && mv "$result.partial" "$result" &&
  echo "$result" || failed=1
exit "$failed"
