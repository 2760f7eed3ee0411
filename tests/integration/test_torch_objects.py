"""python.modules, python.tensors and python.optimizers of a real training, against what the program itself counts."""
import json
import subprocess
import sys

import jobs
import pytest
from jobs import PROGRAM as PROGRAM_PATH, probe

PROGRAM = """
import gc, json, sys, time
import torch, torch.nn as nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Mine(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **keywords):
        if armed:
            raise SystemExit("code of the program was called")
        return super().__torch_function__(*args, **keywords)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2, bias=False))
        self.register_buffer("table", torch.zeros(5, dtype=torch.float64))
        self.b[1].weight.requires_grad_(False)
        self.a.register_forward_hook(lambda *given: None)
    def forward(self, x):
        return self.b(self.a(x)) + self.table.sum()
    def __getattribute__(self, name):
        assert not armed, name
        return super().__getattribute__(name)
armed = False
def main():
    global armed
    net = Net()
    optimizer = torch.optim.SGD(net.a.parameters(), lr=0.25, momentum=0.5)
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    first = torch.ones(3, 7)
    kept = [first, torch.zeros(2, 2, dtype=torch.int32), first[0], torch.tensor(1.0), torch.ones(2).as_subclass(Mine)]
    gc.freeze()
    armed = True
    print(json.dumps([id(net), list(map(id, kept))]), flush=True)
    while "end" not in open(sys.argv[1]).read():
        time.sleep(0.01)
    armed = False
    print("same", flush=True)
main()
"""

LOOP = """
import os, sys, time
import torch
many = [[i] for i in range(1000000)]
kept = [torch.ones(3) for _ in range(3)]
print("ready", flush=True)
longest, before, said = 0, time.perf_counter(), None
while True:
    now = time.perf_counter()
    longest, before = max(longest, now - before), now
    word = open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else ""
    if word != said:
        print("" if word == "begin" else "%.1f" % (longest * 1000), flush=True)
        longest, said = 0, word
"""


pytestmark = pytest.mark.usefixtures("needs_torch")


