#!/bin/sh
# Makes the root file systems that tests start processes in, as a container would: scripts/root.sh bionic|bullseye|sid...
#   bionic    Ubuntu 18.04: glibc 2.27, the oldest at hand that the wheel's libraries promise to run on, Python 3.6
#   bullseye  Debian 11: an older glibc (2.31) than any build machine's, Python 3.9
#   sid       Debian unstable: the newest glibc, Python 3.14 and 3.15
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
    *) echo "usage: scripts/root.sh bionic|bullseye|sid..." >&2 && return 2 ;;
    esac
}

# Debian has no keys of Ubuntu. The release no longer changes, so its list is checked by its hash; the list has hashes that
# debootstrap checks, and no program of it runs before the second stage.
BIONIC=7552d5ab0c3879756a860aaab8e7c2f8ffb9409ea9ff9e65fc046ba5c519ebe5

bootstrap() {
    if [ "$1" != bionic ]; then
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
    packages=$(packages_of "$1")
    if [ "$(id -u)" != 0 ]; then
        echo "root: only root can make build/roots/$1. Run: sudo scripts/root.sh $1" >&2
        exit 1
    fi
    scripts/setup.sh roots
    mkdir -p build/roots
    exec 9>build/roots/"$1".lock
    flock 9
    [ ! -e build/roots/"$1" ] || return 0

    echo "root: making build/roots/$1 with debootstrap (half a minute)"
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
