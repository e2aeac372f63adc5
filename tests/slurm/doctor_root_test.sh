#!/usr/bin/env bash
# doctor_root_test.sh SOURCE FOLDER: jobs/doctor.sh in a bare Debian root, where neither MPI nor Computron is, says so and
# what to do, and trips over nothing. The root is made once, in FOLDER, and kept. Exits with 77, saying why, where it
# cannot be made.
# shellcheck disable=SC2016  # what is started expands it
set -uo pipefail
source="$1" root="$2/bare"
command -v mmdebstrap >/dev/null || { echo "SKIPPED: no mmdebstrap (apt-get install mmdebstrap)"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "SKIPPED: only root makes a root here"; exit 77; }
if [ ! -x "$root/bin/bash" ]; then
  mkdir -p "$2"
  mmdebstrap --quiet --mode=root --variant=essential bookworm "$root" >"$2/bare.log" 2>&1 ||
    { echo "SKIPPED: no root: $(tail -n 2 "$2/bare.log")"; rm -rf "$root"; exit 77; }
fi
cp "$source/jobs/doctor.sh" "$root/doctor.sh"

fail() {
  printf 'doctor_root_test: %s:\n%s\n' "$1" "$said"
  exit 1
}
expect() {
  grep -q -- "$1" <<<"$said" || fail "no '$1'"
}
# With its file systems, then without any.
said="$(unshare --mount bash -c 'mount -t proc none "$0/proc" && mount -t tmpfs none "$0/dev" && mkdir "$0/dev/shm" &&
  mknod "$0/dev/null" c 1 3 && chroot "$0" /usr/bin/env -i PATH=/usr/bin:/bin /doctor.sh' "$root" 2>&1)"
[ $? = 1 ] || fail "it does not end with 1"
expect '^fail  program: no computron on the PATH  -- build it'
expect '^fail  mpirun: neither mpirun nor srun'
expect '^ok    shm: /dev/shm has'
expect '^ok    memory: '
expect '^ok    cores: 1 ranks of 1 threads'
expect '^warn  hugepages: /sys says nothing'  # which this root has not
grep -qvE '^(ok  |warn|fail)  [a-z]+: |^doctor.sh: [^ ]+, Linux ' <<<"$said" && fail "a line is no check's"
said="$(chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin bash -c 'exec /doctor.sh 2>&1')"
expect '^warn  memory: /proc is not mounted'
expect '^warn  shm: /dev/shm is a folder of a disk'
grep -qvE '^(ok  |warn|fail)  [a-z]+: |^doctor.sh: [^ ]+, Linux ' <<<"$said" && fail "a line is no check's"
exit 0
