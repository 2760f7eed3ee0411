"""Tracked variables of a training, from its first step on, compared with what the training prints."""
import contextlib
import json
import sys

import jobs
import pytest
from jobs import probe

pytestmark = pytest.mark.usefixtures("needs_torch")
PROGRAM = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    %s
    for epoch in range(1, 4):
        for batch in range(30):
            count += 1
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            if count == 60:
                loss = loss * float("nan")
            else:
                loss.backward()
            %s
            optimizer.step()
            print("said", json.dumps([epoch, count, repr(loss.item())]), flush=True)
train()
print("ready", flush=True)
import time
time.sleep(100)
"""
OWN_STEP = PROGRAM % ("count = step = 0", "step = count")
NO_STEP = PROGRAM % ("count = -1", "")
TOLD_STEP = PROGRAM % ("import probing; count = 0", "probing.step(count)")


@contextlib.contextmanager
def trained(code, variable, value):
    env = {variable: value, "PYTHONPATH": str(jobs.TOP / "python")}
    with jobs.python(code, interpreter=jobs.PROGRAM, flags=["launch", "--", sys.executable], ready="ready",
                     ready_seconds=90, env=env) as job:
        said = [json.loads(line[len("said "):]) for line in job.output.splitlines() if line.startswith("said ")]
        yield job, [(epoch, step, float(loss)) for epoch, step, loss in said]


def same(found, expected):
    return repr(found) == repr(expected)  # nan is nan


WAYS = [pytest.param(OWN_STEP, "PROBING_TORCH_PROFILING", "on,exprs=loss@train,epoch@train", id="profiling"),
        pytest.param(OWN_STEP, "PROBING_TORCH_PROFILING", "on,exprs=loss@train,epoch@train,step@train", id="step"),
        pytest.param(NO_STEP, "PROBE_TORCH_EXPRS", "loss@train,epoch@train", id="none-of-its-own"),
        pytest.param(TOLD_STEP, "PROBING_TORCH_PROFILING", "on,exprs=loss@train", id="told")]


@pytest.mark.parametrize("code, variable, value", WAYS)
def test_each_step_of_a_training_is_logged_as_the_training_counts_it(code, variable, value):
    with trained(code, variable, value) as (job, said):
        assert len(said) == 90
        rows = jobs.rows(job, 'SELECT epoch, step, loss, "loss@train" AS whole FROM training_logs ORDER BY timestamp')
        found = [(row["epoch"], row["step"], float(row["loss"])) for row in rows]
        assert same(found, said) and all(same(float(row["whole"]), float(row["loss"])) for row in rows)
        for name in ("epoch", "step"):
            if name + "@train" in value:
                assert [row["whole"] for row in jobs.rows(job, 'SELECT "%s@train" AS whole FROM training_logs ORDER '
                                                               'BY timestamp' % name)] == \
                    [row[name] for row in rows]
        groups = jobs.rows(job, "SELECT epoch, avg(loss), min(loss), count(*) as steps FROM training_logs WHERE NOT "
                                "isnan(loss) GROUP BY epoch ORDER BY epoch")
        assert [row["epoch"] for row in groups] == [1, 2, 3]
        for row in groups:
            losses = [loss for epoch, _, loss in said if epoch == row["epoch"] and loss == loss]
            assert row["steps"] == len(losses)
            assert row["avg(loss)"] == pytest.approx(sum(losses) / len(losses))
            assert row["min(loss)"] == min(losses)
        nan = [step for _, step, loss in said if loss != loss]
        assert nan == [60]
        assert [row["step"] for row in jobs.rows(job, "SELECT step FROM python.alerts WHERE kind = 'nan'")] == nan


SCALED = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
stepped = []
optimizer.register_step_post_hook(lambda *_: stepped.append(1))
def train():
    for epoch in range(1, 4):
        for step in range(30 * epoch, 30 * epoch + 30):
            x = torch.randn(8, 4)
            for part in range(%d):
                loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
                if step in (59, 70, 71, 72):
                    loss = loss * float("nan")
                scaler.scale(loss).backward()
            before = len(stepped)
            scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
            print("said", json.dumps([epoch, step, repr(loss.item())]), flush=True)
            if len(stepped) == before:
                print("left out", step, flush=True)
train()
print("ready", flush=True)
import time
time.sleep(100)
"""


@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_that_a_gradient_scaler_leaves_out_is_logged(parts):
    with trained(SCALED % parts, "PROBING_TORCH_PROFILING", "on,exprs=loss,lr,grad_norm,part@train") as (job, said):
        out = [int(line.split()[2]) for line in job.output.splitlines() if line.startswith("left out")]
        assert len(said) == 90 and out == [59, 70, 71, 72]
        rows = jobs.rows(job, "SELECT epoch, step, loss, lr, grad_norm, part FROM training_logs ORDER BY timestamp")
        assert same([(row["epoch"], row["step"], float(row["loss"])) for row in rows], said)
        assert {row["part"] for row in rows} == {parts - 1}
        assert [row["step"] for row in rows if row["lr"] is None] == out, "nothing has stepped"
        assert [row["step"] for row in rows if row["grad_norm"] is None] == out
        assert [row["step"] for row in jobs.rows(job, "SELECT step FROM python.alerts WHERE kind = 'nan' ORDER BY "
                                                      "timestamp")] == [59, 70]
