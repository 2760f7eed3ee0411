"""What the loops of frameworks do and a plain training does not: evaluations, gradient checkpointing, closures,
teachers, optimizers that are not torch's, wrappers. What is told of them is compared with what the program counts."""
import time

import jobs
import pytest
import torch_kit
from jobs import rows as query
from torch_kit import run

PROGRAM = """
import json, sys, time
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
torch.manual_seed(0); torch.set_num_threads(1)
from time import perf_counter as now

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)
    def forward(self, x):
        return torch.relu(self.linear(x))

class Net(nn.Module):
    def __init__(self, d=32, again=None):
        super().__init__()
        self.again, self.stem, self.blocks = again, nn.Linear(8, d), nn.ModuleList(Block(d) for _ in range(3))
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again)
        return x

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.01)
        return x

def evaluate(net, recorded=False, batches=4):
    net.eval()
    with torch.enable_grad() if recorded else torch.no_grad():
        for x in DataLoader(torch.randn(64 * batches, 8), batch_size=64):
            net(x)
    time.sleep(0.1)  # metrics
    net.train()

def evaluates(recorded=False):
    net = nn.Sequential(Net(), Slow()); opt = torch.optim.SGD(net.parameters(), lr=0.01); longest = 0
    for epoch in range(4):
        for x in DataLoader(torch.randn(160, 8), batch_size=32):
            begun = now(); net(x).sum().backward(); opt.step(); opt.zero_grad()
            longest = max(longest, now() - begun)
        evaluate(net, recorded)
    return {"longest": longest * 1e3}

def evaluates_with_gradients():
    return evaluates(True)

def teaches():
    net, teacher = Net(), Net().eval(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for x in DataLoader(torch.randn(12 * 16, 8), batch_size=16):
        with torch.no_grad():
            wanted = teacher(x)
        (net(x) - wanted).square().sum().backward(); opt.step(); opt.zero_grad()

def recomputes(again=False):
    net = Net(256, again); opt = torch.optim.SGD(net.parameters(), lr=0.01); calls = [0]
    net.blocks[0].register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    for i in range(30):
        net(torch.randn(64, 8).requires_grad_()).sum().backward(); opt.step(); opt.zero_grad()
    return {"calls": calls[0]}

def recomputes_reentrant():
    return recomputes(True)

def closes():
    net = nn.Sequential(Net(), Slow()); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    def closure():
        opt.zero_grad(); loss = net(torch.randn(16, 8)).sum(); time.sleep(0.01); loss.backward()
        closure.ended = now()
        return loss
    took = []
    for i in range(10):
        opt.step(closure)
        took.append(now() - closure.ended)
    return {"optimizer": sorted(took)[5] * 1e3}

def steps_by_hand():
    net = Net()
    for i in range(40):
        net(torch.randn(16, 8)).sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad; p.grad = None

class DistributedDataParallel(nn.Module):  # as torch's, whose needs a group of processes
    def __init__(self, module):
        super().__init__()
        self.module = module
    def forward(self, x):
        return self.module(x)

def wraps():
    net = DistributedDataParallel(torch.compile(Net(), backend="eager", disable=True)); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(4):
        net(torch.randn(16, 8)).sum().backward(); opt.step()

def compiles():
    whole, part = torch.compile(Net(), backend="aot_eager"), Net()
    part.blocks[0].compile(backend="eager")
    for net in whole, part:
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(4):
            net(torch.randn(16, 8)).sum().backward(); opt.step()

def serves():
    import threading
    fast, slow = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8), Slow())
    def requests(net, n):
        with torch.inference_mode():
            for _ in range(n):
                net(torch.randn(3, 8))
    requests(fast, 8)  # it might become a training
    threads = [threading.Thread(target=requests, args=args) for args in ((fast, 400), (slow, 40))]
    for each in threads: each.start()
    for each in threads: each.join()
    return [each.native_id for each in threads]

class Stuck(nn.Module):
    def forward(self, x):
        time.sleep(4)
        return x

def is_stuck():
    with torch.inference_mode():
        Stuck()(torch.ones(1))

print("ready", flush=True)
done = 0
while True:
    word = open(sys.argv[1]).read().split()
    if len(word) <= done:
        time.sleep(0.01)
        continue
    said = globals()[word[done]]()
    done += 1
    print(json.dumps([done, said]), flush=True)
"""


