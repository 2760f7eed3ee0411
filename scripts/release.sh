#!/bin/sh
# Everything of a release into dist/: scripts/release.sh 0.2.0 [NAME...]. A NAME builds only that: sdist wheel wheel-musl archive
# packages. It sets VERSION and the heading of CHANGELOG.md, and commits nothing. With PROBING_SIGN_KEY=FILE, a key of ssh, the
# list of hashes is signed too.
set -eu
cd "$(dirname "$0")/.."
version=${1:-}
case $version in
*[!0-9.]* | *..* | .* | *. | "") echo "release: say which version: make release VERSION=0.2.0" >&2 && exit 2 ;;
*.*.*) ;;
*) echo "release: a version has three numbers, such as 0.2.0, not $version" >&2 && exit 2 ;;
esac
shift
[ $# -gt 0 ] || set -- sdist wheel wheel-musl archive packages
for name in "$@"; do
    case $name in
    sdist | wheel | wheel-musl | archive | packages) ;;
    *) echo "release: $name is none of sdist, wheel, wheel-musl, archive, packages" >&2 && exit 2 ;;
    esac
done

scripts/setup.sh wheel
[ "$(cat VERSION)" = "$version" ] || echo "$version" >VERSION
# The day of the last commit: two builds of the same sources have the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
sed -i "0,/^## /s/^## .* (unreleased)\$/## $version ($(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d))/" CHANGELOG.md

rm -rf dist
mkdir dist
for name in "$@"; do
    case $name in
    sdist) build/venv/bin/python -m build --sdist --no-isolation --outdir dist . >/dev/null ;;
    wheel) scripts/wheel.sh ;;
    wheel-musl) scripts/wheel.sh "$(uname -m)" musl ;;
    archive) scripts/build.sh zig all && scripts/dist.sh ;;
    packages) scripts/packages.sh ;;
    esac
done
python3 scripts/sbom.py "$version" "$SOURCE_DATE_EPOCH" dist/* >build/sbom.spdx.json
mv build/sbom.spdx.json "dist/probing-$version.spdx.json"
(cd dist && sha256sum -- * >SHA256SUMS)
if [ -n "${PROBING_SIGN_KEY:-}" ]; then
    ssh-keygen -q -Y sign -n probing-release -f "$PROBING_SIGN_KEY" dist/SHA256SUMS
else
    echo "release: dist/SHA256SUMS is not signed (PROBING_SIGN_KEY=FILE names a key of ssh)"
fi
cat dist/SHA256SUMS
