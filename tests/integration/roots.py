"""Processes in another root, as in a container: their own mounts, pid namespace, libc and interpreters.

    with roots.start("sid", "/usr/bin/python3.14", "-c", "...") as target:
        target.pid      # as this machine sees it; it is 1 in there

The roots are made by scripts/root.sh. A test that cannot have one skips and says why.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import jobs
import pytest

TOP = Path(__file__).resolve().parent.parent.parent
ROOTS = TOP / "build/roots"
# What is in each, by the path inside it.
INTERPRETERS = {"bullseye": ["/usr/bin/python3.9"], "sid": ["/usr/bin/python3.14", "/usr/bin/python3.15"]}


class Target:
    """A process in a root. What it prints is in `output`, a file, so that it never blocks on a full pipe."""

    def __init__(self, process, pid, root, log):
        self.process, self.pid, self.root, self.log = process, pid, root, log

    @property
    def output(self):
        return Path(self.log.name).read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    threads = jobs.Job.threads

    def wait_for(self, text, seconds=10):
        """Waits until the process has printed text."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert self.alive(), f"the process ended:\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{self.output}"
            time.sleep(0.01)


def path(name):
    """The root of that name, made now if need be; skips where it cannot be."""
    if os.geteuid() != 0:
        pytest.skip(f"the {name} root needs root rights (debootstrap, chroot)")
    if os.environ.get("PROBING_BUILT") and not (ROOTS / name).exists():
        pytest.skip(f"the {name} root is not made in an emulated machine")
    done = subprocess.run([TOP / "scripts/root.sh", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if done.returncode != 0:
        pytest.skip(f"the {name} root could not be made: {done.stdout.strip()[-300:]}")
    return ROOTS / name


def put(name, source, mode=0o755):
    """Copies a file into the root's /tmp; returns its path in there."""
    inside = f"/tmp/{Path(source).name}"
    to = ROOTS / name / inside[1:]
    shutil.copyfile(source, to)
    to.chmod(mode)
    return inside


def only_child(pid, seconds=10):
    """The pid of the one child of a process: unshare forks the command, which is then 1 in its namespace."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise AssertionError(f"process {pid} started nothing")


def wait_for_exec(pid, root, program, seconds=10):
    """Until the process is the command itself: before that it is unshare, then chroot, still in our root."""
    deadline = time.monotonic() + seconds
    wanted = os.path.realpath(f"{root}{program}")
    while os.readlink(f"/proc/{pid}/exe") != wanted:
        assert time.monotonic() < deadline, f"process {pid} is not {program} yet but {os.readlink(f'/proc/{pid}/exe')}"
        time.sleep(0.005)


@contextmanager
def start(name, program, *arguments, env=None, cwd="/"):
    """Runs a program in the root with its own mount and pid namespace until the block ends; then all of it is killed.

    Process 1 of a namespace takes all others in it along; --kill-child is for the case that we die ourselves."""
    root = path(name)
    with tempfile.NamedTemporaryFile("w+", prefix="probing-root-") as log:
        process = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--mount", f"--mount-proc={root}/proc", "--kill-child", "chroot", root,
             "/usr/bin/env", "-C", cwd, program, *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONUNBUFFERED": "1", "HOME": "/root", **(env or {})})
        pid = process.pid
        try:
            pid = only_child(process.pid)
            wait_for_exec(pid, root, program)
            yield Target(process, pid, root, log)
        finally:
            # unshare waits for its child, so that after this both are gone.
            if process.poll() is None:
                with suppress(ProcessLookupError):  # it may have ended just now
                    os.kill(pid, signal.SIGKILL)
            process.wait()
