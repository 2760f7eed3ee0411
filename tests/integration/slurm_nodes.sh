#!/bin/bash
# A SLURM cluster for tests, with sshd on every node: slurm_nodes.sh FOLDER NODES PACKAGES...
#
# Runs as pid 1 of its own mount, pid and network namespaces (slurm_kit.py starts it): overlays on /usr, /etc and /var have the
# packages, which are unpacked and never installed, so the machine stays as it was. A node is a pid namespace with a name, a
# runtime folder, a slurmd and an sshd below an init that collects what they leave.
set -e
folder=$1 nodes=$2 runtime=${XDG_RUNTIME_DIR:-/run/runtime}
shift 2

mount -t tmpfs tmpfs "$folder"
mkdir -p "$folder"/scratch/{usr,etc,var} "$folder"/over/{usr,etc,var}
for package in "$@"; do
    dpkg -x "$package" "$folder/over"
done
# What Debian's alternatives would do.
for program in "$folder"/over/usr/bin/*-wlm "$folder"/over/usr/sbin/*-wlm; do
    [ ! -e "$program" ] || ln -sf "$(basename "$program")" "${program%-wlm}"
done
[ ! -e "$folder"/over/usr/bin/orterun ] || ln -sf orterun "$folder/over/usr/bin/mpirun"
for part in usr etc var; do
    mount -t overlay overlay -o "lowerdir=/$part,upperdir=$folder/over/$part,workdir=$folder/scratch/$part" /$part
done
mount -t tmpfs tmpfs /run
python3 - <<'EOF'
import fcntl, socket, struct
link = socket.socket()
fcntl.ioctl(link, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
# A second address, SIOCSIFADDR: where there is none but 127.0.0.1 the resolver finds no address at all (AI_ADDRCONFIG).
fcntl.ioctl(link, 0x8916, struct.pack("16sHH4s8x8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("10.77.0.1")))
EOF
id munge >/dev/null 2>&1 || echo 'munge:x:990:990::/nonexistent:/bin/false' >>/etc/passwd
id sshd >/dev/null 2>&1 || echo 'sshd:x:991:991::/run/sshd:/bin/false' >>/etc/passwd
mkdir -p /etc/munge /var/lib/munge /var/log/munge /run/munge /run/sshd /var/spool/slurm /etc/slurm
dd if=/dev/urandom of=/etc/munge/munge.key bs=128 count=1 status=none
chmod 700 /etc/munge /var/lib/munge /var/log/munge
chmod 755 /run/munge
chmod 400 /etc/munge/munge.key
chown -R root /etc/munge /var/lib/munge /var/log/munge /run/munge
munged --force

cat >/etc/slurm/slurm.conf <<EOF
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurm
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=300
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
EOF
for i in $(seq 1 "$nodes"); do
    echo "NodeName=n$i NodeAddr=127.0.0.1 Port=$((17900 + i)) CPUs=2" >>/etc/slurm/slurm.conf
done
echo "PartitionName=all Nodes=n[1-$nodes] Default=YES State=UP OverSubscribe=YES" >>/etc/slurm/slurm.conf

ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
cp "$folder/key.pub" "$folder/allowed"
cat >"$folder/sshd.conf" <<EOF
HostKey $folder/host
AuthorizedKeysFile $folder/allowed
StrictModes no
UsePAM no
SetEnv XDG_RUNTIME_DIR=$runtime
EOF
cat >"$folder/ssh.conf" <<EOF
Host *
    HostName 127.0.0.1
    User root
    IdentityFile $folder/key
    UserKnownHostsFile $folder/known
    StrictHostKeyChecking accept-new
    LogLevel ERROR
EOF
slurmctld
for i in $(seq 1 "$nodes"); do
    mkdir -p "/var/spool/slurm/n$i"
    printf 'Host n%s\n    Port %s\n' "$i" $((2200 + i)) >>"$folder/ssh.conf"
    unshare --pid --uts --fork --mount-proc --kill-child bash -c \
        "hostname n$i; mkdir -p '$runtime'; mount -t tmpfs -o mode=0700 tmpfs '$runtime'; /usr/sbin/slurmd -D -N n$i -L /var/spool/slurm/n$i.log & /usr/sbin/sshd -D -f $folder/sshd.conf -p $((2200 + i)) & wait" &
done
until sinfo --noheader --format=%T 2>/dev/null | grep -qx idle; do
    sleep 0.05
done
echo ready
wait
