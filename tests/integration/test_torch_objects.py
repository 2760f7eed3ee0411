"""python.modules, python.tensors and python.optimizers of a real training, against what the program itself counts."""
import json
import subprocess
import sys

import jobs
import pytest
from jobs import probe

PROGRAM = """
import gc, json, sys, time
import torch, torch.nn as nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2, bias=False))
        self.register_buffer("table", torch.zeros(5, dtype=torch.float64))
        self.b[1].weight.requires_grad_(False)
    def forward(self, x):
        return self.b(self.a(x)) + self.table.sum()
    def __getattr__(self, name):
        assert name != "not_for_us"
        return super().__getattr__(name)
class Trainer:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.a.parameters(), lr=0.25, momentum=0.5)
def train(trainer, kept):
    trainer.net(torch.ones(3, 4)).sum().backward()
    norm = sum(float((p.grad.double() ** 2).sum()) for p in trainer.net.a.parameters()) ** 0.5
    trainer.optimizer.step()
    mode = torch.overrides.TorchFunctionMode
    class Mine(mode):  # nothing of ours may pass through it
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))
    seen = []
    gc.freeze()
    with Mine():
        seen.clear()
        print(json.dumps([norm, id(trainer.net), kept[0].untyped_storage().data_ptr()]), flush=True)
        seen.clear()
        while "end" not in open(sys.argv[1]).read():
            time.sleep(0.01)
        assert not seen, seen
def main():
    many = [[i] for i in range(200000)]
    train(Trainer(), [torch.ones(3, 7) for _ in range(4)] + [torch.zeros(2, 2, dtype=torch.int32)])
    print("same", flush=True)
main()
"""


@pytest.fixture(scope="module", autouse=True)
def torch():
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("torch is not installed")


def query(job, sql):
    done = probe(job.pid, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_modules_tensors_and_optimizers_are_those_of_the_program(tmp_path):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(PROGRAM)
    word.write_text("")
    with jobs.start(sys.executable, script, word, ready="]\n", ready_seconds=90) as job:
        norm, address, storage = json.loads(job.output)
        assert query(job, "SELECT count(*) AS n FROM python.modules") == [{"n": 0}], "there is no agent to ask"
        assert probe(job.pid, "inject").returncode == 0
        rows = {row["name"]: row for row in query(job, "SELECT * FROM Python.Modules")}
        assert set(rows) == {"Net", "a", "b", "b.0", "b.1"}
        net, a, b1 = rows["Net"], rows["a"], rows["b.1"]
        assert (net["class"], net["model"], net["variable"], net["address"], net["total_parameters"], net["bytes"], net["dtype"]) == (
            "Net", "Net", "train.trainer", address, 56, 40, "float64")
        assert (a["class"], a["parameters"], a["bytes"], a["trainable"], a["device"], a["dtype"], a["training"], a["grad_norm"]) == (
            "Linear", 40, 160, 40, "cpu", "float32", True, a["grad_norm"])
        assert (b1["parameters"], b1["trainable"]) == (16, 0)
        found = query(job, "SELECT grad_norm FROM python.modules WHERE name = 'a'")[0]["grad_norm"]
        assert abs(found - norm) < 1e-6 * norm
        kept = query(job, "SELECT shape, dtype, bytes, storage FROM python.tensors WHERE variable = 'train.kept' ORDER BY bytes, storage")
        assert [(row["shape"], row["dtype"], row["bytes"]) for row in kept] == [("2x2", "int32", 16)] + 4 * [("3x7", "float32", 84)]
        assert storage in [row["storage"] for row in kept]
        assert query(job, "SELECT count(*) AS n, sum(bytes) AS bytes FROM python.tensors WHERE class = 'Parameter'") == [{"n": 3, "bytes": 224}]
        row, = query(job, "SELECT * EXCLUDE (address) FROM python.optimizers")
        assert row == {"name": "train.trainer", "class": "SGD", "groups": 1, "parameters": 40, "bytes": 160, "state_bytes": 160, "lr": 0.25, "weight_decay": 0.0,
                       "momentum": 0.5, "device": "cpu", "dtype": "float32", "grad_norm": row["grad_norm"]}
        word.write_text("end")
        jobs.wait_until(lambda: not job.alive(), 30, "its end")
        assert job.output.endswith("]\nsame\n"), job.output
