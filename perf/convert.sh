#!/usr/bin/env bash
# What `computron convert` takes beside a plain copy of the same files, and the memory it takes (perf/README.md,
# "Convert"). Writes perf/results/convert-MACHINE.md.
#
#   perf/convert.sh [MACHINE]
#
# REPEATS    of each, taking turns                     (5)
# PROGRAM    computron                                 (build/release/computron)
# NOTE       a line for the result file, such as what else the machine was doing
# WORK       folders and checkpoints                   (build/perf/convert)
# About five minutes; 12 GB of disk. Nothing else should run on the machine meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=perf/common.sh
. perf/common.sh

repeats=${REPEATS:-5}
work=${WORK:-build/perf/convert}
result=perf/results/convert-$machine.md
mkdir -p "$work" perf/results
folder=$work/opt-2gb large=$work/opt-large

[ -e "$folder/config.json" ] || python3 perf/make_folder.py "$folder" 2048 18 BF16
[ -e "$large/config.json" ] || python3 perf/make_folder.py "$large" 12288 1 F32 sparse

# measure COMMAND...: seconds and the largest resident MiB of it, tab-separated.
measure() {
  python3 - "$@" <<'PYTHON'
import resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, sep="\t")
PYTHON
}

# run NAME COMMAND...: name, seconds, MiB. Begins without output and with nothing left to write.
run() {
  local name=$1
  shift
  rm -rf "$work/copy" "$work/out.h5"
  sync
  echo "convert.sh: $name" >&2
  printf '%s\t%s\n' "$name" "$(measure "$@")"
}

copy_and_sync='cp -r "$1" "$2" && sync -f "$2" && for f in "$2"/*; do sync -d "$f"; done'
load_before=$(load)
cat "$folder"/*.safetensors > /dev/null  # sources in memory for all alike
for ((repeat = 0; repeat < repeats; ++repeat)); do
  run cp cp -r "$folder" "$work/copy"
  run keep "$program" convert "$folder" "$work/out.h5"
  run sync bash -c "$copy_and_sync" copy "$folder" "$work/copy"
  run f16 "$program" convert "$folder" "$work/out.h5" --dtype f16
done > "$work/runs.tsv"
for threads in 1 2 16; do
  run "large, $threads" "$program" convert "$large" "$work/out.h5" --dtype bf16 --threads "$threads"
done > "$work/large.tsv"
load_after=$(load)
rm -rf "$work/copy" "$work/out.h5"

bytes=$(cat "$folder"/*.safetensors | wc -c)
large_bytes=$(cat "$large"/*.safetensors | wc -c)

speed_table() {
  awk -F '\t' -v bytes="$bytes" "$awk_functions"'
    { ++count[$1]; s[$1, count[$1]] = $2; if ($3 > mib[$1]) mib[$1] = $3 }
    function row(key, what, target,    i, x, n) {
      n = count[key]
      for (i = 1; i <= n; ++i) x[i] = s[key, i]
      middle[key] = median(x, n)
      printf "| %s | %.2f (%.2f–%.2f) | %.2f ", what, middle[key], x[1], x[n], bytes / middle[key] / 1e9
      printf "| %.2f | %.2f ", middle["cp"] / middle[key], middle["sync"] / middle[key]
      print "| " (target ? (middle["cp"] / middle[key] >= 0.7 ? "met" : "missed") : "") " |"
    }
    END {
      head("run|s|GB/s|cp ÷ run|cp and sync ÷ run|target")
      for (i = 1; i <= count["sync"]; ++i) y[i] = s["sync", i]
      middle["sync"] = median(y, count["sync"])
      row("cp", "cp", 0); row("sync", "cp and sync", 0)
      row("keep", "convert", 1); row("f16", "convert --dtype f16", 1)
    }' "$work/runs.tsv"
}

memory_table() {
  awk -F '\t' "$awk_functions"'
    function row(what, mib) { printf "| %s | %.0f | %s |\n", what, mib, mib <= 512 ? "met" : "missed" }
    BEGIN { head("run|largest resident MiB|target") }
    FILENAME ~ /runs/ { if ($1 == "keep" || $1 == "f16") if ($3 > most) most = $3; next }
    FNR == 1 { row("bf16 of the 2 GB folder, all cores", most) }
    { sub("large, ", "large, threads ", $1); row($1, $3) }' "$work/runs.tsv" "$work/large.tsv"
}

{
  echo "# Converting beside copying: $cpu, $cores cores"
  echo
  made_by convert
  echo "An OPT model of hidden 2048 and 18 layers in bfloat16, $bytes bytes in two shards, in the page cache; medians of"
  echo "$repeats runs taking turns, in brackets least and most. large: hidden 12288, one layer, float32 to bfloat16,"
  echo "$large_bytes bytes. Machine load: one-minute average before and after, runs included: $load_before–$load_after."
  [ -z "${NOTE:-}" ] || printf '\n**%s**\n' "$NOTE"
  echo
  speed_table
  echo
  memory_table
} > "$result.partial"
mv "$result.partial" "$result"
echo "$result"
