# shellcheck shell=bash disable=SC2034,SC2154
# Source me from the repository root: what the scripts here share.
# Expects $work, and for serve and copy_rate $page_size.

cpu=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
cores=$(nproc)
machine=${1:-$(printf '%s-%s-cores' "$cpu" "$cores" | tr -cs '[:alnum:]\n' '-' | tr '[:upper:]' '[:lower:]')}
program=${PROGRAM:-build/release/computron}
needs_jq() { command -v jq >/dev/null || { echo "${0##*/}: needs jq" >&2; exit 69; }; }

load() { cut -d ' ' -f 1 /proc/loadavg; }

# For awk. median: of `count` numbers in `x`, which it sorts. head: of a Markdown table, columns separated by |.
awk_functions='
  function max(a, b) { return a > b ? a : b }
  function min(a, b) { return a < b ? a : b }
  function median(x, count,    i, j, t) {
    for (i = 2; i <= count; ++i) {
      for (j = i; j > 1 && x[j - 1] > x[j]; --j) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
    }
    return (x[int((count + 1) / 2)] + x[int(count / 2) + 1]) / 2
  }
  function head(columns,    count) {
    count = gsub(/\|/, " | ", columns) + 1
    print "| " columns " |"
    while (count--) printf "|---"
    print "|"
  }'

# Lines of the head of a result file.
made_by() {
  echo "Made by perf/$1.sh on $(date -u +%Y-%m-%d) at $(git describe --always --dirty); columns, bounds and targets:"
  echo "perf/README.md."
}
repeated() {
  echo "Medians of $repeats runs, in brackets least and most; the answers of every run are the resident run's. Machine"
  echo "load: one-minute average before the first and after the last run, threads of the runs themselves included."
}

# Of the numbers on standard input, one a line.
median() { awk "$awk_functions"'{ x[NR] = $1 + 0 } END { printf "%.9g\n", median(x, NR) }'; }

# calculate EXPRESSION NAME=VALUE...: one number.
calculate() {
  local expression=$1 argument arguments=()
  shift
  for argument in "$@"; do arguments+=(-v "$argument"); done
  awk "${arguments[@]}" "$awk_functions BEGIN { printf \"%.9g\\n\", $expression }"
}

# checkpoint NAME: a random model of inputs/models/NAME.json in $work.
checkpoint() {
  [ -e "$work/$1.h5" ] || "$program" init "$work/$1.h5" --config "inputs/models/$1.json" --seed 1 >&2
  echo "$work/$1.h5"
}

# serve NAME MESH ARGUMENTS...: results, metrics and log in $work/NAME.{jsonl,json,log}. MESH: TPxPP.
serve() {
  local name=$work/$1 tp=${2%x*} pp=${2#*x}
  shift 2
  rm -f "$name.jsonl" "$name.json"
  echo "${0##*/}: ${name##*/}" >&2
  mpirun -n $((tp * pp)) "$program" serve --device cpu --tp "$tp" --pp "$pp" --page-size "$page_size" --threads 1 \
    --requests "$work/requests.jsonl" --output "$name.jsonl" --metrics "$name.json" "$@" 2> "$name.log" ||
    { cat "$name.log" >&2; return 1; }
}

# figure NAME FILTER: of a run's metrics.
figure() { jq -r "$2" "$work/$1.json"; }

# Bytes that the rank which fetched most has fetched of a model.
fetched_by_a_rank='.swaps | .gb_per_s_per_rank * .busy_s * 1e9'

# pages NAME MODEL TP: of the larger stage of at most two, from a run that has fetched every page once.
pages() {
  local first all
  first=$(awk -v model="$2" '$1 == model && NF > 5 { print $3; exit }' "$work/$1.log")
  all=$(($(figure "$1" ".models.$2.swaps.pages") / $3))
  echo $((first > all - first ? first : all - first))
}

# cache_frames CONFIG MESH PAGE_BYTES SEQUENCES TOKENS: for keys and values of so many tokens a sequence: blocks of 16
# tokens, a slot a block and layer, whole slots in a frame.
cache_frames() {
  jq --argjson tp "${2%x*}" --argjson pp "${2#*x}" --argjson page "$3" --argjson sequences "$4" --argjson tokens "$5" '
    def up: ceil;
    (2 * 16 * (.num_attention_heads / $tp | up) * (.hidden_size / .num_attention_heads) * 4) as $slot
    | ($page / $slot | floor) as $slots_a_frame
    | $sequences * ($tokens / 16 | up) * (.num_hidden_layers / $pp | up) / $slots_a_frame | up' "$1"
}

# copy_rate MESH MODEL: bytes a second of plain copies past any emulated link, on all ranks at once: the upper quartile
# of a rank's rounds, of the slowest rank (perf/README.md, "Swap").
copy_rate() {
  local tp=${1%x*} pp=${1#*x}
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --model "a=$2" --model "b=$2" --tp "$tp" --pp "$pp" \
    --page-size "$page_size" --threads 1 --requests 1 --csv --json "$work/copies-$1.json" > /dev/null
  jq '[.link.bytes_per_s_by_rank_and_round[].memory | sort | .[length * 3 / 4 | floor]] | min' "$work/copies-$1.json"
}

# copy_s_a_byte MESH COPY_RATE: seconds that computing gives up: none where a core is left for the copies.
copy_s_a_byte() {
  if ((${1%x*} * ${1#*x} < cores)); then echo 0; else calculate '1 / rate' "rate=$2"; fi
}

# same_answers A B: token ids and log probabilities of two runs, by request.
same_answers() {
  local run answers='select(.error == null) | [.custom_id, .response.body.choices]'
  for run in "$1" "$2"; do jq -c "$answers" "$work/$run.jsonl" | sort > "$work/$run.answers"; done
  [ -s "$work/$1.answers" ] && cmp "$work/$1.answers" "$work/$2.answers"
}