@pytest.fixture(scope="module")
def job(needs_torch, tmp_path_factory):
    with torch_kit.program(PROGRAM, tmp_path_factory.mktemp("loops")) as started:
        yield started


@pytest.mark.parametrize("how", ["evaluates", "evaluates_with_gradients"])
def test_an_evaluation_is_no_part_of_a_step(job, how):
    said, of = run(job, how)
    assert query(job, f"SELECT kind, samples, micro_batches, count(*) AS n FROM python.torch_step WHERE {of} "
                      f"GROUP BY ALL ORDER BY kind") == [
        {"kind": "eval", "samples": 64, "micro_batches": 0, "n": 16},
        {"kind": "train", "samples": 32, "micro_batches": 1, "n": 19}]
    steps = query(job, f"SELECT * FROM python.torch_step WHERE {of} ORDER BY timestamp")
    train = [row for row in steps if row["kind"] == "train"]
    assert [row["step"] for row in train] == list(range(19))
    assert max(row["duration_ms"] for row in train) < said["longest"] + 60, "metrics take 100 ms"
    after = [row for row, last in zip(steps[1:], steps) if row["kind"] == "train" and last["kind"] == "eval"]
    assert len(after) == 3
    assert all(row["before_ms"] > 99 for row in after)
    assert query(job, f"SELECT stage, count(*) AS n FROM python.torch_trace WHERE module = 'Sequential' AND {of} "
                      f"AND stage IN ('forward', 'eval') GROUP BY 1 ORDER BY 1") == [
        {"stage": "eval", "n": 16}, {"stage": "forward", "n": 20}]
    assert query(job, f"SELECT count(*) AS n FROM python.torch_trace t JOIN python.torch_step s USING (step) WHERE "
                      f"t.stage = 'eval' AND s.kind = 'eval' AND t.timestamp BETWEEN s.timestamp AND s.timestamp + "
                      f"to_microseconds((s.duration_ms * 1000)::BIGINT + 1) AND t.module = 'Sequential' "
                      f"AND t.{of} AND s.{of}")[0]["n"] == 16


def test_a_teacher_is_part_of_the_step(job):
    _, of = run(job, "teaches")
    assert query(job, f"SELECT kind, samples, count(*) AS n FROM python.torch_step WHERE {of} GROUP BY ALL") == [
        {"kind": "train", "samples": 16, "n": 11}]


@pytest.mark.parametrize("how", ["recomputes", "recomputes_reentrant"])
def test_what_a_checkpoint_computes_again_is_backward(job, how):
    said, of = run(job, how)
    assert said["calls"] == 60
    assert query(job, f"SELECT kind, samples, count(*) AS n FROM python.torch_step WHERE {of} GROUP BY ALL") == [
        {"kind": "train", "samples": 64, "n": 29}]
    assert query(job, f"SELECT count(*) AS n FROM python.torch_step WHERE {of} AND (recompute_ms IS NULL OR "
                      f"recompute_ms > backward_ms OR forward_ms + backward_ms + optimizer_ms > duration_ms)") == [
        {"n": 0}]
    found = query(job, f"SELECT stage, count(*) AS n FROM python.torch_trace WHERE module = 'blocks.0' AND stage <> "
                       f"'backward' AND {of} GROUP BY 1 ORDER BY 1")
    assert found == [{"stage": "forward", "n": 30}, {"stage": "recompute", "n": 30}]
    backward = query(job, f"SELECT step, sum(self_ms) AS own FROM python.torch_trace WHERE stage = 'backward' AND "
                          f"depth > 0 AND {of} GROUP BY 1")
    whole = {row["step"]: row for row in query(job, f"SELECT step, backward_ms, recompute_ms FROM python.torch_step "
                                                    f"WHERE {of}")}
    assert backward
    for row in backward:
        assert row["own"] <= whole[row["step"]]["backward_ms"] - whole[row["step"]]["recompute_ms"] + 0.01
    assert query(job, f"SELECT count(*) AS n FROM python.torch_trace WHERE self_ms < 0 AND {of}") == [{"n": 0}]


