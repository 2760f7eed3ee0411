#!/bin/sh
# Builds dist/probing-*.whl, with everything compiled by zig cc for glibc 2.17, and tries it: the wheel is installed into a
# new environment, and the program in there must run and find its agents and DuckDB. It is built in build/zig, so that what
# is compiled there already is not compiled again; with PROBING_SOAK=1 in an empty folder, as pip does.
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python

echo "wheel: building with zig cc"
rm -rf build/wheel && mkdir -p build/wheel dist
folder=
if [ -z "${PROBING_SOAK:-}" ]; then
    scripts/build.sh zig all
    folder=--config-setting=build-dir=build/zig
fi
CC=$PWD/scripts/zig-cc PATH=$PWD/build/venv/bin:$PATH \
    $python -m build --wheel --no-isolation $folder --outdir build/wheel . >build/wheel/build.log 2>&1 ||
    { cat build/wheel/build.log >&2 && exit 1; }

# Our own programs ask for glibc 2.17, DuckDB's library for a newer one: the name promises what auditwheel finds.
tag=$($python scripts/wheel_tag.py build/wheel/*.whl)
case $tag in
manylinux_*) ;;
*) echo "wheel: auditwheel finds this wheel fit for no manylinux system: $tag" >&2 && exit 1 ;;
esac
$python -m wheel tags --remove --platform-tag "$tag" build/wheel/*.whl >/dev/null
wheel=$(echo build/wheel/*.whl)

echo "wheel: trying $(basename "$wheel") in a new environment"
$python -m venv build/wheel/venv
build/wheel/venv/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps "$wheel"
build/wheel/venv/bin/probing version
build/wheel/venv/bin/probe version >/dev/null
for libc in glibc musl; do
    [ -e build/wheel/venv/lib/probing/libprobing-$libc.so ] || { echo "wheel: no agent for $libc" >&2 && exit 1; }
done
for value in 0 1; do # the .pth file, the package and the library find each other
    said=$(cd / && PROBING=$value "$OLDPWD/build/wheel/venv/bin/python" -c "import probing; print(int(probing.is_enabled()))")
    [ "$said" = $value ] || { echo "wheel: PROBING=$value does not do what it says: $said" >&2 && exit 1; }
done
[ "$(build/wheel/venv/bin/probing query --format csv "SELECT 6 * 7 AS x" | tail -n 1)" = 42 ] ||
    { echo "wheel: SQL does not run" >&2 && exit 1; }
rm -f dist/probing-*.whl
cp "$wheel" dist/
ls -l dist/"$(basename "$wheel")"
