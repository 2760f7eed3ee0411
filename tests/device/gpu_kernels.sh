#!/bin/sh
# gpu profile on a real GPU: the kernels that torch.profiler finds, its cost, no harm. Builds nothing there:
#   tests/device/gpu_kernels.sh pack    here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/gpu_kernels.sh         on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
exec tests/device/gpu_metrics.sh "${1:-gpu_kernels}"
