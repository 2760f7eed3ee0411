#!/bin/sh
# Builds dist/probing-*.whl, with everything compiled by zig cc for glibc 2.17, and tries it: the wheel is installed into a
# new environment, and the program in there must run and find its agents and DuckDB. It is built in build/zig, so that what
# is compiled there already is not compiled again; with PROBING_SOAK=1 in an empty folder, as pip does. scripts/wheel.sh aarch64
# builds the one for aarch64, in an empty folder too, which can be tried on such a machine only (make dist-arm64).
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
machine=${1:-$(uname -m)}
out=build/wheel
if [ "$machine" != "$(uname -m)" ]; then
    out=build/wheel-$machine
    # The first is what sysconfig calls the machine that is built for.
    export _PYTHON_HOST_PLATFORM="linux-$machine" \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_C_COMPILER_TARGET=$machine-linux-gnu.2.17"
fi

echo "wheel: building with zig cc"
rm -rf $out && mkdir -p $out dist
folder=
if [ -z "${PROBING_SOAK:-}" ] && [ "$machine" = "$(uname -m)" ]; then
    scripts/build.sh zig all
    folder=--config-setting=build-dir=build/zig
fi
CC=$PWD/scripts/zig-cc PATH=$PWD/build/venv/bin:$PATH \
    $python -m build --wheel --no-isolation $folder --outdir $out . >$out/build.log 2>&1 ||
    { cat $out/build.log >&2 && exit 1; }

# Our programs need glibc 2.17, DuckDB's library a newer one: the wheel's name has the tag that auditwheel finds.
tag=$($python scripts/wheel_tag.py $out/*.whl)
case $tag in
manylinux_*) ;;
*) echo "wheel: auditwheel finds this wheel fit for no manylinux system: $tag" >&2 && exit 1 ;;
esac
$python -m wheel tags --remove --platform-tag "$tag" $out/*.whl >/dev/null
wheel=$(echo $out/*.whl)

if [ "$machine" = "$(uname -m)" ]; then
    echo "wheel: trying $(basename "$wheel") in a new environment"
    $python -m venv $out/venv
    $out/venv/bin/python -m pip install -q --disable-pip-version-check --no-index --no-deps "$wheel"
    $out/venv/bin/probing version
    $out/venv/bin/probe version >/dev/null
    for libc in glibc musl; do
        [ -e $out/venv/lib/probing/libprobing-$libc.so ] || { echo "wheel: no agent for $libc" >&2 && exit 1; }
    done
    for value in 0 1; do # the .pth file, the package and the library find each other
        said=$(cd / && PROBING=$value "$OLDPWD/$out/venv/bin/python" -c "import probing; print(int(probing.is_enabled()))")
        [ "$said" = $value ] || { echo "wheel: PROBING=$value does not do what it says: $said" >&2 && exit 1; }
    done
    [ "$($out/venv/bin/probing query --format csv "SELECT 6 * 7 AS x" | tail -n 1)" = 42 ] ||
        { echo "wheel: SQL does not run" >&2 && exit 1; }
fi
rm -f dist/probing-*_"$machine".whl
cp "$wheel" dist/
ls -l dist/"$(basename "$wheel")"
