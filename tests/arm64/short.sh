#!/bin/sh
# The short form, run in the emulated aarch64 machine (scripts/arm64.sh) by `make check-arm64`: the tool killed at every step
# of an injection, with scalable vectors and without, who holds the GIL, and then the commands, once each, on Debian's Python.
set -eu
export PROBING_KIT="$PWD/build/release/kit" PYTHONDONTWRITEBYTECODE=1
. tests/arm64/use.sh

python3 -m pytest -q tests/integration/test_inject.py -k "killed_at_every_step and not musl and not malloc and not futex"
python3 -m pytest -q -rs tests/arm64
use_programs "$PWD/build/release/bin" "$PROBING_KIT/musl-malloc"
echo "arm64: the short form passed"
