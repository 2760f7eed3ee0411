"""Where steps begin and end, for trainings of all kinds, and what the torch probe says of them; the numbers are
compared with what the program itself measured. One program runs them all: importing torch is what takes long."""
import statistics

import jobs
import pytest
import torch_kit
from jobs import probe
from jobs import rows as query
from torch_kit import run

PROGRAM = """
import copy, io, json, pickle, sys, time
import torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0); torch.set_num_threads(1)
from time import perf_counter as now

def model(d=32):
    return nn.Sequential(nn.Linear(8, d), nn.ReLU(), nn.Linear(d, 8))

def accumulate():
    net = model(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(24):
        net(torch.randn(5, 8)).sum().backward()
        if i % 4 == 3:
            opt.step(); opt.zero_grad()

def gan():
    d, g = model(), model()
    od, og = torch.optim.Adam(d.parameters()), torch.optim.Adam(g.parameters())
    for i in range(6):
        od.zero_grad(); d(g(torch.randn(3, 8)).detach()).sum().backward(); od.step()
        og.zero_grad(); d(g(torch.randn(3, 8))).sum().backward(); og.step()

def inference():
    net = model()
    with torch.no_grad():
        for i in range(30):
            net(torch.randint(0, 4, (2, 8)).float())

def amp():
    net = model(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    opt.register_step_post_hook(lambda *_: seen.append(1))
    seen = []
    for i in range(20):
        x = torch.randn(5, 8)
        if i == 10:
            x[0, 0] = float("inf")
        opt.zero_grad(); scaler.scale(net(x).sum()).backward(); scaler.step(opt); scaler.update()
    return {"stepped": len(seen)}

def diverges():
    net = model(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(8):
        loss = net(torch.randn(5, 8)).sum() * (float("nan") if i in (5, 6) else 1)
        opt.zero_grad(); loss.backward(); opt.step()

def logs():
    net = model(400); opt = torch.optim.SGD(net.parameters(), lr=0.001); losses, took = [], 0
    for epoch in range(3):
        for i in range(5):
            x = torch.randn(200, 8)
            begun = now(); y = net(x); took += now() - begun
            loss = y.square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
            losses.append(loss.item())
    return {"losses": losses, "ms": took / 15 * 1e3}

class SlowFunction(torch.autograd.Function):
    took = 0
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, grad):
        begun = now(); time.sleep(0.02); SlowFunction.took = (now() - begun) * 1e3
        return grad

class SlowBackward(nn.Module):
    def forward(self, x):
        return SlowFunction.apply(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), SlowBackward(), nn.ReLU())
    def forward(self, x):
        return self.head(self.body(x)) * 2

def backwards():
    net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.01); seen = []
    for i in range(15):
        net(torch.randn(4, 8)).sum().backward(); opt.step()
        seen.append(SlowFunction.took)
    return {"took": seen}

class Keep(nn.Module):
    kept = []
    def forward(self, x):
        self.kept.append(torch.ones(2 << 20))
        return x

def keeps():
    net = nn.Sequential(nn.Linear(8, 8), Keep()); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(24):
        net(torch.randn(4, 8)).sum().backward(); opt.step()
    Keep.kept.clear()

def many():
    net = nn.Sequential(nn.Linear(8, 8), *(nn.Identity() for _ in range(1500))); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for i in range(8):
        short = nn.Sequential(*(nn.Identity() for _ in range(200)))
        net(short(torch.randn(4, 8))).sum().backward(); opt.step()
        del short

class Slow(Dataset):
    def __len__(self):
        return 88
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((8,), float(i))

class OneIsSlow(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        worker = torch.utils.data.get_worker_info().id
        time.sleep(0.06 * worker)
        return torch.full((8,), float(worker))

def loader():
    made = []
    for batch in DataLoader(OneIsSlow(), batch_size=1, num_workers=2):
        made.append(int(batch[0][0]))
    for batch in DataLoader(torch.zeros(3, 8)):
        pass
    return made

class AllAreSlow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        time.sleep(0.06)
        return torch.zeros(8)

def equal_loader():
    for batch in DataLoader(AllAreSlow(), batch_size=1, num_workers=3):
        pass

def phases():
    net = nn.Sequential(nn.Linear(8, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 8))
    opt = torch.optim.AdamW(net.parameters()); steps = []
    it = iter(DataLoader(Slow(), batch_size=4, num_workers=2))
    next(it); net(torch.zeros(4, 8)).sum().backward(); opt.step()
    t = [now()]
    for i in range(21):
        begun = t[-1]; t = [now()]
        x = next(it); t.append(now())
        x = x.repeat(32, 1)
        t.append(now()); y = net(x); t.append(now())
        loss = y.sum()
        t.append(now()); loss.backward(); t.append(now())
        opt.step(); t.append(now())
        took = (t[1] - t[0], t[3] - t[2], t[5] - t[4], t[6] - t[5], t[6] - begun)
        steps.append(dict(zip(("data", "forward", "backward", "optimizer", "whole"), [s * 1e3 for s in took])))
    return steps

compiled_early = torch.compile(model(), backend="eager", fullgraph=True)
compiled_early(torch.zeros(2, 8))
def traced():
    return [str(node.kind()) for node in torch.jit.trace(model(), torch.zeros(2, 8)).inlined_graph.nodes()]
traced_before = traced()

def graphs():
    from torch._dynamo.utils import counters
    def state():
        return {k: dict(v) for k, v in counters.items() if k in ("graph_break", "recompiles", "unimplemented")}, counters["stats"]["unique_graphs"]
    before = state()
    for _ in range(3):
        compiled_early(torch.zeros(2, 8))
    assert state() == before, (before, state())
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh()); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    late = torch.compile(net, backend="eager", fullgraph=True)
    for _ in range(3):
        late(torch.zeros(2, 8)).sum().backward(); opt.step()
    assert state() == (before[0], before[1] + 1), (before, state())
    torch.manual_seed(3); net = model(); x = torch.randn(4, 8); want = net(x)
    assert torch.equal(copy.deepcopy(net)(x), want)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), want)
    assert torch.equal(torch.jit.script(net)(x), want)
    assert traced() == traced_before and "aten::linear" in traced_before
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"] and not net._forward_hooks
    def seen(mode=torch.overrides.TorchFunctionMode):
        class Mode(mode):
            names = []
            def __torch_function__(self, function, types, args=(), kwargs=None):
                self.names.append(getattr(function, "__name__", str(function)))
                return function(*args, **(kwargs or {}))
        with Mode() as m:
            net(x)
        return [name for name in m.names if name != "linear" and name != "relu"]
    assert seen() == [], seen()

print("ready", flush=True)
done = 0
while True:
    word = open(sys.argv[1]).read().split()
    if len(word) <= done:
        nn.Identity()
        time.sleep(0.01)
        continue
    if word[done] == "end":
        break
    said = globals()[word[done]]()
    done += 1
    print(json.dumps([done, said]), flush=True)
"""


