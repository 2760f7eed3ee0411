#!/bin/sh
# Collectives of NCCL over four ranks that share one GPU: their ends, the cost, the same losses. Builds nothing there:
#   tests/device/nccl.sh pack     here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/nccl.sh          on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
exec tests/device/gpu_metrics.sh "${1:-nccl}"
