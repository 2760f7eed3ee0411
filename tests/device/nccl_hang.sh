#!/bin/sh
# Hangs of NCCL over four ranks that share one GPU, said with no agent in any of them. Builds nothing there:
#   tests/device/nccl_hang.sh pack     here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/nccl_hang.sh          on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
exec tests/device/gpu_metrics.sh "${1:-nccl_hang}"