def query(job, sql):
    done = probe(job.pid, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_modules_tensors_and_optimizers_are_those_of_the_program(tmp_path):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(PROGRAM)
    word.write_text("")
    with jobs.start(sys.executable, script, word, ready="]\n", ready_seconds=90) as job:
        address, kept = json.loads(job.output)
        assert query(job, "SELECT count(*) AS n FROM python.modules") == [{"n": 0}], "there is no agent to ask"
        assert probe(job.pid, "inject").returncode == 0
        rows = {row["name"]: row for row in query(job, "SELECT * FROM Python.Modules")}
        assert set(rows) == {"Net", "a", "b", "b.0", "b.1"}
        net, a, b1 = rows["Net"], rows["a"], rows["b.1"]
        assert (net["class"], net["model"], net["address"], net["parameters"], net["total_parameters"], net["bytes"],
                net["dtype"]) == (
            "Net", "Net", address, 0, 56, 40, "float64")
        assert (a["class"], a["parameters"], a["bytes"], a["trainable"], a["device"], a["dtype"], a["training"],
                a["hooks"]) == (
            "Linear", 40, 160, 40, "cpu", "float32", True, 1)
        assert (b1["parameters"], b1["trainable"]) == (16, 0)
        named = query(job, "SELECT name, model, shape, dtype, bytes, requires_grad FROM python.tensors WHERE name IS "
                           "NOT NULL ORDER BY name")
        assert [tuple(row.values()) for row in named] == [
            ("a.bias", "Net", "8", "float32", 32, True), ("a.weight", "Net", "8x4", "float32", 128, True),
            ("b.1.weight", "Net", "2x8", "float32", 64, False), ("table", "Net", "5", "float64", 40, False)]
        found = {row["address"]: row for row in query(job, "SELECT * FROM python.tensors")}
        assert [(found[each]["shape"], found[each]["dtype"], found[each]["bytes"], found[each]["is_view"],
                 found[each]["class"]) for each in kept] == [
            ("3x7", "float32", 84, False, "Tensor"), ("2x2", "int32", 16, False, "Tensor"),
                     ("7", "float32", 28, True, "Tensor"), ("scalar", "float32", 4, False, "Tensor"),
            (None, None, None, None, "Mine")]
        row, = query(job, "SELECT * EXCLUDE (address) FROM python.optimizers")
        assert row == {"name": "SGD", "class": "SGD", "groups": 1, "parameters": 40, "bytes": 160, "state_bytes": 160,
                       "lr": 0.25, "weight_decay": 0.0, "momentum": 0.5, "device": "cpu", "dtype": "float32"}
        shown = subprocess.run([PROGRAM_PATH, "-t", str(
            job.pid), "repl"], input="modules()\n[(t.bytes, t.shape, t.get() is not None) for t in tensors()][0]\n",
                               capture_output=True, text=True, timeout=60).stdout
        assert "Net   56          4      True" in shown and "(160," not in shown and ", True)" in shown, shown
        word.write_text("end")
        jobs.wait_until(lambda: not job.alive(), 30, "its end")
        assert job.output.endswith("]\nsame\n"), job.output


def test_a_loop_with_a_million_objects_goes_on_while_they_are_looked_at(tmp_path):
    """The longest pause is printed by the program itself; judged by the clock, so the best of three."""
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(LOOP)
    with jobs.start(sys.executable, script, word, ready="ready", ready_seconds=90) as job:
        assert probe(job.pid, "inject").returncode == 0
        query(job, "SELECT count(*) FROM python.modules")  # the Python part is compiled at its first use

        @jobs.three_tries
        def longest():
            word.write_text("begin")
            assert query(job, "SELECT count(*) AS n FROM python.tensors")[0]["n"] >= 3
            before = job.output
            word.write_text("end")
            jobs.wait_until(lambda: len(job.output.splitlines()) > len(before.splitlines()), 20, "the longest pause")
            if float(job.output.splitlines()[-1]) > 50:
                raise jobs.Late("no turn of the loop for %s ms" % job.output.splitlines()[-1])

        longest()


NORMS = """
import json, sys, time
import torch, torch.nn as nn
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
x = torch.ones(3, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0)
losses, said = set(), 0
while "end" not in open(sys.argv[1]).read():
    optimizer.zero_grad()
    loss = net(x).square().sum()
    loss.backward()
    optimizer.step()
    losses.add(loss.item())
    if not said:
        said = print(json.dumps({name: [p.grad.norm().item(), id(p)] for name, p in net.named_parameters()}), flush=True) or 1
    time.sleep(0.002)
print(len(losses), flush=True)
"""


def test_norms_of_gradients_are_taken_by_the_thread_that_steps(tmp_path):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(NORMS)
    word.write_text("")
    with jobs.start(sys.executable, script, word, ready="}\n", ready_seconds=90) as job:
        told = json.loads(job.output)
        assert probe(job.pid, "inject").returncode == 0
        assert query(job, "SELECT count(grad_norm) AS n FROM python.tensors") == [{"n": 0}]
        assert query(job, "SELECT count(*) AS n FROM probing.log WHERE message LIKE "
                          "'grad_norm%must be on'") == [{"n": 1}]
        assert probe(job.pid, "config", "probing.torch.profiling=on").returncode == 0
        jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 20, "the probe")
        jobs.wait_until(lambda: query(job, "SELECT count(*) AS n FROM python.torch_step")[0]["n"] > 1, 20, "steps")
        for _ in range(3):  # a step comes within 3 s, where the machine does little else
            tensors = {row["name"]: row for row in query(job, "SELECT name, address, grad_norm FROM python.tensors "
                                                              "WHERE name IS NOT NULL")}
            modules = {row["name"]: row["grad_norm"] for row in query(
                job, "SELECT name, Grad_Norm FROM python.modules")}
            if all(row["grad_norm"] for row in tensors.values()) and modules["0"]:
                break
        assert {name: [pytest.approx(row["grad_norm"], rel=1e-5), row["address"]]
                for name, row in tensors.items()} == told
        assert modules == {"Sequential": None,
                           "1": None} | {each: pytest.approx((told[each + ".weight"][0] ** 2
                                                              + told[each + ".bias"][0] ** 2) ** 0.5, rel=1e-5)
                                         for each in "02"}
        assert query(job,
                     "SELECT * FROM python.modules WHERE name = '0'")[0]["address"], (
                         "without the column nothing is waited for")
        word.write_text("end")
        jobs.wait_until(lambda: not job.alive(), 30, "its end")
        assert job.output.endswith("}\n1\n"), job.output
