#!/bin/sh
# Pre-train with one process per GPU of this machine, or with the given number: examples/launch/torchrun.sh 4 ARGUMENTS...
# On CPUs give each process its share of the cores, e.g. OMP_NUM_THREADS=8 examples/launch/torchrun.sh 4 --recipe unilmv2-base
set -eu
processes=${1:-gpu}
[ $# -eq 0 ] || shift
exec torchrun --standalone --nproc-per-node "$processes" --max-restarts 3 -m unicloze pretrain "$@"
