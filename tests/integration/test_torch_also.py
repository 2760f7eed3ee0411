"""Trainings that do more than a plain loop, one after the other in a process: gradients of several batches without a
synchronisation (no_sync), an average of the weights, autocast, generation between steps, uneven inputs (Join), an
exchange of experts (all_to_all), a checkpoint beside the steps, two optimizers that take turns. Each part has a batch
size of its own, by which its rows are found."""
import json
import sys

import jobs
import pytest
from jobs import probe, rows

pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.timeout(300)]

STEPS = 6
PROGRAM = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
import torch, torch.nn as nn, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
torch.set_num_threads(1)
STEPS, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=0, world_size=1)
def net(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
average = AveragedModel(model.module)
def step(size):
    model(torch.randn(size, 4)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
def without_sync(size):
    with model.no_sync():
        model(torch.randn(size, 4)).square().mean().backward()
    step(size)
def averaged(size):
    step(size); average.update_parameters(model.module)
def cast(size):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(size, 4)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
def generating(size):
    step(size); model.eval()
    with torch.no_grad():
        for _ in range(5): model(torch.randn(3, 4))
    model.train()
def uneven(size):
    with Join([model]): step(size)
def exchanging(size):
    given, taken = torch.ones(size), torch.empty(size)
    dist.all_to_all_single(taken, given); step(size)
def saving(size):
    saved = dcp.async_save({"model": model.module.state_dict()}, checkpoint_id="%s/%d" % (folder, counted["saved"]))
    step(size); saved.result(); counted["saved"] += 1
counted = {"saved": 0}
print("ready", flush=True)
while not os.path.exists(folder + "/go"): step(2); time.sleep(0.01)
for size, part in enumerate([without_sync, averaged, cast, generating, uneven, exchanging, saving], 11):
    for _ in range(STEPS): part(size)
one, other = net(), net()
first, second = torch.optim.SGD(one.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.01)
for _ in range(STEPS):
    for trained, its in (one, first), (other, second):
        trained(torch.randn(10, 4)).square().mean().backward(); its.step(); its.zero_grad()
print("over", json.dumps(counted), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("also")
    (folder / "train.py").write_text(PROGRAM)
    with jobs.start(sys.executable, folder / "train.py", STEPS, folder, ready="ready\n", ready_seconds=120) as job:
        assert probe(job.pid, "config", "probing.torch.budget=off", "probing.torch.profiling=on").returncode == 0
        seen = lambda: rows(job, "SELECT count(*) AS n FROM python.torch_step")[0]["n"]
        jobs.wait_until(lambda: seen() > 2, 60, "steps")
        jobs.wait_until(lambda: "collectives" in probe(job.pid, "probes").stdout, 60, "the probe of collectives")
        (folder / "go").write_text("")
        jobs.wait_until(lambda: "over" in job.output or not job.alive(), 120, "the end of the trainings")
        assert json.loads(job.output.split("over ")[1]) == {"saved": STEPS}
        yield job


def steps_of(job, samples):
    return rows(job, "SELECT * FROM python.torch_step WHERE kind = 'train' AND samples = %d "
                     "ORDER BY timestamp" % samples)


@pytest.mark.parametrize("size, part", [(12, "averaged"), (13, "autocast"), (14, "generation"), (15, "Join"),
                                        (16, "all_to_all"), (17, "checkpoint")])
def test_each_step_is_one_row_with_its_phases(job, size, part):
    found = steps_of(job, size)
    assert [row["micro_batches"] for row in found] == [1] * STEPS, part
    assert all(min(row["forward_ms"], row["backward_ms"], row["optimizer_ms"]) > 0 for row in found)
    assert [row["step"] - found[0]["step"] for row in found] == list(range(STEPS))


def test_batches_without_a_synchronisation_are_of_one_step(job):
    assert [row["micro_batches"] for row in steps_of(job, 22)] == [2] * STEPS


def test_generation_between_steps_is_no_training(job):
    found = rows(job, "SELECT count(*) AS n FROM python.torch_step WHERE kind = 'eval' AND samples = 3")
    assert found == [{"n": 5 * STEPS}]


def test_of_two_optimizers_one_ends_the_steps(job):
    """The one before them has to miss four steps until another takes its place: the second one, at its second step."""
    last = rows(job, "SELECT micro_batches FROM python.torch_step WHERE kind = 'train' "
                     "ORDER BY timestamp DESC LIMIT %d" % (STEPS - 1))
    assert [row["micro_batches"] for row in last] == [2] * (STEPS - 2) + [4]


def test_exchanges_between_experts_are_recorded_with_bytes_and_line(job):
    found = rows(job, "SELECT op, bytes, location FROM python.comm_collective WHERE op LIKE '%all%to%all%'")
    assert [(row["bytes"], "train.py" in row["location"]) for row in found] == [(64, True)] * STEPS
