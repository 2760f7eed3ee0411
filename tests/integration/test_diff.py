"""diff: two real trainings compared, of which one has a slower module: running, ended, and in files."""
import json
import os
from contextlib import ExitStack

import jobs
import pytest
from jobs import probe

pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.timeout(300)]

# A module sleeps as long as the environment says: also on a busy machine it is not quicker.
TRAIN = """
import os, time
import torch
from torch import nn
torch.set_num_threads(1)
class Attention(nn.Module):
    def forward(self, x):
        time.sleep(float(os.environ["ATTENTION_S"]))
        return x * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention, self.last = nn.Linear(8, 8), Attention(), nn.Linear(8, 1)
    def forward(self, x): return self.last(self.attention(self.first(x)))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("ready", flush=True)
while not os.path.exists(os.environ["STOP"]):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
while True:
    time.sleep(1)
"""
STEPS = 40


def steps_of(target):
    """Steps whose modules were recorded."""
    return jobs.rows(target, "SELECT count(DISTINCT step) AS n FROM python.torch_trace WHERE stage = 'forward'")[0]["n"]


def train(stack, stop, seconds, **more):
    job = stack.enter_context(jobs.python(TRAIN, env={"ATTENTION_S": str(seconds), "STOP": str(stop), **more}))
    assert probe(job.pid, "inject").returncode == 0
    # Every step has its modules, however busy the machine is.
    assert probe(job.pid, "config", "probing.torch.budget=off").returncode == 0
    assert probe(job.pid, "config", "probing.torch.profiling=on").returncode == 0
    return job


def wait_for_steps(job, stop, n):
    """From then on it makes no more: the tests ask for what stays as it is."""
    jobs.wait_until(lambda: steps_of(job) >= n, 200, what=f"{n} steps")
    stop.touch()


@pytest.fixture(scope="module")
def runs(needs_torch, tmp_path_factory):
    stops = [tmp_path_factory.mktemp("stop") / name for name in "ab"]
    with ExitStack() as stack:
        pair = [train(stack, stop, seconds) for stop, seconds in zip(stops, (0.01, 0.4))]
        for job, stop in zip(pair, stops):
            wait_for_steps(job, stop, STEPS)
        yield pair


def differ(a, b, *words, status=10):
    done = probe("diff", a, b, "--json", *words, timeout=120)
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout)


def check(found):
    """That B is slower, and that its attention is why."""
    assert "B is " in found["says"] and "slower" in found["says"] and "forward of attention takes" in found["says"]
    assert found["step"]["real"] and found["step"]["least"] > 0
    modules = {one["name"]: one["b"] - one["a"] for one in found["differences"] if one["kind"] == "module"}
    assert modules["forward of attention"] == max(modules.values()) > 100


def test_the_slower_module_is_named(runs):
    a, b = runs
    check(differ(a.pid, b.pid))
    text = probe("diff", a.pid, b.pid)
    assert text.returncode == 10 and text.stdout.startswith("B is ") and "forward of attention" in text.stdout
    other = differ(b.pid, a.pid)
    assert "faster" in other["says"] and other["step"]["most"] < 0


def test_two_ranges_of_one_run_and_what_is_not_there(runs):
    a, _ = runs
    # The same steps twice: nothing differs, whatever the machine did meanwhile.
    same = differ(a.pid, a.pid, "--steps-a", "10-29", "--steps-b", "10-29", status=0)
    assert not same["step"]["real"] and not [one for one in same["differences"] if one["unit"] == "ms"]
    for words in (("--steps-a", "9999999-"), ("--steps-b", "-0")):
        done = probe("diff", a.pid, a.pid, *words)
        assert done.returncode == 1 and "recorded steps" in done.stderr and len(done.stderr.splitlines()) == 1
    for words in (("--steps-a", "x"), ("--steps-a", "5-1"), ("--steps-b", "7")):
        assert probe("diff", a.pid, a.pid, *words).returncode == 2
    done = probe("diff", a.pid, "none.probing")
    assert done.returncode == 1 and "none.probing" in done.stderr


def test_the_last_thousand_steps_count(runs, tmp_path):
    """Of a run of more steps, what is said of a module is its mean in the last thousand. It has one rank, and another
    is refused."""
    with ExitStack() as stack:
        job = train(stack, tmp_path / "stop", 0.001, RANK="3")
        wait_for_steps(job, tmp_path / "stop", 1200)
        of_a_step = jobs.rows(job, "SELECT sum(self_ms) AS ms FROM python.torch_trace WHERE stage = 'forward' AND "
                                   "module = 'attention' GROUP BY step ORDER BY step DESC LIMIT 1000")
        differences = differ(job.pid, runs[1].pid, "--rank-a", "3")["differences"]
        found, = [one for one in differences if one["name"] == "forward of attention"]
        assert found["a"] == pytest.approx(sum(row["ms"] for row in of_a_step) / 1000, rel=1e-4)
        done = probe("diff", job.pid, job.pid, "--rank-b", "1")
        assert done.returncode == 1 and f"{job.pid} has no rank 1 " in done.stderr and not done.stdout, done.stderr


def test_settings_that_differ_are_named(runs):
    a, b = runs
    assert probe(a.pid, "config", "probing.retention_days=3").returncode == 0
    settings = {one["name"]: (one["a"], one["b"]) for one in differ(a.pid, b.pid)["settings"]}
    assert settings == {"probing.retention_days": ("3", "7")}


def test_files_of_two_runs_and_a_run_that_has_ended(runs, tmp_path):
    """Last in this file: it ends one of the two."""
    a, b = runs
    files = [tmp_path / f"{name}.probing" for name in "ab"]
    for job, path in zip(runs, files):
        done = probe(job.pid, "bundle", "-o", path, timeout=180)
        assert done.returncode == 0, done.stderr
    check(differ(*files))
    check(differ(a.pid, files[1]))
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    assert probe("diff", *files, env=temporary).returncode == 10
    assert sorted(tmp_path.iterdir()) == files
    ended = [row["id"] for row in json.loads(probe("list", "--json").stdout) if row["pid"] == b.pid][0]
    b.process.kill()
    b.process.wait()
    check(differ(a.pid, ended))
