#!/bin/sh
# The long form, run in the emulated aarch64 machine by `make soak-arm64`; with words, those parts of it:
#   scripts/arm64.sh run tests/arm64/soak.sh [short] [unit] [integration] [harm] [injections]
# integration is the selection of `make check`: all of them would take hours there. harm and injections run by name only, so that
# the rest ends within 40 minutes. harm judges times: it wants the clock that counts instructions (`make harm-arm64`), by which the
# machine is some five times slower than others.
export PROBING_KIT="$PWD/build/release/kit" PROBING_BUILT=1 PYTHONDONTWRITEBYTECODE=1 PROBING_SLOW=10 PYTEST_ADDOPTS=--timeout=600
failed=

quick_files() {
    PYTHONPATH=tests python3 -c 'import quick; print(*(f"tests/integration/{name}.py" for name in quick.INTEGRATION))'
}

run_part() {
    case $1 in
    short) sh tests/arm64/short.sh ;;
    unit) python3 scripts/test.py unit ;;
    integration) python3 -m pytest -q -rs -m quick -n 2 --dist loadfile $(quick_files) ;;
    harm)
        export PROBING_SLOW=5
        # Where it is always, jemalloc's heaps grow by 2 MB at a time.
        echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
        python3 -m pytest -q -rs tests/harm/test_matrix.py
        ;;
    injections) PROBING_SOAK=1 python3 -m pytest -q tests/integration/test_inject.py -k lives_in_its_allocator ;;
    *) echo "soak: there is no part $1" && return 2 ;;
    esac
}

[ $# -gt 0 ] || set -- short unit integration
for part in "$@"; do
    echo "== $part"
    began=$(date +%s)
    run_part "$part" || failed="$failed $part"
    echo "== $part: $(($(date +%s) - began)) s"
done
if [ -n "$failed" ]; then
    echo "arm64: failed:$failed"
    exit 1
fi
echo "arm64: passed: $*"
