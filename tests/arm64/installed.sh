#!/bin/sh
# The wheel and the release archive for aarch64 as a person has them, run in the emulated machine by `make dist-arm64`: installed,
# unpacked, and used on a Python program and on one of musl, where no build tree is.
set -eu
mkdir /tmp/installed
mv dist/*aarch64* /tmp/installed/
mv build/release/kit /tmp/kit
rm -rf build
cd /tmp/installed

cat >job.py <<'END'
import time
answer = 42
def training_step():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
training_step()
END

# $1: what it is; $2: the folder of the programs
use() {
    echo "== $1"
    "$2/probing" version
    python3 job.py >job.out &
    job=$!
    /tmp/kit/musl-malloc 2 >musl.out &
    musl=$!
    until grep -q ready job.out && grep -q ready musl.out; do sleep 0.2; done
    "$2/probing" -t $job backtrace | grep training_step
    [ "$("$2/probing" -t $job eval 'print(answer)')" = 42 ]
    [ "$("$2/probe" -t $job query --format csv 'SELECT count(*) > 0 AS there, 6 * 7 AS x FROM python.backtrace' | tail -n 1)" = true,42 ]
    "$2/probing" -t $job detach
    "$2/probing" -t $musl inject
    "$2/probing" -t $musl config probing.sample_rate
    "$2/probing" -t $musl detach
    kill $job $musl
}

tar xzf probing-*-linux-aarch64.tar.gz
use "the archive" "$(echo "$PWD"/probing-*-linux-aarch64/bin)"
rm -rf probing-*-linux-aarch64
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps probing-*.whl
use "the wheel" "$PWD/venv/bin"
for value in 0 1; do # the .pth file, the package and the library find each other
    [ "$(PROBING=$value venv/bin/python -c 'import probing; print(int(probing.is_enabled()))')" = $value ]
done
echo "arm64: the wheel and the archive work"
