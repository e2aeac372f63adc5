#!/usr/bin/env bash
# What one GPU reaches beside what bounds it (perf/README.md, "GPU"). Writes perf/results/GPU.md; a part that did not run
# to its end says "not run" there. Exits with 0 if all did, 1 if not, 77 without a GPU.
#
#   perf/gpu.sh [PART...]    link swap-1.3b swap-6.7b swap-8b swap-13b verified coded forward forward-8b forward-experts
#                            forward-int8 forward-int4 peer (all)
#
# LIMIT_S    seconds for all parts together; a part that could not end within them is left out (120)
# REQUESTS   swapped requests of a run      (10)
# REPEATS    rounds of bench forward        (5)
# PROGRAM    computron                      (build/release/computron)
# WORK       raw figures                    (build/perf/gpu)
# MODELS     models, made where they are missing (WORK): 79 GB, which are synced to its disk
# KEEP=no    each model is removed behind its last part, for a folder in memory: 42 GB at most
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
chosen=" ${*:-link swap-1.3b swap-6.7b swap-8b swap-13b verified coded forward forward-8b forward-experts forward-int8 forward-int4 peer} "
logs=$work/logs
result=perf/results/$(gpu_slug).md
mkdir -p "$models" "$logs" perf/results
rm -f "$work"/*.json

# model ARCH SIZE DTYPE: random weights of a published size; of Qwen3-30B-A3B the first 6 of its 48 layers.
model() {
  local file=$models/$1-$2-$3.h5
  if [ ! -e "$file" ] && [ "$1/$2" = qwen3_moe/30b-a3b-6-layers ]; then
    echo '{"model_type": "qwen3_moe", "num_hidden_layers": 6, "head_dim": 128, "norm_topk_prob": true, "max_position_embeddings": 40960,
           "rope_theta": 1000000}' > "$work/$1-$2.json"
    "$program" init "$file" --config "$work/$1-$2.json" --dtype "$3" >&2 || return
  elif [ ! -e "$file" ]; then
    "$program" init "$file" --arch "$1" --size "$2" --dtype "$3" >&2 || return
  fi
  echo "$file"
}
# done_with ARCH-SIZE-DTYPE...
done_with() { [ "${KEEP:-yes}" = yes ] || for name in "$@"; do rm -f "$models/$name.h5"; done; }

# swap ARCH SIZE DTYPE NAME ARGUMENTS...: two ids of one file, device memory for one of them.
swap() {
  local file name=$4
  file=$(model "$1" "$2" "$3") || return
  shift 4
  case " $* " in *" --coded "*) ;; *) set -- --coded off "$@" ;; esac
  mpirun -n 1 "$program" bench swap --quiet --device cuda --model "a=$file" --model "b=$file" --warmup 2 \
    --requests "$requests" --json "$work/$name.json.partial" "$@" && mv "$work/$name.json.partial" "$work/$name.json"
}

link() {
  local page
  for page in 4MiB 16MiB 64MiB 256MiB; do swap opt 1.3b f16 "link-$page" --page-size "$page" || return; done
}

# forward NAME ARCH SIZE DTYPE
forward() {
  local file name=$1
  file=$(model "$2" "$3" "$4") || return
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

run forward 50 "forward forward opt 6.7b f16"
run link 40 link
run swap-6.7b 40 "swap opt 6.7b f16 swap-6.7b"
done_with opt-6.7b-f16
run swap-1.3b 20 "swap opt 1.3b f16 swap-1.3b"
run verified 20 "swap opt 1.3b f16 verified --verify-swap every"
run coded 30 "swap opt 1.3b f16 coded --coded on"
done_with opt-1.3b-f16
run forward-8b 50 "forward forward-8b llama 3.1-8b bf16"
run swap-8b 50 "swap llama 3.1-8b bf16 swap-8b"
done_with llama-3.1-8b-bf16
run forward-experts 40 "forward forward-experts qwen3_moe 30b-a3b-6-layers bf16"
done_with qwen3_moe-30b-a3b-6-layers-bf16
run forward-int8 40 "forward forward-int8 opt 6.7b int8"
run forward-int4 40 "forward forward-int4 opt 6.7b int4"
done_with opt-6.7b-int8 opt-6.7b-int4
run peer 60 peer
run swap-13b 90 "swap opt 13b f16 swap-13b"
done_with opt-13b-f16

summary
python3 perf/gpu_report.py "$work" "$(gpu_name)" "${parts[@]}" > "$result.partial" && mv "$result.partial" "$result" &&
  echo "$result" || failed=1
exit "$failed"
