#!/bin/sh
# Makes the root file systems that tests start processes in, as a container would: scripts/root.sh bionic|bullseye|sid|musl...
#   bionic    Ubuntu 18.04: glibc 2.27, the oldest at hand that the wheel's libraries promise to run on, Python 3.6
#   bullseye  Debian 11: an older glibc (2.31) than any build machine's, Python 3.9
#   sid       Debian unstable: the newest glibc, Python 3.14 and 3.15
#   musl      musl's libc of Debian unstable and a static busybox: what an Alpine container has, without a Python
# Each is made once, under build/roots, and kept. Needs root (debootstrap does). Debian's mirror is the one this machine's
# apt uses where that is Debian's, else debootstrap's own.
set -eu
cd "$(dirname "$0")/.."

mirror() {
    . /etc/os-release
    [ "$ID" = debian ] || return 0
    apt-get indextargets --format '$(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "main" && $2 !~ /security/ { print $2; exit }'
}

packages_of() {
    case $1 in
    bionic) echo python3-minimal,libstdc++6 ;;
    bullseye) echo python3 ;;
    sid) echo python3.14,python3.15 ;;
    *) echo "usage: scripts/root.sh bionic|bullseye|sid|musl..." >&2 && return 2 ;;
    esac
}

# Debian has no keys of Ubuntu. The release no longer changes, so its list is checked by its hash; the list has hashes that
# debootstrap checks, and no program of it runs before the second stage.
BIONIC=7552d5ab0c3879756a860aaab8e7c2f8ffb9409ea9ff9e65fc046ba5c519ebe5

# fetch_unpacked PACKAGE FOLDER: a package of Debian unstable, by the lists that its root has.
fetch_unpacked() {
    set -- "$2" $(chroot build/roots/sid apt-get download --print-uris "$1" | tr -d "'")
    curl -sSfL --retry 5 -o "$1.deb" "$2"
    echo "${5#SHA256:}  $1.deb" | sha256sum --check --quiet && dpkg-deb -x "$1.deb" "$1" && rm "$1.deb"
}

make_musl() {
    mkdir -p "$1/bin" "$1/lib" "$1/dev" "$1/proc" "$1/root"
    mkdir -m 1777 "$1/tmp"
    fetch_unpacked musl "$1.musl" && fetch_unpacked busybox-static "$1.busybox" || return 1
    cp "$1.musl"/usr/lib/*-linux-musl/libc.so "$1/lib/ld-musl-$(uname -m).so.1" || return 1
    cp "$1.busybox/usr/bin/busybox" "$1/bin/" || return 1
    for name in sh cat env grep kill ls rm sleep; do
        ln -s busybox "$1/bin/$name"
    done
    mknod -m 666 "$1/dev/null" c 1 3
    rm -rf "$1.musl" "$1.busybox"
}

bootstrap() {
    if [ "$1" = musl ]; then
        make_musl "$2"
        return
    elif [ "$1" != bionic ]; then
        debootstrap --variant=minbase --include="$packages" "$1" "$2" $(mirror)
        return
    fi
    debootstrap --foreign --no-check-gpg --variant=minbase --include="$packages" "$1" "$2" || return 1
    if ! sha256sum "$2"/var/lib/apt/lists/*_dists_bionic_Release | grep -q "^$BIONIC "; then
        echo "root: this is not Ubuntu 18.04 as it was published"
        return 1
    fi
    chroot "$2" /debootstrap/debootstrap --second-stage
}

make_root() {
    packages=
    [ "$1" = musl ] || packages=$(packages_of "$1")
    if [ "$(id -u)" != 0 ]; then
        echo "root: only root can make build/roots/$1. Run: sudo scripts/root.sh $1" >&2
        exit 1
    fi
    scripts/setup.sh roots
    mkdir -p build/roots
    [ "$1" != musl ] || scripts/root.sh sid
    exec 9>build/roots/"$1".lock
    flock 9
    [ ! -e build/roots/"$1" ] || return 0

    echo "root: making build/roots/$1 (half a minute)"
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    [ -z "${http_proxy:-}" ] || export http_proxy
    # A mirror that does not answer is asked once more.
    for try in 1 2; do
        rm -rf build/roots/"$1".part
        bootstrap "$1" build/roots/"$1".part >build/roots/"$1".log 2>&1 && break
        [ $try = 1 ] || { tail -n 5 build/roots/"$1".log >&2 && exit 1; }
    done
    rm -rf build/roots/"$1".part/var/cache/apt/archives/*.deb
    mv build/roots/"$1".part build/roots/"$1"
}

for name in "$@"; do
    [ -e build/roots/"$name" ] || make_root "$name"
done
