#!/bin/sh
# Runs every benchmark: the C ones (bench/*.c, built by CMake) and those that measure whole commands (bench/*.py).
# scripts/bench.sh [name...] runs some of them only. The figures that are promised stand in docs/performance.md.
set -eu
cd "$(dirname "$0")/.."
scripts/build.sh release all benchmarks

wanted() {
    [ "$names" = "" ] && return
    case " $names " in *" $1 "*) return ;; esac
    return 1
}

names=$*
failed=
for source in bench/*.c bench/*.py; do
    [ -e "$source" ] || continue
    name=$(basename "${source%.*}")
    wanted "$name" || continue
    # A C program with a Python script of the same name is run by the script.
    [ "${source##*.}" = c ] && [ -e "bench/$name.py" ] && continue
    echo "== $source"
    case $source in
    *.c) build/release/bench/bench-"$name" || failed="$failed $source" ;;
    *.py) build/venv/bin/python "$source" || failed="$failed $source" ;;
    esac
done
[ -z "$failed" ] || { echo "bench: failed:$failed" >&2 && exit 1; }
