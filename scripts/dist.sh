#!/bin/sh
# Packs dist/probing-VERSION-ARCH.tar.gz from build/zig: unpack it anywhere and run bin/probing. Tries it before it is kept.
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
version=$(sed -n 's/^project(probing VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=probing-$version-linux-$(uname -m)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cmake --install build/zig --strip --prefix "$tmp/$name" >/dev/null
cp LICENSE "$tmp/$name"/
[ ! -e README.md ] || cp README.md "$tmp/$name"/
mkdir -p dist
tar -C "$tmp" --owner=0 --group=0 --sort=name -czf "$tmp/$name.tar.gz" "$name"

mkdir "$tmp/try"
tar -C "$tmp/try" -xzf "$tmp/$name.tar.gz"
"$tmp/try/$name/bin/probing" version
[ -e "$tmp/try/$name/lib/probing/libprobing-glibc.so" ]
mv "$tmp/$name.tar.gz" dist/
ls -l "dist/$name.tar.gz"
