#!/bin/sh
# What gpu_metrics says that the GPU is doing, in known states. Builds nothing there:
#   tests/device/gpu_doing.sh pack     here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/gpu_doing.sh          on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
exec tests/device/gpu_metrics.sh "${1:-gpu_doing}"
