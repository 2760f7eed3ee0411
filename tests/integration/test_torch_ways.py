"""The torch probe beside what trainings do: autocast, activation checkpointing, FSDP, schedulers; ranks that are
profiled together, and one that dies."""
import json
import os
import re
import signal
import socket
import sys
import time
from contextlib import ExitStack

import jobs
import pytest
from jobs import probe
from jobs import rows as query

WAYS = """
import sys, os
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Block(nn.Module):
    def __init__(self, saves):
        super().__init__()
        self.linear, self.drop, self.saves = nn.Linear(16, 16), nn.Dropout(0.1), saves
    def inner(self, x):
        return self.drop(self.linear(x)).tanh()
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.saves else self.inner(x)
def train(way, steps=20):
    torch.manual_seed(0)
    net = nn.Sequential(*[Block(way == "checkpoint") for _ in range(3)])
    if way == "fsdp":
        mesh = init_device_mesh("cpu", (1,))
        for block in net:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
            loss = (net(torch.randn(4, 16)).float() - 0.5).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); plan.step()
        losses.append(loss.item().hex())
    return losses
train(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(*train(sys.argv[1]), flush=True)
"""

RANKS = """
import sys, time
import torch, torch.nn as nn, torch.distributed as dist
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer, step = torch.optim.SGD(net.parameters(), lr=0.01), 0
print("ready", flush=True)
while True:
    step += 1
    with torch.profiler.record_function("number %d" % step):
        try:
            net(torch.ones(4, 8)).sum().backward()
        except RuntimeError:
            print("alone", flush=True)
            net = net.module
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("way", ["autocast", "checkpoint", "fsdp"])
def test_it_computes_the_same_bit_for_bit(way, tmp_path):
    script = tmp_path / "ways.py"
    script.write_text(WAYS)
    asks, told = os.pipe()
    with os.fdopen(asks) as asks, os.fdopen(told,
                                            "w") as told, jobs.start(sys.executable, script, way, ready="ready",
                                                                     ready_seconds=90, piped=asks) as job:
        def losses():
            seen = job.output.count("\n")
            told.write("again\n")
            told.flush()
            jobs.wait_until(lambda: job.output.count("\n") > seen or not job.alive(), 60, "the losses")
            return job.output.splitlines()[-1].split()

        bare = losses()
        assert len(set(bare)) == 20
        assert probe(job.pid, "probes", "start", "torch", "budget=off").returncode == 0
        jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 30, "the probe")
        assert losses() == bare
        steps = query(job.pid, "SELECT count(*) AS n, count(DISTINCT optimizer_ms > 0) AS stepped FROM "
                               "python.torch_step")[0]
        assert steps["n"] in (19, 20) and steps["stepped"] == 1, "a scheduler makes no step"
        calls = query(job.pid, "SELECT count(*) AS n FROM python.torch_trace WHERE stage = 'forward' AND module "
                               "LIKE '%linear'")[0]["n"]
        assert calls >= 50, "modules are seen, also those that a checkpoint runs again"
        assert probe(job.pid, "detach").returncode == 0
        assert losses() == bare and job.alive()


@pytest.fixture
def ranks(tmp_path):
    script = tmp_path / f"ranks{os.getpid()}.py"
    script.write_text(RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        found = [stack.enter_context(jobs.start(sys.executable, script, port, rank,
                                                env={"RANK": str(rank), "WORLD_SIZE": "2"})) for rank in range(2)]
        for job in found:
            jobs.wait_until(lambda: "ready" in job.output or not job.alive(), 90, "the rank")
            assert job.alive(), job.output
            assert probe(job.pid, "config", "probing.torch.profiling=on").returncode == 0
            jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 30, "the probe")
        yield script.name, found


def test_all_ranks_are_profiled_in_the_same_steps_and_one_outlives_the_other(ranks, tmp_path):
    name, (first, second) = ranks
    done = probe("-t", name, "--all", "torch", "profile", "--steps", "3", "-o", tmp_path / "trace.json")
    assert done.returncode == 0, done.stderr
    steps = [sorted({event["name"] for event in json.loads(path.read_text())["traceEvents"]
                     if re.fullmatch(r"number \d+", event.get("name", ""))})
             for path in sorted(tmp_path.glob("trace*.json"))]
    assert len(steps) == 2 and steps[0] == steps[1] and len(steps[0]) in (3, 4), steps
    both = probe("-t", name, "--all", "torch")
    tables = both.stdout.split("\n\n")
    assert both.returncode == 0, both.stdout + both.stderr
    assert len(tables) == 5, "there is no alert" + both.stdout + both.stderr
    assert all(text.startswith("rank ") for text in tables), both.stdout + both.stderr
    assert "waits for other ranks" in tables[2] and "forward" in tables[3] and "allreduce" in tables[4], both.stdout
    collectives = "SELECT count(*) AS n FROM python.comm_collective WHERE op = 'allreduce'"
    before = query(second.pid, collectives)[0]["n"]
    time.sleep(1)  # what was recorded in the last 150 ms may not be in the copy that outlives the process
    os.kill(second.pid, signal.SIGKILL)
    second.process.wait()
    jobs.wait_until(lambda: "alone" in first.output or not first.alive(), 60, "the end of the other rank")
    count = lambda: query(first.pid, "SELECT count(*) AS n FROM python.torch_step")[0]["n"]
    now = count()
    jobs.wait_until(lambda: count() > now + 3, 60, "steps of the rank that is left")
    assert first.alive() and query(second.pid, collectives)[0]["n"] >= before > 0, "what the dead rank did is there"
