"""What is known of torch and of the program's modules is read from their structures: no code of theirs runs, and
nothing of theirs is made."""
import subprocess
import sys
import time

import jobs
import pytest
from jobs import probe, rows
from every_python import evaluate

# A package that looks like torch to us, and notes what is asked of it while it is being imported.
FAKE = """
import ctypes, os, sys, time
asked = []
def __getattr__(name):
    asked.append(name)
    raise AttributeError(name)
class Tensor: pass
def empty(*args, **kwargs):
    asked.append("empty")
ctypes.CDLL(os.path.join(os.path.dirname(__file__), "libtorch_python.so"))
from . import nn
del asked[:]  # the line before
print("importing", flush=True)
sys.stdin.readline()
early = list(asked)
"""
NN = {"nn/__init__.py": "from . import parameter, modules\n", "nn/parameter.py": "class Parameter: pass\n",
      "nn/modules/__init__.py": "from . import module\n",
      "nn/modules/module.py": "class Module:\n    def __call__(self): pass\n"}


@pytest.mark.parametrize("command", [["config", "probing.memory.sampling=on"], ["probes", "start", "torch"]],
                         ids=["memory", "torch"])
def test_torch_is_not_entered_while_it_is_imported(command, tmp_path):
    for name, text in {"__init__.py": FAKE, **NN}.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(["gcc", "-shared", "-x", "c", "-o", tmp_path / "torch/libtorch_python.so", "/dev/null"])
    assert done.returncode == 0
    program = subprocess.Popen([sys.executable, "-c", "import torch\nprint(torch.early, flush=True)\n"
                                                      "import sys; sys.stdin.readline()"], cwd=tmp_path,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
    try:
        assert program.stdout.readline() == "importing\n"
        done = probe(program.pid, *command)
        assert done.returncode == 0, done.stderr
        time.sleep(2.5)  # both look once a second
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "[]\n"
    finally:
        program.communicate("end\n")


def test_no_tensor_is_made_to_learn_where_tensors_have_their_fields():
    code = """
import time, torch
made = []
def counting(name):
    original = getattr(torch, name)
    def function(*args, **kwargs):
        made.append(name)
        return original(*args, **kwargs)
    setattr(torch, name, function)
for name in ("empty", "zeros", "ones", "tensor", "rand"):
    counting(name)
kept, wanted = [], [0]
print("ready", flush=True)
while True:
    while len(kept) < wanted[0]:
        kept.append(torch.full((50, 1000), 1.5))
    time.sleep(0.01)
"""
    with jobs.python(code, ready_seconds=60) as job:
        assert probe(job.pid, "config", "probing.memory.sampling=on,interval=64KB").returncode == 0
        jobs.wait_until(lambda: "one in" in probe(job.pid, "probes").stdout, 20, "the sampling")
        time.sleep(1.5)  # it looks for torch once a second
        evaluate(job, "wanted.append(wanted.pop() + 200)")
        jobs.wait_until(lambda: evaluate(job, "len(kept)").stdout == "200\n", 20, "the tensors")
        found = rows(job, "SELECT sum(allocated_bytes)::BIGINT AS sum, min(bytes) AS least, max(bytes) AS most, "
                          "any_value(device) AS device "
                          "FROM memory_allocations WHERE kind = 'tensor' AND bytes > 100000")[0]
        assert (found["least"], found["most"], found["device"]) == (200000, 200000, "cpu")
        assert 0.7 * 200 * 200000 < found["sum"] < 1.3 * 200 * 200000
        evaluate(job, "made", expect="[]\n")


def test_no_code_of_a_module_or_its_class_runs_to_learn_its_name():
    code = """
import time, torch
from torch import nn
seen = set()
class Meta(type):
    def __getattribute__(cls, name):
        seen.add("class." + name)
        return super().__getattribute__(name)
class Dict(dict):
    def keys(self): seen.add("keys"); return super().keys()
    def items(self): seen.add("items"); return super().items()
    def __iter__(self): seen.add("iter"); return super().__iter__()
    def __getitem__(self, key): seen.add("getitem"); return super().__getitem__(key)
class Inner(nn.Module, metaclass=Meta):
    def __getattribute__(self, name):
        seen.add(name)
        return super().__getattribute__(name)
    def forward(self, x):
        return x
class Outer(Inner):
    def __init__(self):
        super().__init__()
        self.__dict__["_modules"] = Dict()
        dict.__setitem__(self.__dict__["_modules"], "inner", Inner())
    def forward(self, x):
        return self.__dict__["_modules"]["inner"](x)
outer, x = Outer(), torch.ones(2)
for i in range(50):
    outer(x)
usual = set(seen)
print("ready", flush=True)
while True:
    outer(x)
    time.sleep(0.002)
"""
    with jobs.python(code, ready_seconds=60) as job:
        assert probe(job.pid, "probes", "start", "torch").returncode == 0
        name = lambda: {row["module"] for row in rows(job, "SELECT DISTINCT module FROM python.torch_trace")}
        jobs.wait_until(lambda: "python.torch_trace" in probe(job.pid, "tables").stdout and "inner" in name(), 20,
                        "rows of the module")
        evaluate(job, "sorted(seen - usual)", expect="[]\n")


SWAPS = """
import threading, time, torch
torch.set_num_threads(1)
class Steps(torch.optim.SGD):
    def step(self): pass
p = torch.nn.Parameter(torch.zeros(1 << 24))
p.grad = torch.ones(1 << 24)
optimizer = Steps([p], lr=0.0)
def swap():
    while True:
        p.grad.data = torch.ones(1 << 24)  # the memory before it is unmapped
        time.sleep(0.001)
threading.Thread(target=swap, daemon=True).start()
print("ready", flush=True)
while True:
    optimizer.step()
    time.sleep(0.001)
"""


def test_memory_of_a_gradient_that_another_thread_frees_meanwhile():
    with jobs.python(SWAPS, interpreter=sys.executable, ready_seconds=60) as job:
        assert probe(job.pid, "track", "grad_norm").returncode == 0
        steps = lambda: rows(job, "SELECT count(*) AS n, count(grad_norm) AS read, any_value(grad_norm) AS norm FROM "
                                  "training_logs")[0]
        jobs.wait_until(lambda: not job.alive() or "training_logs" in probe(job.pid, "tables").stdout
                        and steps()["n"] >= 200, 60, "200 steps")
        assert job.alive(), job.output
        found = steps()
        assert found["read"] == 0 or found["norm"] == 4096
