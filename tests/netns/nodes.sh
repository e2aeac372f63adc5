# shellcheck shell=bash
# Source me: "nodes" of one machine for tests. A node is a process that holds namespaces of its own: network (a cable to
# a switch that is in a third namespace, so that no address ever exists outside), host name, shared memory (/dev/shm),
# /tmp and semaphores. Needs root. Everything is gone when those processes are, and they end with the shell that made
# them.
#
#   nodes_missing                  says what is not there, or nothing
#   nodes_up ROOT COUNT [SHARED..] hosts node1, node2, ... at 10.77.0.1, ...; folders SHARED are seen below /tmp too
#   on_node I COMMAND...           runs it there
#   mpirun_on_nodes COUNT RANKS COMMAND...     under mpirun, started on node 1, RANKS a node, TCP between nodes;
#                                  ends with 124 if it takes more than `nodes_limit_s` (60) seconds
#   nodes_cut I, nodes_join I      the cable of node I
#   nodes_down

nodes_missing() {
  local program
  for program in ip unshare nsenter setpriv mpirun; do
    command -v "$program" >/dev/null 2>&1 || { echo "no $program"; return; }
  done
  [ "$(id -u)" = 0 ] || { echo "only root can make namespaces"; return; }
  unshare --net --uts --mount --ipc ip link add type veth 2>/dev/null ||
    echo "this kernel lets no namespaces with cables be made"
}

# Starts a process that holds new namespaces, and returns when they are there. `holder` is its id.
nodes_hold() {
  # Not through unshare: that would change the process's parent-death signal with its own end.
  setpriv --pdeathsig KILL unshare "$@" sleep infinity &
  holder=$!
  disown "$holder"
  until [ "$(readlink "/proc/$holder/ns/net")" != "$(readlink /proc/self/ns/net)" ] &&
    [ "$(cat "/proc/$holder/comm")" = sleep ]; do
    kill -0 "$holder" || return 1
    sleep 0.01
  done
}

on_node() {
  local node="$1"
  shift
  nsenter --target "${nodes_pids[$node]}" --net --uts --mount --ipc -- "$@"
}

in_switch() { nsenter --target "$nodes_switch" --net -- "$@"; }

nodes_make_node() {
  local node="$1"
  shift
  nodes_hold --net --uts --mount --ipc --propagation private || return 1
  nodes_pids[node]=$holder
  in_switch ip link add "port$node" type veth peer name eth0 netns "$holder" || return 1
  in_switch ip link set "port$node" master switch up
  on_node "$node" bash -s "$node" "$nodes_root" "$@" <<'NODE'
    set -e
    node="$1" root="$2"
    shift 2
    hostname "node$node"
    ip link set lo up
    ip address add "10.77.0.$node/24" dev eth0
    ip link set eth0 up
    mount -t tmpfs -o size=1g tmpfs /dev/shm
    mount --bind "$root/hosts" /etc/hosts
    # Shared folders are held open while an empty /tmp hides them, then bound to where they were.
    fds=()
    for folder in "$@"; do
      exec {fd}<"$folder"
      fds+=("$fd")
    done
    mount -t tmpfs -o size=1g tmpfs /tmp
    for folder in "$@"; do
      fd="${fds[0]}"
      fds=("${fds[@]:1}")
      case "$folder" in
        /tmp/*) mkdir -p "$folder" && mount --no-canonicalize --bind "/proc/self/fd/$fd" "$folder" ;;
      esac
    done
NODE
}

nodes_up() {
  local root="$1" count="$2" node
  shift 2
  nodes_root="$root"
  nodes_pids=()
  {
    echo "127.0.0.1 localhost"
    for ((node = 1; node <= count; ++node)); do echo "10.77.0.$node node$node"; done
  } >"$root/hosts"
  nodes_hold --net || return 1
  nodes_switch=$holder
  in_switch ip link add switch type bridge && in_switch ip link set switch up || return 1
  for ((node = 1; node <= count; ++node)); do nodes_make_node "$node" "$root" "$@" || return 1; done
  # What mpirun calls instead of ssh: HOST COMMAND...
  cat >"$root/rsh" <<RSH
#!/bin/bash
pids=(${nodes_pids[*]})
host="\$1"
shift
exec nsenter --target "\${pids[\${host#node} - 1]}" --net --uts --mount --ipc -- /bin/bash -c "\$*"
RSH
  chmod +x "$root/rsh"
}

mpirun_on_nodes() {
  local count="$1" ranks="$2" hosts='' node
  shift 2
  for ((node = 1; node <= count; ++node)); do hosts+="${hosts:+,}node$node:$ranks"; done
  on_node 1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent="$nodes_root/rsh" \
    timeout --foreground "${nodes_limit_s:-60}" mpirun --host "$hosts" -n $((count * ranks)) \
    --mca plm rsh --mca plm_rsh_no_tree_spawn 1 --bind-to none \
    --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    --mca mpi_yield_when_idle 1 "$@"
}

nodes_cut() { in_switch ip link set "port$1" down; }
nodes_join() { in_switch ip link set "port$1" up; }

# Ends whatever still runs on the nodes, then the holders.
nodes_down() {
  local pid link space
  for pid in "${nodes_pids[@]}"; do
    space="$(readlink "/proc/$pid/ns/mnt")" || continue
    [ "$space" != "$(readlink /proc/self/ns/mnt)" ] || continue
    for link in /proc/[0-9]*/ns/mnt; do
      [ "$(readlink "$link")" != "$space" ] || kill -KILL "$(cut -d / -f 3 <<<"$link")" 2>/dev/null
    done
  done
  [ -z "${nodes_switch:-}" ] || kill -KILL "$nodes_switch" 2>/dev/null
}
