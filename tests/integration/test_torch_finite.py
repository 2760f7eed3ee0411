"""What is read of the first loss that is not finite: the cause, and nothing that the program could see or compute."""
import json
import sys

import jobs
import pytest

pytest.importorskip("torch")
PROGRAM = """
import json, sys, time, torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
seen = {"functions": 0, "unpacked": 0, "computed": 0}
class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen["functions"] += 1
        return function(*args, **(kwargs or {}))
class Own(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, gradient): return gradient
def unpack(x):
    seen["unpacked"] += 1
    return x
def part(x):
    seen["computed"] += 1
    return x * weight / divisor
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.0)
divisor = torch.ones(4)
def train(how, step):
    divisor.fill_(0.0 if step >= 6 else 1.0)
    optimizer.zero_grad()
    if how == "hooks":
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack): loss = part(torch.ones(4)).sum()
    elif how == "checkpoint":
        loss = checkpoint(part, torch.ones(4), use_reentrant=False).sum()
    elif how == "own":
        loss = Own.apply(part(torch.ones(4))).sum()
    else:
        loss = part(torch.ones(4)).sum()
    with Mode(): loss.backward()
    optimizer.step()
how = sys.argv[1]
train(how, 0)
print("ready", flush=True)
for step in range(10): train(how, step)
print("END", json.dumps(seen), flush=True)
time.sleep(100)
"""
CAUSES = {"plain": "division", "hooks": "unknown", "checkpoint": "unknown", "own": "unknown"}


def counted(tmp_path, how, probed):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    flags = [jobs.PROGRAM, "launch", "--"] if probed else []
    env = {"PROBING_TORCH_PROFILING": "on" if probed else "", "PYTHONPATH": str(jobs.TOP / "python")}
    with jobs.start(*flags, sys.executable, script, how, ready="END", ready_seconds=100, env=env) as job:
        found = json.loads(job.output.split("END ", 1)[1].splitlines()[0])
        sql = "SELECT loss_cause FROM python.torch_step WHERE loss_cause IS NOT NULL"
        return found, [row["loss_cause"] for row in (jobs.rows(job, sql) if probed else [])]


@pytest.mark.parametrize("how", CAUSES)
def test_the_graph_is_read_unseen(tmp_path, how):
    bare, _ = counted(tmp_path, how, False)
    probed, causes = counted(tmp_path, how, True)
    assert probed == bare and causes == [CAUSES[how]]


BATCHES = """
import time, torch
model = torch.nn.Linear(100, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
def train(batch):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
small, large = torch.ones(8, 100), torch.ones(400, 100)
bad = small.clone()
bad[3, 50] = float("inf")
train(small)
print("ready", flush=True)
for batch in [small, large, small.t().contiguous().t(), bad, small]: train(batch)
print("END", flush=True)
time.sleep(100)
"""


def test_a_batch_is_finite_only_if_all_of_it_was_read():
    env = {"PROBING_TORCH_PROFILING": "on", "PYTHONPATH": str(jobs.TOP / "python")}
    with jobs.python(BATCHES, interpreter=jobs.PROGRAM, flags=["launch", "--", sys.executable], ready="END",
                     ready_seconds=100, env=env) as job:
        found = jobs.rows(job, "SELECT batch_finite FROM python.torch_step ORDER BY timestamp DESC LIMIT 5")
    assert [row["batch_finite"] for row in found][::-1] == [True, None, None, False, True]
