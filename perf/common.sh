# shellcheck shell=bash disable=SC2034,SC2154
# Source me from the repository root: what the scripts here share.
# Expects $work, and for serve and copy_rate $page_size.

# of_processor KEY: what lscpu says.
of_processor() { lscpu | sed -n "s/^$1: *//p" | head -n 1; }
# The widest vectors that kernels can use here (kernels/cpu/isa.h).
vectors() {
  local flags flag
  flags=" $(of_processor Flags) "
  for flag in amx_bf16 avx512_bf16 avx512_vnni avx512f avx2; do
    [[ $flags != *" $flag "* ]] || { echo "$flag"; return; }
  done
}
# Processors of one name differ: a figure belongs to a family, a model and its vectors.
cpu="$(of_processor 'Model name' | sed 's/(R)//g; s/(TM)//g') (family $(of_processor 'CPU family'), model $(of_processor Model), $(vectors))"
[ -z "${COMPUTRON_MAX_ISA:-}" ] || cpu="$cpu held to $COMPUTRON_MAX_ISA"
cores=$(nproc)
machine=${1:-$(printf '%s-%s-cores' "$cpu" "$cores" | tr -cs '[:alnum:]\n' '-' | tr '[:upper:]' '[:lower:]')}
program=${PROGRAM:-build/release/computron}
coded=off  # --coded of serve and copy_rate: raw pages, unless a script says otherwise
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