@pytest.fixture(scope="module")
def job(needs_torch, tmp_path_factory):
    with torch_kit.program(PROGRAM, tmp_path_factory.mktemp("steps")) as started:
        yield started


def test_accumulated_backwards_are_one_step(job):
    _, of = run(job, "accumulate")
    assert query(job, f"SELECT micro_batches, samples, module_calls, count(*) AS n FROM python.torch_step WHERE {of} "
                      f"GROUP BY ALL") == [
        {"micro_batches": 4, "samples": 20, "module_calls": 4 * 4 + 4 + 1, "n": 5}]
    assert query(job, f"SELECT count(*) AS n FROM python.torch_trace WHERE module = '2' AND {of}")[0]["n"] == 24


def test_two_optimizers_make_one_step(job):
    _, of = run(job, "gan")
    assert query(job, f"SELECT micro_batches, count(*) AS n FROM python.torch_step WHERE {of} "
                      f"GROUP BY ALL") == [{"micro_batches": 2, "n": 5}]
    assert query(job, f"SELECT count(*) AS n FROM python.torch_trace WHERE stage = 'optimizer' AND {of}")[0]["n"] == 12


def test_each_outermost_call_of_an_inference_has_a_row(job):
    _, of = run(job, "inference")
    assert query(job, f"SELECT kind, samples, module_calls, in_flight, count(*) AS n FROM python.torch_step WHERE {of} "
                      f"GROUP BY ALL") == [{"kind": "call", "samples": 2, "module_calls": 4, "in_flight": 0, "n": 22}]


def test_a_step_that_a_gradient_scaler_leaves_out_is_a_step(job):
    said, of = run(job, "amp")
    assert said["stepped"] == 19
    assert query(job, f"SELECT skipped, micro_batches, count(*) AS n FROM python.torch_step WHERE {of} GROUP BY "
                      f"ALL ORDER BY 1") == [
        {"skipped": False, "micro_batches": 1, "n": 18}, {"skipped": True, "micro_batches": 1, "n": 1}]


