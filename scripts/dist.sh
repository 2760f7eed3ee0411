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

# What a link leads out of the archive to is on this machine only.
for link in $(find "$tmp/$name" -type l); do
    case $(readlink "$link") in
    */*) echo "dist: $link is a link to $(readlink "$link")" >&2 && exit 1 ;;
    esac
done
mkdir "$tmp/try"
tar -C "$tmp/try" -xzf "$tmp/$name.tar.gz"
"$tmp/try/$name/bin/probing" version
[ -e "$tmp/try/$name/lib/probing/libprobing-glibc.so" ]
[ "$("$tmp/try/$name/bin/probing" query --format csv "SELECT 6 * 7 AS x" | tail -n 1)" = 42 ] ||
    { echo "dist: SQL does not run" >&2 && exit 1; }
mv "$tmp/$name.tar.gz" dist/
ls -l "dist/$name.tar.gz"
