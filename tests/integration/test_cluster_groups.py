"""A job of torch.distributed with process groups, as a cluster: its roles, breakpoints that hold some of its ranks, and
values side by side."""
import json
import os
import re
import secrets
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import jobs
import pytest
from jobs import probe

# Cycles of the same steps, which must give the same losses each time; a group's timeout is 10 s, so that a rank that is
# held longer would end the others.
TRAINING = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
torch.set_num_threads(1)
rank, launcher = int(os.environ["RANK"]), os.getppid()
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "tp"))
odd = float("nan") if rank == 1 else 0.5
weight = torch.ones(3, 4) if rank != 2 else torch.ones(3, 5)
if rank != 3:
    def most_have_it():
        x = 1
torch.manual_seed(1)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
first = {name: value.clone() for name, value in net.module.state_dict().items()}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train_step(number):
    torch.manual_seed(100 * number + rank)
    loss = net(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

def cycle():
    net.module.load_state_dict(first)
    losses = []
    for number in range(10):
        losses.append(train_step(number))
        time.sleep(0.02)
    return losses

cycle()  # DDP puts its buckets into another order after the first step, and sums are rounded otherwise
expected, cycles = cycle(), 0
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=int(os.environ.get("GROUP_TIMEOUT", 10))))  # now that all are there
print("ready", flush=True)
while os.getppid() == launcher:  # else torchrun was killed, and nobody ends this
    if cycle() != expected:
        print("other losses", flush=True)
        break
    cycles += 1
"""
LINE = 1 + TRAINING.split("\n").index("    optimizer.zero_grad()")


@contextmanager
def training(folder, world=4, name="meshed", **environment):
    """Started by torchrun, whose process is no rank."""
    script, mark = folder / "train.py", secrets.token_hex(8)
    script.write_text(TRAINING)
    with jobs.start(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", script,
                    env={"CLUSTER_TEST": mark, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                         **environment}) as launcher:
        try:
            jobs.wait_until(lambda: launcher.output.count("ready") == world or not launcher.alive(), 120,
                            what="the start of the job")
            done = probe("cluster", "attach", name, "--here", "--match", f"CLUSTER_TEST={mark}", "--timeout", "30")
            assert done.returncode == 0, (done.stdout, done.stderr, launcher.output)
            assert f"{world} of {world} ranks" in done.stdout, (done.stdout, done.stderr, launcher.output)
            yield SimpleNamespace(target=f"cluster:{name}", script=script, mark=f"CLUSTER_TEST={mark}")
            assert launcher.output == "ready\n" * world
        finally:  # each rank is a session of its own: torchrun ends them
            launcher.process.terminate()
            launcher.process.wait(60)


@pytest.fixture(scope="module")
def job(tmp_path_factory, needs_torch):
    with training(tmp_path_factory.mktemp("meshed")) as job:
        yield job


def ask(job, *words, expect=0):
    done = probe("-t", job.target, *words, "--timeout", "30", timeout=120)
    assert done.returncode == expect, (words, done.stdout, done.stderr)
    return done


def timeouts(job, column="timeout_s"):
    """Of each rank its default group's."""
    answers = json.loads(ask(job, "groups", "--json").stdout)
    return [next(row for row in one["output"] if row["description"] == "default_pg")[column] for one in answers]


def cycles(job):
    """How often the ranks have trained with the same losses."""
    return [int(number) for number in re.findall(r"\] (\d+)$", ask(job, "eval", "cycles").stdout, re.M)]


def trains_on(job):
    begun = max(cycles(job))
    jobs.wait_until(lambda: min(cycles(job)) > begun + 1, 60, what="more cycles")


def held(job):
    """Which ranks are held at a breakpoint, as the list of breakpoints has them."""
    return re.findall(r"^\[(ranks? [-\d, ]+).*held there$", ask(job, "break").stdout, re.M)