def test_phases_last_as_long_as_the_program_says(job):
    """Step by step, by the median: a busy machine may take the CPU away between the program's look at the clock and
    ours, in a step or two."""
    said, of = run(job, "phases")
    found = query(job, f"SELECT data_ms AS data, forward_ms AS forward, backward_ms AS backward, optimizer_ms AS "
                       f"optimizer, duration_ms AS whole FROM python.torch_step WHERE {of} ORDER BY timestamp")
    assert len(found) == len(said) == 21
    for name in said[0]:
        off = [abs(ours[name] - its[name]) / max(its[name], 0.5) for ours, its in zip(found, said)]
        assert statistics.median(off) < 0.15, (name, found, said)
    shapes = query(job, f"SELECT DISTINCT shapes FROM python.torch_trace WHERE module = '2' AND shapes IS NOT "
                        f"NULL AND {of}")
    assert shapes == [{"shapes": "float32[128,700]"}]


def test_the_worker_of_a_data_loader_that_is_slow_is_told(job):
    made, of = run(job, "loader")
    found = query(job, f"SELECT worker, workers, ready, wait_ms FROM python.torch_loader WHERE {of} ORDER BY timestamp")
    assert [row["worker"] for row in found] == made + [None] * 3 and set(made) == {0, 1}
    assert [row["workers"] for row in found] == [2] * 12 + [0] * 3
    assert all(0 <= row["ready"] <= 4 for row in found[:12]) and any(row["ready"] for row in found[:12])
    waits = [sum(row["wait_ms"] for row in found[1:12] if row["worker"] == worker) for worker in (0, 1)]
    assert waits[1] > 200 and waits[1] > 2 * waits[0], "five batches of 60 ms and more; the others were ready"


BEHIND = "SELECT worker, avg(wait_ms * (ready > 0)::INT) AS behind_ms, avg(wait_ms) AS ms FROM python.torch_loader"


@jobs.three_tries
def test_of_equal_workers_none_is_told_to_be_slow(job):
    assert BEHIND.replace(" AS ms", "") in (jobs.TOP / "docs/torch.md").read_text(), "the query of the page"
    _, of = run(job, "loader")
    found = {row["worker"]: row for row in query(job, f"{BEHIND} WHERE {of} AND workers > 0 GROUP BY worker")}
    jobs.in_time(found[1]["behind_ms"] > 30 and found[0]["behind_ms"] < 10, found)
    _, of = run(job, "equal_loader")
    found = {row["worker"]: row for row in query(job, f"{BEHIND} WHERE {of} AND workers > 0 GROUP BY worker")}
    jobs.in_time(max(row["behind_ms"] for row in found.values()) < 15, found)
    assert max(row["ms"] for row in found.values()) > 30, "all of them are waited for"


def test_graphs_copies_and_modes_do_not_see_it(job):
    run(job, "graphs")


def test_the_cost_is_measured_and_the_budget_kept(job):
    _, of = run(job, "accumulate", "budget=0.01")
    for _ in range(8):
        job.answered += 1
        job.word.write_text(job.word.read_text() + "accumulate ")
    jobs.wait_until(lambda: job.output.count("\n[") >= job.answered, 60, "the trainings")
    assert query(job, "SELECT count(*) AS n FROM probing.log WHERE source = 'torch' AND message LIKE "
                      "'%probing.torch.budget%'")[0]["n"] >= 1
    row = query(job, "SELECT * FROM python.torch_overhead ORDER BY timestamp DESC LIMIT 1")[0]
    assert row["budget_percent"] == pytest.approx(0.01)
    assert row["calls_per_step"] > 5
    assert 10 < row["ns_per_call"] < 20000
    assert query(job, f"SELECT count(*) AS n FROM python.torch_step WHERE NOT sampled AND {of}")[0]["n"] > 10


