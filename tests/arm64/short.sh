#!/bin/sh
# The short form, run in the emulated aarch64 machine (scripts/arm64.sh) by `make check-arm64`: the tool killed at every step
# of an injection, with scalable vectors and without, who holds the GIL, and then the commands, once each, on Debian's Python.
set -eu
export PROBING_KIT="$PWD/build/release/kit" PYTHONDONTWRITEBYTECODE=1
probing=$PWD/build/release/bin/probing

python3 -m pytest -q tests/integration/test_inject.py -k "killed_at_every_step and not musl and not malloc and not futex"
python3 -m pytest -q -rs tests/arm64

cat >/tmp/job.py <<'END'
import time
def training_step():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
training_step()
END
python3 /tmp/job.py >/tmp/job.out &
job=$!
until grep -q ready /tmp/job.out; do sleep 0.2; done
"$probing" -t $job inject
"$probing" -t $job backtrace | tee /tmp/stack
grep -q training_step /tmp/stack
[ "$("$probing" -t $job eval 'print(6 * 7)')" = 42 ]
"$probing" -t $job query --format csv "SELECT count(*) > 0 AS there, 6 * 7 AS x FROM python.backtrace" | tee /tmp/rows
[ "$(tail -n 1 /tmp/rows)" = true,42 ]
"$probing" -t $job detach
kill -0 $job
kill $job
echo "arm64: the short form passed"
