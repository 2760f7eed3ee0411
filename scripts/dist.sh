#!/bin/sh
# Packs dist/probing-VERSION-linux-MACHINE.tar.gz from build/zig: unpack it anywhere and run bin/probing. Tries it before it is kept.
# Beside it probing-VERSION-linux-MACHINE-small.tar.gz, under 2 MB, without SQL: to copy into a container (kubectl cp).
# scripts/dist.sh aarch64 packs build/aarch64, which can be tried on such a machine only (make dist-arm64).
set -eu
cd "$(dirname "$0")/.."
. scripts/tools.sh
machine=${1:-$(uname -m)}
built=build/zig
[ "$machine" = "$(uname -m)" ] || built=build/$machine
version=$(cat VERSION)
name=probing-$version-linux-$machine

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cmake --install $built --strip --prefix "$tmp/$name" >/dev/null
cp LICENSE "$tmp/$name"/
[ ! -e README.md ] || cp README.md "$tmp/$name"/
mkdir -p dist
# The same files give the same bytes, wherever and whenever they are packed.
pack() {
    tar -C "$tmp" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw --sort=name \
        --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}" -cf - "$1" | gzip -9n >"$tmp/$1.tar.gz"
}
pack "$name"
small=$name-small
cp -a "$tmp/$name" "$tmp/$small"
rm -r "$tmp/$small/bin/probing-sql" "$tmp/$small/lib/probing/libduckdb.so" "$tmp/$small/include"
pack "$small"
[ "$(stat -c %s "$tmp/$small.tar.gz")" -le 2000000 ] || { echo "dist: $small.tar.gz has more than 2 MB" >&2 && exit 1; }

# A link that leads out of the archive works on this machine only.
for link in $(find "$tmp/$name" -type l); do
    case $(readlink "$link") in
    */*) echo "dist: $link is a link to $(readlink "$link")" >&2 && exit 1 ;;
    esac
done
for part in bin/probing-sql lib/probing/libprobing-glibc.so lib/probing/libprobing-musl.so lib/probing/libduckdb.so; do
    [ -e "$tmp/$name/$part" ] || { echo "dist: there is no $part" >&2 && exit 1; }
done
if [ "$machine" = "$(uname -m)" ]; then
    mkdir "$tmp/try"
    tar -C "$tmp/try" -xzf "$tmp/$name.tar.gz"
    "$tmp/try/$name/bin/probing" version
    [ "$("$tmp/try/$name/bin/probing" query --format csv "SELECT 6 * 7 AS x" | tail -n 1)" = 42 ] ||
        { echo "dist: SQL does not run" >&2 && exit 1; }
    tar -C "$tmp/try" -xzf "$tmp/$small.tar.gz"
    "$tmp/try/$small/bin/probing" version >/dev/null
fi
mv "$tmp/$small.tar.gz" "$tmp/$name.tar.gz" dist/
ls -l "dist/$small.tar.gz" "dist/$name.tar.gz"
