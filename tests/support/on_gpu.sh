#!/bin/sh
# Runs a command on a machine with a GPU: on_gpu.sh COMMAND...; elsewhere it says so and ends with 77, which ctest shows
# as skipped.
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 || { echo "SKIPPED: this machine has no GPU"; exit 77; }
COMPUTRON_TEST_DEVICE=cuda exec "$@"