# Lines of the head of a result file. made_by NAME [MODE]
made_by() {
  echo "Made by perf/$1.sh${2:+ $2} on $(date -u +%Y-%m-%d) at $(git describe --always --dirty);" \
    "columns, bounds and targets:"
  echo "perf/README.md."
}
repeated() {
  echo "Medians of $repeats runs, in brackets least and most; the answers of every run are the resident run's. Machine"
  echo "load: one-minute average before the first and after the last run, threads of the runs themselves included."
}
in_turn() {
  echo "Raw pages (--coded off) and coded ones (--coded on) in turn; ratios are of one round. Decoding has" \
    "$(grep -q -m 1 avx512_vbmi2 /proc/cpuinfo && echo "AVX-512 VBMI2" || echo AVX2)."
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

# checkpoint NAME [DTYPE]: a random model of inputs/models/NAME.json in $work; float32 unless given.
checkpoint() {
  local file=$work/$1${2:+-$2}.h5
  [ -e "$file" ] || "$program" init "$file" --config "inputs/models/$1.json" --dtype "${2:-f32}" --seed 1 >&2
  echo "$file"
}

# serve NAME MESH ARGUMENTS...: results, metrics and log in $work/NAME.{jsonl,json,log}. MESH: TPxPP.
serve() {
  local name=$work/$1 tp=${2%x*} pp=${2#*x}
  shift 2
  rm -f "$name.jsonl" "$name.json"
  echo "${0##*/}: ${name##*/}" >&2
  mpirun -n $((tp * pp)) "$program" serve --device cpu --tp "$tp" --pp "$pp" --page-size "$page_size" --coded "$coded" \
    --model-pages private --threads 1 --requests "$work/requests.jsonl" --output "$name.jsonl" --metrics "$name.json" "$@" 2> "$name.log" ||
    { cat "$name.log" >&2; return 1; }
}

# figure NAME FILTER: of a run's metrics.
figure() { jq -r "$2" "$work/$1.json"; }

# Bytes over the link of the rank which fetched most, of a model.
fetched_by_a_rank='.swaps | .gb_per_s_per_rank * .busy_s * 1e9'

# pages NAME MODEL TP: of the larger stage of at most two, from a run that has fetched every page once.
pages() {
  local first all
  first=$(awk -v model="$2" '$1 == model && NF > 5 { print $3; exit }' "$work/$1.log")
  all=$(($(figure "$1" ".models.$2.swaps.pages") / $3))
  echo $((first > all - first ? first : all - first))
}

# cache_frames NAME MODEL CONFIG MESH PAGE_BYTES SEQUENCES TOKENS: for keys and values of so many tokens a sequence:
# blocks of 16 tokens, a slot a block and layer, whole slots in a frame. The run's log says in which type weights are
# kept: caches of bfloat16 weights are bfloat16, others float32.
cache_frames() {
  local bytes
  bytes=$(awk -v model="$2" '$1 == model && NF > 5 { print $2 == "bf16" ? 2 : 4; exit }' "$work/$1.log")
  jq --argjson tp "${4%x*}" --argjson pp "${4#*x}" --argjson page "$5" --argjson sequences "$6" --argjson tokens "$7" \
    --argjson bytes "$bytes" '
    def up: ceil;
    (2 * 16 * (.num_attention_heads / $tp | up) * (.hidden_size / .num_attention_heads) * $bytes) as $slot
    | ($page / $slot | floor) as $slots_a_frame
    | $sequences * ($tokens / 16 | up) * (.num_hidden_layers / $pp | up) / $slots_a_frame | up' "$3"
}

# copy_rate MESH MODEL: bytes a second of plain copies past any emulated link, of coded pages those that are decoded as
# they are fetched, on all ranks at once: the upper quartile of a rank's rounds, of the slowest rank (perf/README.md,
# "Swap").
copy_rate() {
  local tp=${1%x*} pp=${1#*x} json=$work/copies-$1-$coded.json way=memory
  [ "$coded" = off ] || way=fetch
  mpirun -n $((tp * pp)) "$program" bench swap --quiet --device cpu --model "a=$2" --model "b=$2" --tp "$tp" --pp "$pp" \
    --page-size "$page_size" --threads 1 --coded "$coded" --requests 1 --csv --json "$json" > /dev/null
  jq --arg way "$way" '[.link.bytes_per_s_by_rank_and_round[][$way] | sort | .[length * 3 / 4 | floor]] | min' "$json"
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

# raw_and_coded HEADS MEASURED BOUND: runs of raw pages and of coded ones in turn, a line each on standard input, as a
# Markdown table of both beside each other, with the target of perf/README.md checked. A line, tab-separated: what a row
# is (a field for each of HEADS, which are separated by |); off or on; what was measured; its bound; bytes over links ÷
# bytes in frames; whether the answers were compared ("same") or not; 1 where there is a target; machine load before and
# after. Medians; a ratio is of one round.
raw_and_coded() {
  awk -F '\t' -v heads="$1" -v measured="$2" -v bound="$3" "$awk_functions"'
    function of(values, key,    i) {
      for (i = 1; i <= runs[key]; ++i) x[i] = values[key, i]
      return median(x, runs[key])
    }
    function spread(key,    m) {
      m = of(value, key)
      return sprintf("%.4g (%.4g–%.4g)", m, x[1], x[runs[key]])
    }
    # Coded ÷ raw.
    function ratio(values, row,    i, rounds) {
      rounds = runs[row, "on"]
      for (i = 1; i <= rounds; ++i) x[i] = values[row, "on", i] / values[row, "off", i]
      return median(x, rounds)
    }
    BEGIN {
      fields = split(heads, unused, "|")
      head(heads "|" measured ", raw|coded|" bound ", raw|coded|÷ that, raw|coded|**÷ that, coded ÷ raw**|" \
        "link bytes ÷ bytes|" measured ", coded ÷ raw|answers|target|machine load")
    }
    {
      row = $1
      for (i = 2; i <= fields; ++i) row = row " | " $i
      if (!((row, "off") in runs)) { order[++rows] = row; load_before[row] = $(fields + 7) }
      key = row SUBSEP $(fields + 1)
      n = ++runs[key]
      value[key, n] = $(fields + 2)
      least[key, n] = $(fields + 3)
      over[key, n] = $(fields + 2) / $(fields + 3)
      bytes[key, n] = $(fields + 4)
      answers[row] = $(fields + 5)
      target[row] = $(fields + 6)
      load_after[row] = $(fields + 8)
    }
    END {
      for (i = 1; i <= rows; ++i) {
        row = order[i]
        raw = row SUBSEP "off"
        coded = row SUBSEP "on"
        both = ratio(over, row)
        printf "| %s | %s | %s ", row, spread(raw), spread(coded)
        printf "| %.4g | %.4g | %.3f | %.3f ", of(least, raw), of(least, coded), of(over, raw), of(over, coded)
        printf "| **%.3f** | %.3f | %.3f | %s ", both, of(bytes, coded), ratio(value, row), answers[row]
        printf "| %s ", !target[row] ? "–" : both <= 1.02 ? "met" : "missed"
        printf "| %s–%s |\n", load_before[row], load_after[row]
      }
    }'
}