def test_a_loss_that_is_no_number_is_told_of_once(job):
    assert probe(job.pid, "config", "probing.torch.profiling=on,exprs=loss@diverges").returncode == 0
    for _ in range(3):  # a thread of ours puts expressions in soon, not at once
        _, of = run(job, "diverges")
        jobs.wait_until(lambda: query(job, f"SELECT count(*) AS n FROM python.torch_step WHERE {of}")[0]["n"] == 7, 20,
                        "the steps")
        rows = query(job, f"SELECT kind, severity, subject, step, message FROM python.alerts WHERE {of}")
        if rows:
            break
    step = rows[0]["step"]
    assert rows == [{"kind": "nan", "severity": "error", "subject": "loss", "step": step,
                     "message": f"loss is nan at step {step}"}]
    assert query(job, f"SELECT count(*) AS n FROM python.variables WHERE name = 'loss' AND "
                      f"isnan(new_number) AND {of}")[0]["n"] == 3


def test_the_time_of_a_backward_is_given_to_its_modules(job):
    said, of = run(job, "backwards")
    rows = query(job, f"SELECT step, module, parent, depth, duration_ms, self_ms FROM python.torch_trace WHERE stage = "
                      f"'backward' AND depth > 0 AND {of}")
    found = {row["module"]: row for row in rows if row["step"] == 12}
    assert set(found) == {"Net", "head", "body", "body.0", "body.1",
                          "body.2"}, "of one step in 16, and of each from when that is known to be cheap"
    assert len(rows) == 12, "of one step in 16, and of each from when that is known to be cheap"
    assert {row["step"] for row in rows} == {12, 13}
    assert found["body.1"]["parent"] == "body"
    assert found["body.1"]["depth"] == 3
    slow = said["took"][13]  # the first step's beginning was not seen
    assert slow <= found["body.1"]["self_ms"] < slow + 10
    assert found["body"]["self_ms"] == 0
    assert found["body"]["duration_ms"] == pytest.approx(sum(found[name]["duration_ms"]
                                                             for name in ("body.0", "body.1", "body.2")))
    assert found["Net"]["self_ms"] > 0, "the product is its own"
    phase = query(job, f"SELECT duration_ms FROM python.torch_trace WHERE stage = 'backward' AND depth = 0 AND step "
                       f"= 12 AND {of}")[0]["duration_ms"]
    assert found["Net"]["duration_ms"] < phase


def test_of_many_modules_that_come_and_go_each_call_has_its_name(job):
    _, of = run(job, "many")
    found = query(job, f"SELECT module, count(*) AS n FROM python.torch_trace WHERE stage = 'forward' AND "
                       f"{of} GROUP BY 1")
    assert {row["module"]: row["n"] for row in found} == {"Sequential": 16,
                                                          **{str(i): 16 if i < 200 else 8 for i in range(1501)}}


def test_memory_is_told_of_the_module_that_takes_it(job):
    _, of = run(job, "keeps")
    found = query(job, f"SELECT module, stage, step, host_mb, host_delta_mb, allocated FROM python.torch_trace WHERE "
                       f"host_delta_mb IS NOT NULL AND {of} ORDER BY timestamp")
    assert [(row["module"], row["stage"])
            for row in found] == [("Sequential", "forward"), ("0", "forward"), ("1", "forward"),
                                  ("backward", "backward"), ("SGD", "optimizer")]
    assert {row["step"] for row in found} == {20}
    assert all(row["host_mb"] > 100 and row["allocated"] is None for row in found)
    assert 7 < found[2]["host_delta_mb"] < 20
    assert 7 < found[0]["host_delta_mb"] < 20
    assert abs(found[1]["host_delta_mb"]) < 4
    assert query(job, f"SELECT step, count(*) AS n FROM python.torch_trace WHERE step = 20 AND (stage = 'forward' OR "
                      f"depth = 0) AND stage <> 'step' AND {of} GROUP BY 1") == [{"step": 20, "n": 5}]
    whole = query(job, f"SELECT count(*) AS n, min(host_mb) AS host_mb, bool_and(abs(t.duration_ms - s.duration_ms) < "
                       f"1e-3 AND t.self_ms < t.duration_ms) AS same "
                       f"FROM python.torch_trace t JOIN python.torch_step s USING (step, timestamp) WHERE stage = "
                       f"'step' AND t.{of}")[0]
    assert whole["n"] == 23 and whole["same"] and whole["host_mb"] > 100


