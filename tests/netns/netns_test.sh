#!/usr/bin/env bash
# netns_test.sh PROGRAM SOURCE: one job on two nodes, which are namespaces of this machine (nodes.sh) with host names,
# shared memory and /tmp of their own, over TCP. Results are those of one node, and of shared files there are only the
# checkpoints and the program: requests, results, metrics, trace and everything beside them are rank 0's. Exits with 77,
# saying why, where namespaces cannot be made.
set -uo pipefail
exec 3>&2
program="$1" source="$2"
. "$source/tests/netns/nodes.sh"
missing="$(nodes_missing)"
if [ -n "$missing" ]; then
  echo "SKIPPED: $missing"
  exit 77
fi

work="$(mktemp -d /tmp/computron_netns.XXXXXX)"
nodes_pids=()
end() {
  nodes_down
  rm -rf "$work"
}
trap end EXIT
trap 'fail "stopped, or too slow"' TERM INT HUP
fail() {
  exec >&3 2>&3  # it may have happened in the midst of a redirected command
  echo "netns_test: $*"
  tail -n 30 "$work"/*.log
  exit 1
}

cat >"$work/tiny.json" <<'JSON'
{"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 256,
 "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64, "do_layer_norm_before": true}
JSON
"$program" init "$work/one.h5" --config "$work/tiny.json" --seed 1 >/dev/null || fail "no model"
"$program" init "$work/two.h5" --config "$work/tiny.json" --seed 2 >/dev/null || fail "no model"
models=(one two)
for ((i = 0; i < 60; ++i)); do
  echo '{"custom_id": "r'$i'", "method": "POST", "url": "/v1/completions",' \
    '"body": {"model": "'${models[i % 2]}'", "prompt": [1, '$((i + 4))', 3], "max_tokens": 6}}'
done >"$work/requests.jsonl"

serve=("$program" serve --device cpu --threads 1 --device-memory 1MiB --page-size 64KiB
  --model "one=$work/one.h5" --model "two=$work/two.h5")
one_node() {
  (. "$source/jobs/mpi-env.sh" && mpirun -n 4 "${serve[@]}" --requests "$work/requests.jsonl" "$@") \
    >"$work/one_node.log" 2>&1
}

nodes_up "$work" 2 "$(dirname "$program")" "$work" || fail "no nodes"
# Only node 1 has them: /tmp/own is a folder of its own /tmp.
on_node 1 mkdir /tmp/own
on_node 1 cp "$work/requests.jsonl" "$work/two.h5" /tmp/own/

for mesh in "4 1" "2 2"; do
  read -r tp pp <<<"$mesh"
  one_node --tp "$tp" --pp "$pp" --output "$work/one_$tp.jsonl" || fail "one node, tp $tp pp $pp"
  mpirun_on_nodes 2 2 "${serve[@]}" --tp "$tp" --pp "$pp" --requests /tmp/own/requests.jsonl \
    --output "/tmp/own/out_$tp.jsonl" --metrics /tmp/own/metrics.json --trace /tmp/own/trace.json \
    >"$work/two_nodes.log" 2>&1 || fail "two nodes, tp $tp pp $pp"
  for rank in 0 1 2 3; do
    grep -qE "^$rank +[0-9] +[0-9] +node$((rank / 2 + 1)) " "$work/two_nodes.log" ||
      fail "rank $rank is not on its node"
  done
  on_node 1 cat "/tmp/own/out_$tp.jsonl" | sort >"$work/two.sorted"
  sort "$work/one_$tp.jsonl" | cmp - "$work/two.sorted" || fail "two nodes and one differ at tp $tp pp $pp"
  [ "$(wc -l <"$work/two.sorted")" = 60 ] || fail "not all results at tp $tp pp $pp"
  on_node 1 grep -q '"ranks": *4' /tmp/own/metrics.json || fail "no metrics on node 1"
  for rank in 0 1 2 3; do
    on_node 1 grep -q "\"pid\": *$rank" /tmp/own/trace.json || fail "rank $rank is not in the trace"
  done
  [ -z "$(on_node 2 find /tmp -maxdepth 1 -name own)" ] || fail "something of it is on node 2"
done

# Standard input, which is rank 0's, and its spool.
on_node 1 cat /tmp/own/requests.jsonl | mpirun_on_nodes 2 2 "${serve[@]}" --tp 2 --pp 2 --requests - \
  --output /tmp/own/stdin.jsonl >"$work/stdin.log" 2>&1 || fail "requests over standard input"
on_node 1 cat /tmp/own/stdin.jsonl | sort | cmp - "$work/two.sorted" || fail "results over standard input differ"

# A checkpoint that node 2 does not see.
mpirun_on_nodes 2 2 "${serve[@]}" --model three=/tmp/own/two.h5 --tp 2 --pp 2 --requests /tmp/own/requests.jsonl \
  --output /tmp/own/refused.jsonl >"$work/refused.log" 2>&1
code=$?
[ "$code" = 66 ] || fail "a checkpoint that is not on node 2 ends with $code"
[ "$(grep -c '^computron: rank' "$work/refused.log")" = 1 ] || fail "one line says why"
grep -qE '^computron: rank [23] node2: .*/tmp/own/two.h5' "$work/refused.log" ||
  fail "which rank, which host, which file"
# The cable of node 2 is pulled in the midst of a job. Nothing else tells of that: every node's watchdog does. mpirun
# gets to know once there is a cable again.
cut=("${serve[@]}" --tp 2 --pp 2 --requests /tmp/own/requests.jsonl --output /tmp/own/cut.jsonl)
mpirun_on_nodes 2 2 "${cut[@]}" --watchdog 0.1 --link-gbps 0.0005 --max-seqs 1 --policy fifo >"$work/cut.log" 2>&1 &
job=$!
until on_node 1 test -s /tmp/own/cut.jsonl.partial || ! kill -0 "$job" 2>/dev/null; do sleep 0.1; done
nodes_cut 2
until grep -q '^computron: rank [01] node1: watchdog: ' "$work/cut.log" || ! kill -0 "$job" 2>/dev/null; do
  sleep 0.1
done
nodes_join 2
wait "$job"
code=$?
[ "$code" = 79 ] || fail "a job whose nodes lose each other ends with $code"
grep -qE '^computron: rank [01] node1: watchdog: .*rank [23] on node2' "$work/cut.log" ||
  fail "who is not heard of any more"
mpirun_on_nodes 2 2 "${cut[@]}" >"$work/again.log" 2>&1 || fail "the job that lost a node does not go on"
on_node 1 cat /tmp/own/cut.jsonl | sort | cmp - "$work/two.sorted" || fail "results after the loss of a node differ"

echo "netns_test: passed"
