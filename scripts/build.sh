#!/bin/sh
# Configures a preset and builds targets of it: scripts/build.sh <preset> <target>...
# Compilers' output is kept from the terminal until something fails, except for the line that says what is done.
set -eu
cd "$(dirname "$0")/.."
preset=$1
shift
scripts/setup.sh build

# Set up only where the system's are missing or too old; then they must come first.
for tool in cmake ninja; do
    [ -x build/venv/bin/$tool ] && PATH=$PWD/build/venv/bin:$PATH && break
done

log=build/$preset/build.log
mkdir -p build/"$preset"
run() {
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        exit 1
    fi
}

[ -f build/"$preset"/build.ninja ] || run cmake --preset "$preset"
# Ninja knows whether there is anything to do; say something only then.
if ! cmake --build build/"$preset" --target "$@" -- -n 2>/dev/null | grep -q 'no work to do'; then
    echo "build: $preset: $*"
    run cmake --build build/"$preset" --target "$@"
fi
