"""The torch probe on a real training: names, counts, steps; and what the program must not notice."""
import sys

import jobs
import pytest
from jobs import probe
from jobs import rows as query

HEAD = """
import os, sys, threading, time
import torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
    def forward(self, x):
        return x + self.mlp(self.norm(x))
class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb, self.layers, self.head = nn.Embedding(20, d), nn.ModuleList([Block(d), Block(d)]), nn.Linear(d, 20)
    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
seeded = threading.Lock()  # random numbers are the process's
def train(steps):
    with seeded:
        torch.manual_seed(1)
        net, data, losses = Net(), torch.randint(0, 20, (8, 8)), []
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(data).flatten(0, 1), data.flatten())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item())
    return losses
"""

PROGRAM = HEAD + """
before = train(20)
print("ready", flush=True)
while "go" not in open(sys.argv[1]).read():
    nn.Identity()(1); time.sleep(0.01)
assert train(20) == before
class Late(nn.Module):
    def forward(self, fails):
        if fails:
            raise KeyError("mine")
        return torch.ones(2)
time.sleep(2.5)
late = Late()
for fails in (0, 1):
    try:
        late(fails)
    except KeyError as error:
        assert error.args == ("mine",)
pid = os.fork()
if pid == 0:
    os._exit(0 if train(20) == before else 1)
assert os.waitpid(pid, 0)[1] == 0
print("trained", flush=True)
while "end" not in open(sys.argv[1]).read():
    time.sleep(0.01)
assert train(20) == before
print("same", flush=True)
"""

BUSY = HEAD + """
before = train(30)
def work():
    while not stop:
        assert train(30) == before, "another result"
        done.append(1)
stop, done = [], []
threads = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in threads]
print("ready", flush=True)
while "end" not in open(sys.argv[1]).read():
    time.sleep(0.01)
stop.append(1); [each.join() for each in threads]
compiled = torch.compile(Net(), backend="eager", fullgraph=True)
assert compiled(torch.zeros(2, 2, dtype=torch.long)).shape == (2, 2, 20)
print("same", len(done) > 0, flush=True)
"""


pytestmark = pytest.mark.usefixtures("needs_torch")


def is_in(job):
    return "of the steps" in probe(job.pid, "probes").stdout


def start(tmp_path, text):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(text)
    word.write_text("")
    return jobs.start(sys.executable, script, word, ready="ready\n", ready_seconds=90), word


def test_modules_and_steps_are_those_of_the_program_which_notices_nothing(tmp_path):
    started, word = start(tmp_path, PROGRAM)
    with started as job:
        assert probe(job.pid, "probes", "start", "torch", "budget=off").returncode == 0
        jobs.wait_until(lambda: is_in(job), 20, "the probe")
        word.write_text("go")
        jobs.wait_until(lambda: "trained" in job.output or not job.alive(), 60, "the training")
        assert job.alive(), job.output
        rows = query(job, "SELECT module, parent, depth, count(*) AS n FROM python.torch_trace "
                          "WHERE model = 'Net' AND stage = 'forward' GROUP BY ALL")
        found = {row["module"]: (row["parent"], row["depth"], row["n"]) for row in rows}
        assert found["Net"] == (None, 0, 20)
        assert found["layers.1"] == ("Net", 1, 20)
        assert found["layers.1.mlp.2"] == ("layers.1.mlp", 3, 20)
        assert len(found) == 15
        assert query(job, "SELECT count(*) AS n FROM python.torch_trace WHERE "
                          "module = 'Late'")[0]["n"] == 2, "also the call that raised"
        assert query(job, "SELECT count(*) AS n, count(DISTINCT step) AS d FROM "
                          "python.torch_step WHERE kind = 'train'")[0] == {"n": 19, "d": 19}
        assert query(job, "SELECT stage, count(*) AS n FROM python.torch_trace WHERE stage IN ('backward', "
                          "'optimizer') AND depth = 0 GROUP BY 1 ORDER BY 1") == [
            {"stage": "backward", "n": 20}, {"stage": "optimizer", "n": 20}]
        # self_ms is kept as so many 65,535ths of the call.
        inside = query(job, "SELECT max(abs(r.self_ms + c.inner_ms - r.duration_ms) - r.duration_ms / 65535) AS off "
                            "FROM (SELECT step, "
                            "self_ms, duration_ms FROM python.torch_trace "
                            "WHERE module = 'Net' AND stage = 'forward') r JOIN (SELECT step, sum(duration_ms) AS "
                            "inner_ms FROM python.torch_trace WHERE parent = 'Net' AND stage = 'forward' GROUP BY 1) c "
                            "USING (step)")
        assert inside[0]["off"] < 0.01
        assert probe(job.pid, "detach").returncode == 0
        word.write_text("end")
        jobs.wait_until(lambda: not job.alive(), 30, "its end")
        assert job.output == "ready\ntrained\nsame\n"


def test_it_comes_and_goes_while_two_threads_train_and_a_graph_is_compiled(tmp_path):
    started, word = start(tmp_path, BUSY)
    with started as job:
        for _ in range(4):
            for _ in range(3):
                assert probe(job.pid, "probes", "start", "torch", "sample_rate=0.5").returncode == 0
                jobs.wait_until(lambda: is_in(job), 20, "the probe")
                assert probe(job.pid, "probes", "stop", "torch").returncode == 0
            assert probe(job.pid, "detach").returncode == 0
        assert probe(job.pid, "probes", "start", "torch", "budget=off").returncode == 0
        jobs.wait_until(lambda: is_in(job), 20, "the probe")
        word.write_text("end")
        jobs.wait_until(lambda: not job.alive(), 60, "its end")
        assert job.output == "ready\nsame True\n"
