#!/bin/sh
# An emulated aarch64 machine, for tests that need to run there: scripts/arm64.sh make | build | run SCRIPT [ARGUMENT...]
#   make  makes build/arm64: Debian 12's root and kernel, from the mirror that this machine's apt uses (two minutes; needs root,
#         as debootstrap does). Kept; `rm -rf build/arm64` to have it made anew.
#   build builds for it what runs in it: the programs and agents, the unit tests, the parts of the injection tests, and
#         CPythons that Debian 12 does not have, out of wheels.
#   run   boots it (some 15 s without a busy machine), runs SCRIPT in it as root, in a copy of this tree, shows what it
#         prints, and exits as it does. What it leaves in $OUT is in build/arm64/share/out afterwards.
# QEMU emulates the instructions, so every time measured in there is some ten to fifty times what it is on a machine.
# PROBING_ARM64_CPUS says how many processors it has (2), PROBING_ARM64_LIMIT after how many seconds it is ended (2400).
# PROBING_ARM64_CLOCK=instructions: its clock counts instructions, a billion a second for all processors together, so that
# times can be judged in there whatever else this machine does. The processors then take turns on one core of this machine.
set -eu
cd "$(dirname "$0")/.."
machine=$PWD/build/arm64
release=bookworm
packages=python3,python3-venv,python3-pytest,python3-pytest-timeout,python3-pytest-xdist,kmod,procps,iproute2,gcc,libc6-dev,libcmocka-dev
packages=$packages,libpython3-dev,musl-tools,libjemalloc2,libtcmalloc-minimal4,python3-greenlet,python3-gevent,python3-uvloop

fail() {
    echo "arm64: $*" >&2
    exit 1
}

# No mirror's host name is written here: Debian's mirror is that of apt, else debootstrap's default.
mirror() {
    . /etc/os-release
    [ "$ID" = debian ] || return 0
    apt-get indextargets --format '$(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "main" && $2 !~ /security/ { print $2; exit }'
}

