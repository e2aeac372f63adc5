#!/usr/bin/env bash
# A scaling study for a paper: swap, a mixed batch and decode over meshes and groups of ranks, strong (the same work on n ranks)
# and weak (n times the work: the layers for a mesh, the requests for groups), repeated, with a table, long-form CSV, plots
# and a page.
#
#   jobs/scaling-study.sh [FOLDER]      FOLDER: study.csv, table.txt, report.html, plots (build/scaling-study)
#
# study.csv is there after the first round, of every mesh once, and grows with each.
#
# MESHES    TPxPP, or TPxPPxN for N groups of that mesh, each with every model; the others compared with the first, of
#           the fewest ranks (those of 1x1 2x1 1x2 4x1 2x2 1x4 that RANKS ranks can be). Groups swap as their mesh does,
#           so that swaps are studied of meshes only
# RANKS     most of them                      (SLURM_NTASKS, or 4)
# STUDIES   what is studied                   (swap mixed decode; mixed takes swap along)
# REPEATS   runs of each                      (3)
# LINK      GB/s a rank that links are held to: an emulation, which every table and plot then says; own: as they are
#           (own on GPUs, 0.4 on the CPU)
# DEVICE    cpu, cuda or auto                 (auto)
# CONFIG    config.json of the model, DTYPE its weights (inputs/models/opt-study.json of Computron, f32)
# REQUESTS  of a mixed batch, for each of eight models (12); SEQUENCES that decode together (8)
# THREADS   compute threads of a rank         (SLURM_CPUS_PER_TASK, or 1)
# LAUNCH    what starts N ranks, N behind it  (mpirun -n)
# PROGRAM   computron                         (build/release/computron of the checkout, or the one of the PATH)
# Needs python3. Under five minutes on two cores.
set -euo pipefail
jobs=$(cd "$(dirname "$0")" && pwd)
[ -n "${SLURM_JOB_ID:-}" ] || . "$jobs/mpi-env.sh"  # on a cluster nothing of it is wanted

out=${1:-build/scaling-study}
ranks=${RANKS:-${SLURM_NTASKS:-4}}
repeats=${REPEATS:-3}
device=${DEVICE:-auto}
config=${CONFIG:-$jobs/../inputs/models/opt-study.json}
program=${PROGRAM:-$jobs/../build/release/computron}
[ -n "${PROGRAM:-}" ] || [ -x "$program" ] || program=computron
requests=${REQUESTS:-12}
sequences=${SEQUENCES:-8}
[ "$device" != auto ] || { nvidia-smi -L >/dev/null 2>&1 && device=cuda || device=cpu; }
link=${LINK:-$([ "$device" = cuda ] && echo own || echo 0.4)}
page_size=${PAGE_SIZE:-$([ "$device" = cuda ] && echo 64MiB || echo 2MiB)}
read -r -a launch <<<"${LAUNCH:-mpirun -n}"
models=(m0 m1 m2 m3 m4 m5 m6 m7)

