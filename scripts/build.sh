#!/bin/sh
# Configures a preset and builds targets of it: scripts/build.sh <preset> <target>...
# What the compilers print is kept in build/<preset>/build.log and shown when something fails.
set -eu
cd "$(dirname "$0")/.."
preset=$1
shift
scripts/setup.sh build

. scripts/tools.sh

log=build/$preset/build.log
mkdir -p build/"$preset"
# One at a time in a folder: tests build too.
exec 8>build/"$preset"/lock
flock 8
run() {
    if ! "$@" >"$log" 2>&1; then
        # From the first failure on; a failed configuration has no such mark.
        sed -n '/^FAILED/,$p' "$log" | grep . >&2 || cat "$log" >&2
        exit 1
    fi
}

if [ ! -f build/"$preset"/build.ninja ]; then
    echo "build: $preset: $*"
    run cmake --preset "$preset"
fi
run cmake --build build/"$preset" --target "$@"
grep -q 'no work to do' "$log" || echo "build: $preset: $*: done"
