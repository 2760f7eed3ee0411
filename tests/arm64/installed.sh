#!/bin/sh
# The wheel and the release archive for aarch64 as a person has them, run in the emulated machine by `make dist-arm64`: installed,
# unpacked, and used on a Python program and on one of musl, where no build tree is.
set -eu
. tests/arm64/use.sh
mkdir /tmp/installed
mv dist/*aarch64* /tmp/installed/
mv build/release/kit /tmp/kit
rm -rf build
cd /tmp/installed

echo "== the archive"
tar xzf probing-*-linux-aarch64.tar.gz
use_programs "$(echo "$PWD"/probing-*-linux-aarch64/bin)" /tmp/kit/musl-malloc
rm -rf probing-*-linux-aarch64
echo "== the wheel"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps probing-*.whl
use_programs "$PWD/venv/bin" /tmp/kit/musl-malloc
for value in 0 1; do # the .pth file, the package and the library find each other
    [ "$(PROBING=$value venv/bin/python -c 'import probing; print(int(probing.is_enabled()))')" = $value ]
done
echo "arm64: the wheel and the archive work"
