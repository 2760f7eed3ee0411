#!/bin/sh
# What gpu_metrics, python.memory and memory say of a real GPU, against nvidia-smi and torch. Builds nothing there:
#   tests/device/gpu_metrics.sh pack    here: puts a build for old glibcs into build/device (some 20 MB)
#   tests/device/gpu_metrics.sh         on a machine with an NVIDIA GPU, torch with CUDA and that folder; says PASS or FAIL
set -eu
cd "$(dirname "$0")/../.."
folder=build/device

if [ "${1:-}" = pack ]; then
    scripts/build.sh zig all
    rm -rf $folder
    mkdir -p $folder/bin $folder/lib/probing
    cp build/zig/bin/probing build/zig/bin/probing-sql $folder/bin/
    cp build/zig/lib/probing/libprobing-*.so $folder/lib/probing/
    strip --strip-debug $folder/bin/*
    xz -T0 -3 -c "$(readlink -f build/zig/lib/probing/libduckdb.so)" >$folder/lib/probing/libduckdb.so.xz
    du -sh $folder
    exit
fi

if [ -f $folder/lib/probing/libduckdb.so.xz ]; then
    python3 -c "
import lzma, shutil, sys
with lzma.open(sys.argv[1]) as packed, open(sys.argv[1][:-3], 'wb') as to:
    shutil.copyfileobj(packed, to)" $folder/lib/probing/libduckdb.so.xz
    rm $folder/lib/probing/libduckdb.so.xz
fi
exec python3 "tests/device/${1:-gpu_metrics}.py" $folder/bin/probing