def test_a_closure_is_no_time_of_the_optimizer(job):
    said, of = run(job, "closes")
    found = query(job, f"SELECT median(duration_ms) AS took, median(self_ms) AS own FROM python.torch_trace WHERE "
                       f"stage = 'optimizer' AND {of} AND step > 0")[0]
    most = said["optimizer"] + 10  # medians, since each step may be delayed; the closure sleeps for 20 ms
    assert found["took"] < most and found["own"] < most, (found, said)
    assert query(job, f"SELECT median(optimizer_ms) AS ms FROM python.torch_step WHERE {of}")[0]["ms"] < most


def test_backwards_without_an_optimizer_that_tells_are_steps(job):
    _, of = run(job, "steps_by_hand")
    found = query(job, f"SELECT count(*) AS n, min(samples) AS least, max(samples) AS most, max(micro_batches) AS b "
                       f"FROM python.torch_step WHERE {of}")[0]
    assert found == {"n": 23, "least": 16, "most": 16, "b": 1}, "after 16 backwards it is known"


def test_a_server_has_calls_and_is_idle_without_a_hang(job):
    (fast, slow), of = run(job, "serves")
    found = {row["thread_id"]: row for row in query(
        job, f"SELECT thread_id, count(*) AS n, median(duration_ms) AS p50, max(in_flight) AS most, min(samples) AS "
             f"samples, any_value(kind) AS kind FROM python.torch_step WHERE {of} GROUP BY 1")}
    assert {thread: (row["n"], row["samples"], row["kind"]) for thread, row in found.items()} == {
        fast: (400, 3, "call"), slow: (40, 3, "call")}
    assert found[slow]["p50"] > 10
    assert found[fast]["p50"] < 5
    assert {row["most"] for row in found.values()} <= {0, 1}
    shown = jobs.probe(job.pid, "torch").stdout
    assert "p99_ms" in shown
    assert jobs.probe(job.pid, "config", "probing.torch.hang_timeout=1").returncode == 0
    time.sleep(3)
    assert query(job, f"SELECT * FROM python.alerts WHERE {of}") == [], "idle"
    job.word.write_text(job.word.read_text() + "is_stuck ")
    job.answered += 1
    alerts = lambda: query(job, f"SELECT kind, message FROM python.alerts WHERE {of} ORDER BY timestamp")
    jobs.wait_until(lambda: len(alerts()) == 2, 20, "two alerts")
    assert [row["kind"] for row in alerts()] == ["hang", "resumed"]
    assert "a call does not end for" in alerts()[0]["message"]
    assert jobs.probe(job.pid, "config", "probing.torch.hang_timeout=auto").returncode == 0


def test_paths_are_the_program_s_own(job):
    _, of = run(job, "wraps")
    found = query(job, f"SELECT DISTINCT module, model FROM python.torch_trace WHERE stage = 'forward' AND {of}")
    assert {row["model"] for row in found} == {"Net"}
    assert {row["module"] for row in found} >= {"Net", "stem", "blocks.0", "blocks.0.linear"}
    assert not [row for row in found if "_orig_mod" in row["module"] or row["module"].startswith("module.")]


def test_a_compiled_model_has_its_own_name_and_its_inside_is_said_to_be_missing(job):
    _, of = run(job, "compiles")
    found = {row["module"] for row in query(job, "SELECT DISTINCT module FROM python.torch_trace WHERE stage = "
                                                 f"'forward' AND {of}")}
    assert {"Net", "stem", "blocks.0", "blocks.1"} <= found and not [each for each in found if "Optimized" in each]
    told = [row["message"].split(" is compiled")[0] for row in
            query(job, f"SELECT message FROM probing.log WHERE message LIKE '%torch.compile%' AND {of}")]
    assert sorted(told) == ["Net", "blocks.0"], told