def test_roles_are_asked_of_the_processes(job):
    shown = json.loads(probe("cluster", "show", job.target.split(":")[1], "--json").stdout)
    assert [row["roles"] for row in shown] == ["pp=0,tp=0", "pp=0,tp=1", "pp=1,tp=0", "pp=1,tp=1"]
    assert ask(job, "eval", "rank", "--ranks", "pp=1,tp=*").stdout == "[rank 2] 2\n[rank 3] 3\n"
    rows = json.loads(ask(job, "query", "--json", "SELECT rank, role FROM cluster.ranks ORDER BY rank").stdout)
    assert rows == [{"rank": 0, "role": "pp=0,tp=0"}, {"rank": 1, "role": "pp=0,tp=1"},
                    {"rank": 2, "role": "pp=1,tp=0"}, {"rank": 3, "role": "pp=1,tp=1"}]


def test_a_role_that_is_not_wanted_is_not_asked_for(job):
    done = probe("cluster", "attach", "unasked", "--here", "--match", job.mark, "--roles", "none")
    assert done.returncode == 0, done.stderr
    assert {row["roles"] for row in json.loads(probe("cluster", "show", "unasked", "--json").stdout)} == {None}


def test_roles_of_megatron_come_first(job):
    """Its module as it keeps its groups, with the groups of the mesh in it."""
    code = """import sys, types
kept = types.ModuleType("megatron.core.parallel_state")
kept._TENSOR_MODEL_PARALLEL_GROUP, kept._PIPELINE_MODEL_PARALLEL_GROUP, kept._DATA_PARALLEL_GROUP = mesh.get_group("pp"), [mesh.get_group("tp")], None
sys.modules[kept.__name__] = kept"""
    ask(job, "eval", code)
    try:
        assert ask(job, "groups",
                   "--roles").stdout.splitlines() == [f"[rank {rank}] tp={rank // 2},pp={rank % 2}"
                                                      for rank in range(4)]
    finally:
        ask(job, "eval", "import sys; sys.modules.pop('megatron.core.parallel_state'); del kept")
    assert ask(job, "groups", "--roles", "--ranks", "3").stdout == "[rank 3] pp=1,tp=1\n"


def test_values_side_by_side_mark_what_differs(job):
    assert ask(job, "show", "odd").stdout.splitlines() == ["  0.5    ranks 0, 2-3", '! "nan"  rank 1 (pp=0, tp=1): NaN']
    shown = ask(job, "show", "weight").stdout.splitlines()
    assert [line.split("  ")[-1] for line in shown] == ["ranks 0-1, 3", "rank 2 (pp=1, tp=0): another shape"]
    found = json.loads(ask(job, "show", "weight", "--json").stdout)
    assert [(one["ranks"], one["differs"], one["other_shape"])
            for one in found] == [([0, 1, 3], False, False), ([2], True, True)]
    done = ask(job, "show", "most_have_it", expect=1)
    assert "rank 3 (pp=1, tp=1): no value" in done.stdout and "NameError" in done.stdout


def test_ranks_that_wait_for_a_held_one_do_not_give_up(job):
    """Rank 0 is held for longer than the group's timeout, in which the others wait for it in a collective."""
    done = ask(job, "break", f"train.py:{LINE}", "--ranks", "pp=0,tp=0")
    assert done.stdout.startswith("[rank 0 (pp=0, tp=0)] "), done.stderr
    assert "ranks 1-3 have no breakpoint" in done.stderr, done.stderr
    assert "instead of 10 s" in done.stderr and timeouts(job, "timeout_before_s") == [10] * 4
    jobs.wait_until(lambda: held(job) == ["rank 0 "], 30, what="the hit")
    listed = ask(job, "break").stdout
    assert re.search(r"\[rank 0 \(pp=0, tp=0\)\] \d+  stops at .*train.py:%d train_step: 1 hit, a thread "
                     r"is held there" % LINE, listed), listed
    time.sleep(11.5)
    # Those that wait have a loss once they are in their backward.
    jobs.wait_until(lambda: probe("-t", job.target, "show", "loss", "--timeout", "30", timeout=120).returncode == 0, 60,
                    what="a loss of all ranks")
    losses = ask(job, "show", "loss").stdout.splitlines()
    assert len(losses) == 4 and all("scalar" in line for line in losses)
    assert "1 thread of rank 0 (pp=0, tp=0)" in ask(job, "backtrace", "--merge").stdout
    hits = json.loads(ask(job, "query", "--json", "SELECT rank, role, line, stopped FROM python.break_hits").stdout)
    assert hits == [{"rank": 0, "role": "pp=0,tp=0", "line": LINE, "stopped": True}]
    assert ask(job, "continue").stdout == "[rank 0] it goes on\n[ranks 1-3] it was not held\n"
    jobs.wait_until(lambda: len(json.loads(ask(job, "query", "--json", "SELECT 1 FROM python.break_hits").stdout)) == 2,
                    30, what="the next hit")
    assert ask(job, "break", "--stop").stdout.startswith("[rank 0 (pp=0, tp=0)] ")
    assert timeouts(job) == [10] * 4 and timeouts(job, "timeout_before_s") == [None] * 4
    trains_on(job)