def test_promised_queries_and_other_names_give_what_the_program_measured(job):
    assert probe(job.pid, "config", "probing.torch.profiling=on,exprs=loss@logs").returncode == 0
    for _ in range(3):
        said, of = run(job, "logs")
        rows = query(job, f"SELECT epoch, avg(loss), min(loss), count(*) as steps FROM training_logs WHERE {of} GROUP "
                          f"BY epoch ORDER BY epoch")
        shown = query(job, f"SELECT operation_name, avg(duration_ms) AS ms, count(*) AS n FROM profiling_data WHERE "
                           f"{of} AND kind = 'module' AND stage = 'forward' GROUP BY operation_name "
                           "ORDER BY avg(duration_ms) DESC")
        if rows and abs(shown[0]["ms"] - said["ms"]) < 0.05 * said["ms"]:
            break
    losses = said["losses"]
    assert [(row["epoch"], row["steps"]) for row in rows] == [(0, 5), (1, 5), (2, 5)]
    assert rows[2]["avg(loss)"] == pytest.approx(sum(losses[10:]) / 5)
    assert rows[1]["min(loss)"] == pytest.approx(min(losses[5:10]))
    assert shown[0]["operation_name"] == "Sequential" and [row["n"] for row in shown] == [15] * 4
    assert shown[0]["ms"] == pytest.approx(said["ms"], rel=0.25)  # on a machine that does other things; else 0.05
    assert query(job, f"SELECT kind, stage, count(*) AS n FROM profiling_data WHERE {of} AND kind = 'phase' GROUP BY "
                      f"ALL ORDER BY 2") == [
        {"kind": "phase", "stage": "backward", "n": 15}, {"kind": "phase", "stage": "optimizer", "n": 15}]
    assert query(job, f"SELECT epoch, count(*) AS n FROM python.torch_trace WHERE module = 'Sequential' AND stage = "
                      f"'forward' AND timestamp >= "
                      f"(SELECT min(timestamp) FROM python.torch_step WHERE {of}) GROUP BY 1 ORDER BY 1") == [
        {"epoch": 0, "n": 4}, {"epoch": 1, "n": 5}, {"epoch": 2, "n": 5}]
    values = query(job, f"SELECT micro_step, func, name, value FROM python.variables WHERE {of} ORDER BY timestamp")
    # The first step has no row of its own, since its beginning was not seen.
    assert [(row["micro_step"], row["func"], row["name"])
            for row in values[1:]] == [(n, "logs", "loss") for n in range(14)]
    assert [float(row["value"]) for row in values] == pytest.approx(losses)
    assert query(job, f"SELECT count(*) AS n, min(value_type) AS t FROM python.trace_variables WHERE function_name = "
                      f"'logs' AND {of}") == [{"n": 15, "t": "float"}]
    assert query(job, f"SELECT count(*) AS n FROM python.torch_step_timing a JOIN python.torch_step b USING "
                      f"(timestamp) WHERE a.{of} AND a.local_step = b.step "
                      "AND abs(a.step_duration_sec * 1000 - b.duration_ms) < 1e-6 AND a.is_shadow = NOT b.sampled AND "
                      "a.micro_batches = 1") == [{"n": 14}]


def test_it_is_switched_by_a_setting_and_a_hang_is_told_of(job):
    assert probe(job.pid, "probes", "stop", "torch").returncode == 0
    assert probe(job.pid, "config", "probing.torch.profiling=on", "probing.torch.hang_timeout=1",
                 "probing.sample_rate=0.5").returncode == 0
    jobs.wait_until(lambda: "50% of the steps" in probe(job.pid, "probes").stdout, 20, "the probe")
    job.word.write_text(job.word.read_text() + "accumulate ")
    job.answered += 1
    jobs.wait_until(lambda: query(job, "SELECT count(*) AS n FROM python.alerts WHERE kind = 'hang'")[0]["n"] == 1, 20,
                    "the alert")
    row = query(job, "SELECT * FROM python.alerts WHERE kind = 'hang'")[0]
    assert row["severity"] == "error" and row["value"] >= 1 and "no step for" in row["message"]
    job.word.write_text(job.word.read_text() + "accumulate ")
    job.answered += 1
    jobs.wait_until(lambda: query(job, "SELECT count(*) AS n FROM python.alerts WHERE kind = 'resumed'")[0]["n"] == 1,
                    20, "its end")
    assert probe(job.pid, "config", "probing.torch.profiling=off").returncode == 0
    listed = probe(job.pid, "probes").stdout
    assert "waits for torch" not in listed and "of the steps" not in listed
    job.word.write_text(job.word.read_text() + "end")
    jobs.wait_until(lambda: not job.alive(), 20, "its end")