# Of TPxPP or TPxPPxN.
ranks_of() { echo $((${1//x/*})); }
mesh_of_a_group() { cut -d x -f 1,2 <<<"$1"; }
groups_of() { echo $(($(ranks_of "$1") / $(ranks_of "$(mesh_of_a_group "$1")"))); }
tables() { python3 "$jobs/study_tables.py" "$@"; }

read -r -a meshes <<<"${MESHES:-}"
if [ "${#meshes[@]}" = 0 ]; then
  for mesh in 1x1 2x1 1x2 4x1 2x2 1x4; do
    [ "$(ranks_of "$mesh")" -gt "$ranks" ] || meshes+=("$mesh")
  done
fi

for mesh in "${meshes[@]}"; do
  [[ "$mesh" =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] ||
    { echo "scaling-study: MESHES are TPxPP or TPxPPxN, not $mesh" >&2; exit 64; }
done
readarray -t of_one_group < <(for mesh in "${meshes[@]}"; do mesh_of_a_group "$mesh"; done | awk '!seen[$0]++')

studies=" ${STUDIES:-swap mixed decode} "
for study in $studies; do
  case "$study" in
    swap | decode) ;;
    mixed) studies=" swap$studies" ;;  # which says what a shard and a link are
    *) echo "scaling-study: STUDIES are swap, mixed and decode, not $study" >&2 && exit 64 ;;
  esac
done
mkdir -p "$out/runs"

# checkpoint TIMES: of the model with so many times its layers.
checkpoint() {
  local file=$out/model-$1.h5
  if [ ! -e "$file" ]; then
    tables layers "$config" "$1" >"$out/model-$1.json"
    "$program" init "$file" --config "$out/model-$1.json" --dtype "${DTYPE:-f32}" --seed 1 >&2
  fi
  echo "$file"
}

# start NAME MESH ARGUMENTS...: computron with them on the mesh, with raw pages throughout; its log is NAME.log.
start() {
  local name=$1 mesh=$2
  shift 2
  echo "scaling-study: ${name##*/}" >&2
  local tp pp groups
  IFS=x read -r tp pp groups <<<"$mesh"
  "${launch[@]}" "$(ranks_of "$mesh")" "$program" "$@" --tp "$tp" --pp "$pp" ${groups:+--groups "$groups"} \
    --device "$device" --page-size "$page_size" --threads "${THREADS:-${SLURM_CPUS_PER_TASK:-1}}" --coded off \
    2>"$name.log" ||
    { cat "$name.log" >&2; return 1; }
}

link_arguments=()
[ "$link" = own ] || link_arguments=(--link-gbps "$link")

# The three studies: NAME MESH CHECKPOINT, and what makes NAME.json.
swap() {
  start "$1" "$2" bench swap --quiet --model "a=$3" --model "b=$3" --requests $((repeats + 1)) \
    "${link_arguments[@]}" --json "$1.json" >"$1.txt"
}

# serve NAME MESH REQUESTS ARGUMENTS...: the results beside the metrics.
serve() {
  local name=$1 mesh=$2 input=$3
  shift 3
  rm -f "$name".jsonl*
  start "$name" "$mesh" serve --quiet --requests "$input" --output "$name.jsonl" --metrics "$name.json" "$@"
}

mixed() {
  local model models_of=()
  for model in "${models[@]}"; do models_of+=(--model "$model=$3"); done
  serve "$1" "$2" "$out/mixed-$times.jsonl" "${models_of[@]}" --model-pages private --policy throughput --max-seqs "$requests" \
    "${link_arguments[@]}" "${reproducible[@]}" \
    --device-memory "$(tables pool "$out/runs/swap-$kind.$(mesh_of_a_group "$2").1.json")"
}

decode() { serve "$1" "$2" "$out/decode-$times.jsonl" --model "m0=$3" --max-seqs "$sequences" "${reproducible[@]}"; }

# Of weak runs there are so many times the requests.
requests_for() {
  [ ! -e "$out/decode-$1.jsonl" ] || return 0
  tables requests "$config" $((requests * $1)) "${models[@]}" >"$out/mixed-$1.jsonl"
  tables decode "$config" $((sequences * $1)) m0 >"$out/decode-$1.jsonl"
}
rm -f "$out"/runs/* "$out"/mixed-*.jsonl "$out"/decode-*.jsonl

commit=$("$program" --version | sed -n 's/^commit \([^,]*\).*/\1/p')
keep_figures() {
  tables csv "$out/runs" "$link" "$commit" "${meshes[@]}" "${of_one_group[@]}" >"$out/study.csv.partial"
  mv "$out/study.csv.partial" "$out/study.csv"
}

# In turns, so that what disturbs the machine for a while disturbs all alike.
for study in swap mixed decode; do
  [[ "$studies" == *" $study "* ]] || continue
  rounds=$repeats studied=("${meshes[@]}")
  [ "$study" != swap ] || { rounds=1 studied=("${of_one_group[@]}"); }  # of several requests
  for ((repeat = 1; repeat <= rounds; ++repeat)); do
    for kind in strong weak; do
      # Strong runs are the same work, so that answers must be the same to the bit.
      reproducible=()
      [ "$kind" = weak ] || reproducible=(--reproducible)
      for mesh in "${studied[@]}"; do
        layers=1 times=1
        [ "$kind" = strong ] || { layers=$(ranks_of "$(mesh_of_a_group "$mesh")") times=$(groups_of "$mesh"); }
        requests_for "$times"
        "$study" "$out/runs/$study-$kind.$mesh.$repeat" "$mesh" "$(checkpoint "$layers")"
      done
      keep_figures
    done
  done
done

tables table "$out/study.csv" | tee "$out/table.txt"
"$program" report "$out/report.html" --study "$out/study.csv" --svg "$out" --title "Scaling study"
echo
echo "figures  $out/study.csv"
echo "page     $out/report.html, plots beside it"