def test_all_ranks_stop_and_go_on_by_themselves_when_nobody_looks_after_them(job):
    ask(job, "break", f"train.py:{LINE}", "--limit", "2s")
    trains_on(job)  # each stops, and goes on after the limit without its breakpoint
    assert "there are no breakpoints" in ask(job, "break").stdout and not held(job)
    hits = json.loads(ask(job, "query", "--json", f"SELECT DISTINCT rank FROM python.break_hits WHERE line = {LINE} "
                                                  f"ORDER BY rank").stdout)
    assert [row["rank"] for row in hits] == [0, 1, 2, 3]
    assert timeouts(job, "timeout_before_s") == [10] * 4  # as long as another rank might be held
    ask(job, "groups", "--restore")
    assert timeouts(job) == [10] * 4
    trains_on(job)


@pytest.mark.parametrize("command, listed", [(["break", "--on-change", "x@most_have_it"], "there are no breakpoints"),
                                             (["watch", "x@most_have_it"], "nothing is watched"),
                                             (["trace", "most_have_it"], "nothing is traced"),
                                             (["break", "--log", "{x}", "--on-change", "x@most_have_it"],
                                              "there are no breakpoints")])
def test_what_one_rank_refuses_is_set_in_none(job, command, listed):
    done = ask(job, *command, expect=1)
    assert "[rank 3 (pp=1, tp=1)] probing: " in done.stderr, done.stderr
    assert "nothing is set" in done.stderr, done.stderr
    assert not done.stdout, done.stderr
    assert ask(job, command[0]).stdout.startswith("[ranks 0-3") and listed in ask(job, command[0]).stdout
    assert timeouts(job) == [10] * 4


def test_log_points_and_watches_over_ranks(job):
    ask(job, "break", f"train.py:{LINE}", "--log", "{rank} {number}", "--ranks", "pp=1")
    ask(job, "watch", "number@train_step", "--ranks", "tp=0")
    def rows(sql):
        return json.loads(ask(job, "query", "--json", sql).stdout)
    jobs.wait_until(lambda: len(rows("SELECT DISTINCT rank FROM python.variables")) == 2 and
                    len(rows("SELECT DISTINCT rank FROM python.break_hits WHERE message IS NOT NULL")) == 2, 90,
                    what="rows")
    assert {row["message"].split()[0] == str(row["rank"]) and row["rank"] > 1 for row in
            rows("SELECT rank, message FROM python.break_hits WHERE message IS NOT NULL")} == {True}
    assert ask(job, "watch", "--stop").returncode == 0 and ask(job, "break", "--stop").returncode == 0
    trains_on(job)


@pytest.mark.timeout(500)
def test_eight_ranks_of_which_some_are_held_for_a_minute_train_on(soak, tmp_path, needs_torch):
    """Twice the groups' timeout, once with one rank held and once with all."""
    if not soak:
        pytest.skip("it holds ranks for two minutes: make soak")
    with training(tmp_path, 8, "eight", GROUP_TIMEOUT="30") as job:
        for words in (["--ranks", "0"], []):
            ask(job, "break", f"train.py:{LINE}", *words)
            jobs.wait_until(lambda: held(job), 60, what="the hit")
            time.sleep(60)
            assert held(job), "it is held no more"
            ask(job, "break", "--stop")
            assert timeouts(job) == [30] * 8
            trains_on(job)
