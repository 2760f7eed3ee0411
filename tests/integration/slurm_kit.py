"""A real SLURM cluster, with ssh, in namespaces: slurm_nodes.sh has how. Needs root and the packages that setup
brought."""
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import jobs
import pytest

PACKAGES, MPI = jobs.TOP / "build/cluster", jobs.TOP / "build/mpi"
SCRIPT = Path(__file__).with_name("slurm_nodes.sh")

RANK = """
import os, time
rank = int(os.environ.get("SLURM_PROCID") or os.environ["OMPI_COMM_WORLD_RANK"])
def all_reduce():
    time.sleep(3600)
def load_batch():
    time.sleep(3600)
load_batch() if rank == 5 else all_reduce()
"""


def why_not():
    """The reason that there can be no such cluster here; "": there can."""
    if os.geteuid() != 0:
        return "SLURM's nodes are namespaces, which takes root"
    if not list(PACKAGES.glob("slurmd_*.deb")):
        return "scripts/setup.sh brought no packages of SLURM (no Debian, or no network)"
    with tempfile.TemporaryDirectory() as folder:
        script = ('mount -t tmpfs tmpfs "$0" && mkdir "$0"/a "$0"/b && mount -t overlay overlay -o '
                  'lowerdir=/usr,upperdir="$0"/a,workdir="$0"/b /usr')
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "sh", "-c", script, folder],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    return "" if done.returncode == 0 else f"no overlay in a mount namespace here: {done.stderr.strip()}"


class Cluster:
    def __init__(self, folder, process):
        self.folder, self.process = folder, process
        self.script = folder.parent / "train.py"
        self.script.write_text(RANK)

    @property
    def init(self):
        """The pid of its first process, whose namespaces are the cluster's."""
        return int((Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split() or [0])[0])

    def inside(self, *words):
        """A command line that runs in the cluster."""
        return ["nsenter", f"--target={self.init}", "--mount", "--pid", "--net", "--wd=/", *map(str, words)]

    def run(self, *words, timeout=60):
        return subprocess.run(self.inside(*words), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout)

    def probe(self, *words, **options):
        return self.run(jobs.PROGRAM, *words, **options)

    def submit(self, nodes):
        """A job of two ranks a node; its number."""
        done = self.run("sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=2", "--output=/dev/null",
                        f"--wrap=srun {shlex.quote(sys.executable)} {self.script}")
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()

        def all_wait():
            answer = self.probe("cluster", "attach", f"slurm-{job}", "--slurm", job, "--timeout", "20")
            return f"{2 * nodes} of {2 * nodes} ranks" in answer.stdout and \
                "site" not in self.probe("-t", f"cluster:slurm-{job}", "backtrace").stdout
        jobs.wait_until(all_wait, 60, what="the start of the job's ranks")
        return job

    def slurmd(self, node):
        """The pid here of a node's slurmd."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"slurmd") and node.encode() in words and self.is_inside(process.name):
                return int(process.name)
        raise AssertionError(f"there is no slurmd of {node}")

    def ssh(self, node, *words):
        return self.run("ssh", "-F", self.folder / "ssh.conf", node, *words)

    def processes(self, name):
        """The pids here of the cluster's processes whose program has that name."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").rsplit("/", 1)[
                    -1] == name and self.is_inside(process.name):
                    found.append(int(process.name))
            except OSError:
                pass
        return found

    def is_inside(self, pid):
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{self.init}/ns/net")


@contextmanager
def cluster(nodes, folder):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    inside = folder / "inside"
    inside.mkdir()
    with jobs.start("unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", "--propagation",
                    "private",
                    "bash", SCRIPT, inside, nodes, *PACKAGES.glob("*.deb"), *MPI.glob("*.deb"), ready="ready",
                    ready_seconds=60) as process:
        yield Cluster(inside, process)
    shutil.rmtree(inside, ignore_errors=True)
