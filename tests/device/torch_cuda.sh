#!/bin/sh
# The torch probe on a training on a real GPU: the same losses, GPU times, memory, graphs, nccl. Builds nothing there:
#   tests/device/torch_cuda.sh pack     here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/torch_cuda.sh          on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
exec tests/device/gpu_metrics.sh "${1:-torch_cuda}"
