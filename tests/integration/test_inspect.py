"""inspect: one object of a program, with nothing of the program's run, computed or kept for it."""
import importlib.util
import json

import jobs
import pytest
from jobs import probe

PLAIN = """
import time
class Point:
    __slots__ = ("x", "y")
    def __init__(self): self.x, self.y = 1, "two"
class Loud:
    def __init__(self): self.password = "hunter2"; self.rate = 0.5
    def __getattr__(self, name): print("asked for", name, flush=True); raise AttributeError(name)
    def __repr__(self): print("repr", flush=True); return "loud"
    def __sizeof__(self): print("sizeof", flush=True); return 1
point, loud, words = Point(), Loud(), ["a\\x1b[2J"] * 3
shared = Point()
held = [0, shared]
def work():
    inner, point = {"lr": 0.1}, Loud()
    point.parts = {"place": shared}
    print("ready", flush=True)
    while True: time.sleep(0.01)
work()
"""

TORCH = """
import time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
wide = torch.arange(12000, dtype=torch.float32).reshape(100, 120)[:, ::3].t()
bad = torch.tensor([1.0, float("nan"), float("inf"), -3.0, 0.0])
half, brain, whole = torch.arange(2048).half() / 7, torch.linspace(-2, 2, 999).bfloat16(), torch.arange(-5, 6)
spread, empty, turned = torch.ones(3, 1).expand(3, 1000), torch.empty(0), torch.tensor([3 + 4j, 0j])
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
model[0].register_forward_hook(lambda module, given, result: None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
def train():
    while True:
        loss = model(torch.ones(4, 8)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("ready", flush=True) if "told" not in globals() else None
        globals()["told"] = 1
        time.sleep(0.002)
train()
"""


def inspect(job, text, *options):
    done = probe(job.pid, "inspect", "--json", *options, text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_any_object_is_told_without_code_of_its_class():
    with jobs.python(PLAIN) as job:
        told = inspect(job, "point")
        assert told["type"] == "__main__.Point" and told["references"] == 1
        assert told["fields"] == [{"name": "x", "value": "1"}, {"name": "y", "value": '"two"'}]
        told = inspect(job, "loud")
        assert {"name": "rate", "value": "0.5"} in told["fields"]
        assert "hunter2" not in json.dumps(told)
        assert "own_bytes" not in told
        assert inspect(job, "inner@work")["fields"] == [{"name": '"lr"', "value": "0.1"}]
        told = [row["what"] for row in inspect(job, "shared", "--referrers")["referrers"]]
        assert sorted(told) == ["[1 of 2] of a list: held of the module __main__",
                                "place in a dict: point.parts of work", "shared in a dict of __main__"], told
        shown = probe(job.pid, "inspect", "words").stdout
        assert "\x1b" not in shown and "[2]" in shown
        for wrong, text in (("nosuch", "NameError"), ("x = 1", "no expression"),
                            ("inner@nosuch", "no function nosuch runs now")):
            done = probe(job.pid, "inspect", wrong)
            assert done.returncode == 1 and text in done.stderr
        assert job.output == "ready\n"


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_numbers_of_a_tensor_are_those_that_torch_computes():
    with jobs.python(TORCH, ready_seconds=90) as job:
        for name in ("wide", "half", "brain", "whole"):
            told = inspect(job, name)
            numbers = told["numbers"]
            code = ("x = {0}.double(); print([x.min().item(), x.max().item(), x.mean().item(), "
                    "x.std(correction=0).item(), list({0}.shape)])").format(name)
            least, most, mean, std, shape = json.loads(probe(job.pid, "eval", code).stdout)
            assert [numbers["min"], numbers["max"]] == [least, most] and told["shape"] == shape
            assert numbers["mean"] == pytest.approx(mean, abs=1e-9)
            assert numbers["std"] == pytest.approx(std)
            assert numbers["all"]
            assert sum(numbers["histogram"]) == numbers["elements"] == told["elements"]
        numbers = inspect(job, "bad")["numbers"]
        assert (numbers["nan"], numbers["infinite"], numbers["zero"], numbers["min"],
                numbers["max"]) == (1, 1, 1, -3, 1)
        assert inspect(job, "turned")["numbers"]["max"] == pytest.approx(5)
        assert inspect(job, "spread")["numbers"]["mean"] == 1 and "numbers" not in inspect(job, "empty")
        assert inspect(job, "loss@train")["type"] == "torch.Tensor" and "█" in probe(job.pid, "inspect", "wide").stdout
        told = inspect(job, "model[0]")
        assert told["parameters"] == 72 and told["hooks"][0]["kind"] == "forward_hooks" and "times" not in told
        assert probe(job.pid, "config", "probing.torch.profiling=on").returncode == 0
        jobs.wait_until(lambda: "forward" in [row["stage"] for row in inspect(job, "model[0]").get("times", ())], 30,
                        "times of the module")
