"""Trainings whose parameters are sharded over ranks, by FSDP2 and by tensor parallelism: their collectives, counted
against torch.profiler, and their modules. No operation of ours is seen by a mode of the program."""
import sys

import jobs
import pytest
from jobs import probe
from jobs import rows as query

PROGRAM = """
import json, os, subprocess, sys, time
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import profile, ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
torch.set_num_threads(1)
word, store, how, rank = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
other = subprocess.Popen([sys.executable, __file__, word, store, how, "1"], stdout=subprocess.DEVNULL) if rank == 0 else None
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 64)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

torch.manual_seed(0)
net = Net()
if how == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for part in (net.a, net.b, net):
        fully_shard(part, mesh=mesh)
else:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    parallelize_module(net, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

class Operations(TorchDispatchMode):
    names = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))

def train(steps):
    for _ in range(steps):
        net(torch.randn(8, 64)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()

def operations():
    Operations.names = []
    with Operations():
        train(1)
    return list(Operations.names)

def wait_for(text):
    while text not in open(word).read():
        time.sleep(0.005)
    dist.barrier()

train(3)
before = operations()
print("ready", flush=True)
wait_for("go")
with profile(activities=[ProfilerActivity.CPU]) as p:
    train(6)
print("counted", json.dumps({e.key: e.count for e in p.key_averages() if e.key.startswith("c10d::")}), flush=True)
wait_for("same")
seen = [operations() for _ in range(20)]
print("same", all(each == before for each in seen), len(before), flush=True)
wait_for("run")
while "end" not in open(word).read():
    train(1)
    time.sleep(0.01)
    dist.barrier()
os._exit(0)
"""


pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.mark.parametrize("how", ["fsdp", "tensor"])
def test_collectives_modules_and_norms_of_what_is_sharded(tmp_path, how):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(PROGRAM)
    word.write_text("")

    def say(text, answer):
        word.write_text(word.read_text() + text + " ")
        jobs.wait_until(lambda: f"\n{answer}" in job.output or not job.alive(), 60, answer)
        assert job.alive(), job.output
    with jobs.start(sys.executable, script, word, tmp_path / "store", how, "0", ready="ready\n",
                    ready_seconds=90) as job:
        assert probe(job.pid, "config", "probing.torch.profiling=on,exprs=grad_norm",
                     "probing.torch.budget=off").returncode == 0
        jobs.wait_until(lambda: "collectives" in probe(job.pid, "probes").stdout, 30, "the probe")
        say("go", "counted")
        counted = eval(job.output.split("counted ")[1].splitlines()[0])
        rows = query(job, "SELECT * FROM python.comm_collective WHERE op <> 'barrier'")
        assert len(rows) == sum(n for name, n in counted.items() if "barrier" not in name) and rows
        assert all(row["duration_ms"] > 0 and row["group_size"] == 2 and row["bytes"] > 0 and row["seq"] is not None
                   and "job.py:" in row["location"] for row in rows)
        assert {row["op"] for row in rows} == ({"allgather_base", "reduce_scatter_base"} if how == "fsdp" else
                                               {"allreduce"})
        found = {row["name"]: row for row in query(
            job, "SELECT name, class, parameters, local_parameters, total_parameters FROM python.modules")}
        whole = 64 * 128 + 128
        assert (found["Net"]["class"], found["Net"]["total_parameters"]) == ("Net", whole + 128 * 64 + 64)
        assert (found["a"]["class"], found["a"]["parameters"], found["a"]["local_parameters"]) == (
            "Linear", whole, whole // 2)
        traced = query(job, "SELECT DISTINCT module, module_type FROM python.torch_trace WHERE stage = 'forward'")
        assert {(row["module"], row["module_type"]) for row in traced} == {
            ("Net", "Net"), ("a", "Linear"), ("b", "Linear")}
        say("same", "same")
        assert "same True" in job.output, "a mode of the program sees operations of ours"
        notes = query(job, "SELECT DISTINCT name, note FROM python.variables WHERE name LIKE 'grad_norm%'")
        assert {row["name"] for row in notes} == {"grad_norm", "grad_norm_local"}
        assert any("sharded" in (row["note"] or "") for row in notes)
        word.write_text(word.read_text() + "run end ")
