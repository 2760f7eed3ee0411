#!/bin/sh
# Builds dist/probing-*.whl, with everything compiled by zig cc for glibc 2.17, and tries it: the wheel is installed into a
# new environment, and the program in there must run and find its agents and DuckDB. It is built in build/zig, so that what
# is compiled there already is not compiled again; with PROBING_SOAK=1 in an empty folder, as pip does.
#   scripts/wheel.sh aarch64    for aarch64, in an empty folder too; it can be tried on such a machine only (make dist-arm64)
#   scripts/wheel.sh x86_64 musl    for musl, in build/musl; tests/integration/test_wheel_musl.py tries it in a root of musl
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
machine=${1:-$(uname -m)}
libc=${2:-glibc}
out=build/wheel
many=manylinux
preset=zig
if [ "$machine" != "$(uname -m)" ]; then
    out=build/wheel-$machine
    # The first is what sysconfig calls the machine that is built for.
    export _PYTHON_HOST_PLATFORM="linux-$machine" \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_C_COMPILER_TARGET=$machine-linux-gnu.2.17"
fi
if [ "$libc" = musl ]; then
    scripts/musl.sh "$machine"
    out=build/wheel-$machine-musl many=musllinux preset=musl
    export _PYTHON_HOST_PLATFORM="linux-$machine" \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_C_COMPILER_TARGET=$machine-linux-musl"
fi

echo "wheel: building with zig cc"
rm -rf $out && mkdir -p $out dist
folder=
if [ -z "${PROBING_SOAK:-}" ] && [ "$machine" = "$(uname -m)" ]; then
    scripts/build.sh $preset all
    folder=--config-setting=build-dir=build/$preset
fi
CC=$PWD/scripts/zig-cc PATH=$PWD/build/venv/bin:$PATH \
    $python -m build --wheel --no-isolation $folder --outdir $out . >$out/build.log 2>&1 ||
    { cat $out/build.log >&2 && exit 1; }

if [ "$libc" = musl ]; then
    # zig names musl's libc as musl does, auditwheel as Alpine does; the loader knows both.
    $python -m wheel unpack -d $out/unpacked $out/*.whl >/dev/null
    for part in bin/probing bin/probe bin/probing-sql lib/probing/libprobing-musl.so; do
        build/patchelf --replace-needed libc.so "libc.musl-$machine.so.1" $out/unpacked/*/*.data/data/$part
    done
    rm $out/*.whl
    $python -m wheel pack -d $out $out/unpacked/* >/dev/null
fi

# Our programs need glibc 2.17, DuckDB's library a newer one: the wheel's name has the tag that auditwheel finds.
tag=$($python scripts/wheel_tag.py $out/*.whl)
case $tag in
${many}_*) ;;
*) echo "wheel: auditwheel finds this wheel fit for no $many system: $tag" >&2 && exit 1 ;;
esac
$python -m wheel tags --remove --platform-tag "$tag" $out/*.whl >/dev/null
wheel=$(echo $out/*.whl)

if [ "$machine" = "$(uname -m)" ] && [ "$libc" = glibc ]; then
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
rm -f dist/probing-*"$many"*_"$machine".whl
cp "$wheel" dist/
ls -l dist/"$(basename "$wheel")"