# Packages are unpacked, not installed: none of their programs runs here, and the machine needs nothing of their scripts
# beyond the few lines below.
make_root() {
    rm -rf "$machine/root"
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    [ -z "${http_proxy:-}" ] || export http_proxy
    debootstrap --arch=arm64 --foreign --variant=minbase --include="$packages" $release "$machine/root" $(mirror) || return 1
    for package in "$machine/root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar x -C "$machine/root" --keep-directory-symlink || return 1
    done
    (
        cd "$machine/root"
        rm -rf var/cache/apt/archives/*.deb debootstrap usr/share/doc usr/share/locale usr/share/man
        rm -rf proc # a link to this machine's, made by debootstrap
        mkdir -p proc sys dev tmp share
        ln -sf mawk usr/bin/awk
        ln -sf gcc usr/bin/cc
        printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >etc/passwd
        printf 'root:x:0:\nnogroup:x:65534:\n' >etc/group
        echo 127.0.0.1 localhost arm64 >etc/hosts
    )
}

# This machine's apt with a private configuration: another architecture, its own lists, nothing of this machine changed.
private_apt() {
    apt=$machine/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts"
    uri=$(mirror)
    [ -n "$uri" ] || uri=$(sed -n 's/^default_mirror "\(.*\)"$/\1/p' /usr/share/debootstrap/scripts/sid | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $release main" >"$apt/sources.list"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/parts";
END
    export APT_CONFIG="$apt/apt.conf"
}

make_kernel() (
    private_apt
    apt-get update -q || return 1
    name=$(apt-cache depends linux-image-arm64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    cd "$apt"
    rm -f ./*.deb
    apt-get download "$name" || return 1
    rm -rf kernel
    dpkg-deb -x ./*.deb kernel || return 1
    cp kernel/boot/vmlinuz-* "$machine/vmlinuz"
    version=$(basename kernel/lib/modules/*)
    # The machine loads a few of three thousand modules: the others would only slow down every boot.
    to=$machine/root/usr/lib/modules/$version
    mkdir -p "$to"
    cp kernel/lib/modules/"$version"/modules.* "$to/"
    for part in drivers/virtio fs/9p fs/netfs fs/fscache net/9p; do
        (cd kernel/lib/modules/"$version" && [ ! -d "kernel/$part" ] || cp -r --parents "kernel/$part" "$to/")
    done
    depmod -b "$machine/root" "$version"
    rm -rf kernel ./*.deb
)

# The machine's init: mounts, runs the job, powers off.
write_init() {
    cat >"$machine/root/init" <<'END'
#!/bin/sh
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /run /src
mount -t tmpfs -o size=2g shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs -o size=3g tmp /tmp
ln -sf /proc/self/fd /dev/fd
modprobe -a virtio_pci 9pnet_virtio 9p
ip link set lo up 2>/dev/null || python3 -c '
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack("16sH22x", b"lo", 1))' # up
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share /share || poweroff -f
if [ -e /share/tree.tar ]; then tar x -C /src -f /share/tree.tar; fi
cd /src
export OUT=/share/out
set -- $(cat /share/arguments)
sh /share/job "$@" >/share/printed 2>&1 </dev/null
echo $? >/share/status
sync
echo o >/proc/sysrq-trigger
sleep 60
END
    chmod 755 "$machine/root/init"
}

machine_is_ready() {
    [ "$(cat "$machine/ready" 2>/dev/null)" = "$packages" ]
}

make_machine() {
    ! machine_is_ready || return 0
    [ "$(id -u)" = 0 ] || fail "only root can make build/arm64. Run: sudo scripts/arm64.sh make"
    scripts/setup.sh arm64
    mkdir -p "$machine"
    exec 9>"$machine/lock"
    flock 9
    ! machine_is_ready || return 0
    echo "arm64: making build/arm64 (two minutes)"
    rm -f "$machine/root.cpio"
    for step in make_root make_kernel; do
        $step >"$machine/$step.log" 2>&1 || { tail -n 5 "$machine/$step.log" >&2 && fail "$step failed"; }
    done
    echo "$packages" >"$machine/ready"
    exec 9>&-
}

# Unit tests are built separately: cmocka is the machine's, which needs a newer glibc than the programs do.
build_parts() {
    make_machine
    scripts/setup.sh arm64
    mkdir -p "$machine/cmocka"
    (cd "$machine/root" && cp -L usr/include/cmocka*.h usr/lib/aarch64-linux-gnu/libcmocka.so ../cmocka/)
    scripts/build.sh aarch64 all
    scripts/build.sh aarch64-tests unit-tests
    rm -rf build/aarch64/kit
    build/venv/bin/python tests/integration/inject_kit.py build/aarch64/kit aarch64
    build/venv/bin/python tests/integration/builds.py "$machine/builds" aarch64
}

# The root is the initramfs, since the kernel has its disk drivers in modules.
pack_root() {
    [ -e "$machine/root.cpio" ] && [ "$machine/root.cpio" -nt scripts/arm64.sh ] && return
    write_init
    (cd "$machine/root" && find . | cpio -o -H newc --quiet >../root.cpio.part)
    mv "$machine/root.cpio.part" "$machine/root.cpio"
}

# The project's files and the build, copied: 9p would show a replaced file with its old contents.
pack_tree() {
    built=
    for part in build/aarch64/bin build/aarch64/lib build/aarch64/kit build/aarch64/*.a build/aarch64-tests/unit \
        build/aarch64-tests/bin/probing-sql-escape build/arm64/builds dist/*aarch64*; do
        [ ! -e $part ] || built="$built $part"
    done
    git ls-files -co --exclude-standard >"$machine/files"
    tar c --dereference --transform 's,^build/aarch64\(-tests\)\?/,build/release/,' --transform 's,^build/arm64/builds,build/builds,' \
        -f "$machine/share/tree.tar" -T "$machine/files" $built
}

emulator_options() {
    case ${PROBING_ARM64_CLOCK:-host} in
    host) echo -accel tcg,thread=multi ;;
    instructions) echo -accel tcg,thread=single -icount shift=0,sleep=off ;;
    *) fail "PROBING_ARM64_CLOCK is host or instructions" ;;
    esac
}

run_job() {
    job=$1
    shift
    [ -f "$job" ] || fail "script not found: $job"
    emulation=$(emulator_options)
    make_machine
    exec 9>"$machine/lock"
    flock -n 9 || fail "the machine runs already"
    pack_root
    rm -rf "$machine/share"
    mkdir -p "$machine/share/out"
    cp "$job" "$machine/share/job"
    echo "$*" >"$machine/share/arguments"
    : >"$machine/share/printed"
    pack_tree
    tail -n +1 -f "$machine/share/printed" &
    shown=$!
    timeout "${PROBING_ARM64_LIMIT:-2400}" qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on $emulation \
        -smp "${PROBING_ARM64_CPUS:-2}" -m 6G -nographic -no-reboot -nic none -kernel "$machine/vmlinuz" \
        -initrd "$machine/root.cpio" -append 'console=ttyAMA0 rdinit=/init quiet panic=-1' \
        -fsdev "local,id=s,path=$machine/share,security_model=none" \
        -device virtio-9p-pci,fsdev=s,mount_tag=share >"$machine/console" 2>&1 </dev/null || true
    sleep 1 # for the last lines
    kill $shown 2>/dev/null || true
    wait $shown 2>/dev/null || true
    if [ ! -e "$machine/share/status" ]; then
        tail -n 20 "$machine/console" >&2
        fail "timed out, or the machine ended before the job did"
    fi
    exit "$(cat "$machine/share/status")"
}

case ${1:-} in
make) make_machine ;;
build) build_parts ;;
run)
    [ $# -ge 2 ] || fail "usage: scripts/arm64.sh make | build | run SCRIPT [ARGUMENT...]"
    shift
    run_job "$@"
    ;;
*) fail "usage: scripts/arm64.sh make | build | run SCRIPT [ARGUMENT...]" ;;
esac
