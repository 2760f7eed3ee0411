"""Nodes for tests of clusters: process trees with their own pids, each with some ranks of a job and a service.

    with cluster_kit.nodes(2, 2) as job:
        probe("cluster", "attach", "name", "--services", job.services, "--token-file", job.token)
"""
import json
import os
import re
import secrets
import shlex
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jobs
import pytest

# Rank 3 is elsewhere; rank 0 goes on, the others stand still.
RANK = """
import os, time
rank = int(os.environ["RANK"])
loss = 0.5 if rank != 1 else float("nan")
def forward(depth):
    time.sleep(0.02)
    if depth < 200:
        forward(depth + 1)
def all_reduce():
    print("ready", rank, flush=True)
    time.sleep(3600)
def load_batch():
    print("ready", rank, flush=True)
    time.sleep(3600)
def train():
    if rank == 0:
        print("ready", rank, flush=True)
        while True:
            forward(0)
    if rank == 3:
        load_batch()
    else:
        all_reduce()
train()
"""


def needs_namespaces():
    if os.geteuid() != 0:
        pytest.skip("nodes have namespaces of their own, which takes root")


class Job:
    def __init__(self, folder, world):
        self.folder, self.world, self.nodes, self.addresses = folder, world, [], []
        self.token = folder / "token"
        self.mark = f"CLUSTER_TEST={secrets.token_hex(8)}"

    @property
    def services(self):
        return ",".join(self.addresses)


def rank_environment(job, rank, local):
    name, value = job.mark.split("=")
    return {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(job.world), name: value}


@contextmanager
def node(job, ranks, serve=True, address="127.0.0.1:0", joined=None):
    """One more node of the job, with these ranks. joined: it has a network of its own, to which this joins it before
    its service starts."""
    needs_namespaces()
    number = len(job.nodes)
    home = job.folder / f"node{number}"
    home.mkdir(mode=0o700)
    script = job.folder / "train.py"
    script.write_text(RANK)
    lines = []
    for local, rank in enumerate(ranks):
        words = " ".join(f"{name}={value}" for name, value in rank_environment(job, rank, local).items())
        lines.append(f"{words} {shlex.quote(sys.executable)} {script} &")
    if serve:
        if joined:
            lines.append(f"until grep -q {address.split(':')[0]} /proc/net/fib_trie; do sleep 0.02; done")
        lines.append(f"{shlex.quote(str(jobs.PROGRAM))} serve --token-file {job.token} {address} &")
    lines.append("wait")
    with jobs.start("unshare", "--pid", *(["--net"] if joined else []), "--fork", "--mount-proc", "--kill-child",
                    "bash", "-c", "\n".join(lines), env={"XDG_RUNTIME_DIR": str(home)}) as process:
        if joined:
            joined(process)
        job.nodes.append(process)
        jobs.wait_until(lambda: process.output.count("ready") == len(ranks)
                        and (not serve or "http://" in process.output), 60,
                        what=f"the start of a node ({process.output})")
        if serve:
            job.addresses.append(re.search(r"http://([^/]+)/", process.output)[1])
        yield process


@contextmanager
def nodes(count, each, folder):
    """A job of count nodes with each ranks; what follows has it attached by nobody yet."""
    job = Job(folder, count * each)
    job.token.write_text(secrets.token_hex(32))
    job.token.chmod(0o600)
    with ExitStack() as stack:
        for i in range(count):
            stack.enter_context(node(job, range(i * each, (i + 1) * each)))
        yield job


def pid_of(job, rank):
    """The pid here of a rank of the job."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environment and job.mark.encode() in environment:
            return int(process.name)
    raise AssertionError(f"there is no rank {rank}")


def attach(name, job, *words, expect=0, services=None):
    done = jobs.probe("cluster", "attach", name, "--services", services or job.services, "--token-file", job.token,
                      "--match", job.mark, *words)
    assert done.returncode == expect, done.stderr
    return done


def ranks_in(ranges):
    """[[0, 2], [5, 5]]: 0, 1, 2, 5."""
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def stacks(name, *words, expect=0):
    """The classes of backtrace --json: (function on top, ranks), the rarest first."""
    done = jobs.probe("-t", f"cluster:{name}", "backtrace", "--json", *words)
    assert done.returncode == expect, done.stderr
    answer = json.loads(done.stdout)
    return [(one["frames"][0]["function"], ranks_in(one["ranks"])) for one in answer["classes"]], answer, done.stderr
