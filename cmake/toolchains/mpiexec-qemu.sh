#!/bin/sh
# mpiexec-qemu.sh -n N PROGRAM...: N ranks of a PROGRAM for aarch64, started by this machine's mpiexec of MPICH, each under
# qemu with the libraries of the root COMPUTRON_SYSROOT. A PROGRAM that is a script for that is PROGRAM.elf itself.
set -eu
[ "$1" != --version ] || exec mpiexec.mpich --version
[ "$1" = -n ]
ranks="$2"
shift 2
[ "$(head -c 2 "$1")" != '#!' ] || { program="$1.elf"; shift; set -- "$program" "$@"; }
exec mpiexec.mpich -n "$ranks" qemu-aarch64-static -L "${COMPUTRON_SYSROOT:?names the arm64 root}" "$@"
