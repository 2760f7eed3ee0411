"""The examples run, and docs/torch.md asks of them what they answer."""
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jobs
import pytest
from jobs import PROGRAM, TOP, probe

EXAMPLES = TOP / "examples"


pytestmark = pytest.mark.usefixtures("needs_torch")


def query(target, sql, *options):
    done = probe(target, *options, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PHASES = ("data", "forward", "backward", "optimizer", "own code")


def turn_on(pid, *more):
    assert probe(pid, "config", "probing.torch.profiling=on", *more).returncode == 0
    jobs.wait_until(lambda: "of the steps" in probe(pid, "probes").stdout, 30, "the probe")


def test_a_program_that_tells_of_itself_finds_it_in_its_tables():
    done = subprocess.run([PROGRAM, "launch", "--", sys.executable, EXAMPLES / "test_probing.py"], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("loss ")
    assert [line.split(",")[0] for line in lines[1:]] == ["epoch 0: 20 steps", "epoch 1: 20 steps", "epoch 2: 20 steps"]


def test_torch_shows_steps_and_the_tree_of_modules():
    with jobs.start(sys.executable, EXAMPLES / "transformer.py", ready="step 0", ready_seconds=90) as job:
        turn_on(job.pid)
        jobs.wait_until(lambda: len(query(job.pid, "SELECT 1 AS n FROM python.torch_step LIMIT 20")) == 20, 60, "steps")
        shown = probe(job.pid, "torch").stdout
        assert "forward %" in shown and "MultiheadAttention" in shown and "optimizer" in shown, shown
        summary = json.loads(probe(job.pid, "torch", "--json").stdout)[0]
        assert summary["samples/s"] > 0 and summary["tokens/s"] == pytest.approx(32 * summary["samples/s"], rel=0.01)
        assert 50 < summary["forward %"] + summary["backward %"] + summary["optimizer %"] <= 100
        assert sum(summary[part + " %"] for part in PHASES) == pytest.approx(100, abs=0.5), summary
        tree = [line.split("  Block")[0].rstrip().split("   ")[0]
                for line in probe(job.pid, "torch", "tree").stdout.splitlines()]
        assert tree[1].startswith("Transformer"), "no part of the call that was under way stands above"
        assert tree[2].strip().startswith("embedding"), "no part of the call that was under way stands above"
        assert any(line.startswith("  layers.3") for line in tree)
        assert probe(job.pid, "torch", "branch").returncode == 2


def test_images_are_waited_for_and_losses_are_tracked():
    with jobs.start(sys.executable, EXAMPLES / "imagenet.py", "--images", "160", ready="epoch 0",
                    ready_seconds=90) as job:
        refused = probe(job.pid, "track", "los")
        assert refused.returncode == 2 and "'los' is no VARIABLE@FUNCTION" in refused.stderr, refused.stderr
        assert probe(job.pid, "track", "loss@train", "acc1@train", "lr", "grad_norm", "throughput", "los@train",
                     "x@nothing").returncode == 0
        turned = lambda: query(job.pid, "SELECT count(*) AS n FROM python.variables WHERE name = 'loss'")[0]["n"] > 3
        jobs.wait_until(lambda: "python.variables" in probe(job.pid, "tables").stdout and turned(), 60, "losses")
        rows = query(job.pid, "SELECT DISTINCT name, function, how FROM python.variables ORDER BY 1")
        assert [(row["name"], row["function"])
                for row in rows] == [("acc1", "train"), ("grad_norm", None), ("los", "train"), ("loss", "train"),
                                     ("lr", None), ("throughput", None), ("x", "nothing")]
        assert {row["how"] for row in rows} == {"tracked"}
        logged = query(job.pid, "SELECT epoch, step, loss, acc1, lr, grad_norm, throughput FROM training_logs ORDER BY "
                                "step DESC LIMIT 1")[0]
        assert logged["epoch"] > 0, logged
        assert logged["lr"] == 0.05, logged
        assert logged["loss"] > 0, logged
        assert logged["grad_norm"] > 0, logged
        known = ("loss", "epoch", "step", "grad_norm_used")
        assert probe(job.pid, "track", *known).stdout.startswith("tracked after each step: " + " ".join(known) + "\n")
        assert logged["throughput"] > 0, logged
        told = [row["message"] for row in query(job.pid, "SELECT message FROM probing.log WHERE source = "
                                                         "'track' ORDER BY 1")]
        assert told == ["los@train has no value: NameError: name 'los' is not defined",
                        "x@nothing has no value: no function nothing runs"], told
        jobs.wait_until(lambda: query(job.pid, "SELECT sum(data_ms) AS n FROM python.torch_step")[0]["n"], 60,
                        "batches")
        rows = query(job.pid, "SELECT DISTINCT module, module_type FROM python.torch_trace WHERE stage IN "
                              "('dataloader', 'optimizer') ORDER BY 1")
        assert [row["module"] for row in rows] == ["SGD", "_MultiProcessingDataLoaderIter"]
        assert query(job.pid, "SELECT max(samples) AS n FROM python.torch_step")[0]["n"] == 32


def ranks_of(job):
    """The ranks below torchrun: {rank: pid}."""
    found = {}
    for pid in subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split():
        try:
            environment = dict(word.split("=", 1) for word in open(f"/proc/{pid}/environ").read().split("\0")
                               if "=" in word)
        except OSError:
            continue
        if "RANK" in environment:
            found[int(environment["RANK"])] = int(pid)
    return found


@contextmanager
def torchrun(name, *words, ready=None):
    """The job and its ranks, {rank: pid}, which are killed at the end: torchrun that is killed leaves them."""
    with jobs.start(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
                    "--rdzv-endpoint", "127.0.0.1:0", EXAMPLES / name, *words) as job:
        ranks = {}
        try:
            jobs.wait_until(lambda: len(ranks_of(job)) == 2 or not job.alive(), 120, "the ranks")
            ranks.update(ranks_of(job))
            if ready:
                jobs.wait_until(lambda: ready in job.output or not job.alive(), 120, ready)
            assert job.alive(), job.output
            yield ranks
        finally:
            for pid in {**ranks, **ranks_of(job)}.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


SLEEPS = """
import time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def write_metrics():
    time.sleep(0.05)
def train():
    while True:
        optimizer.zero_grad(); model(torch.randn(32, 64)).square().mean().backward(); optimizer.step()
        write_metrics()
print("ready", flush=True)
train()
"""


def test_the_programs_own_code_is_a_part_of_the_step_with_its_line():
    with jobs.python(SLEEPS) as job:
        assert probe(job.pid, "inject").returncode == 0
        [nothing] = json.loads(probe(job.pid, "torch", "--json").stdout)
        assert [nothing[part + " %"] for part in PHASES] == [None] * len(PHASES), "no share of no step"
        turn_on(job.pid)
        jobs.wait_until(lambda: len(query(job.pid, "SELECT 1 AS n FROM python.torch_step LIMIT 60")) == 60, 60, "steps")
        summary = json.loads(probe(job.pid, "torch", "--json").stdout)[0]
        assert summary["own code %"] > 80, summary
        assert sum(summary[part + " %"] for part in PHASES) == pytest.approx(100, abs=0.5), summary
        shown = probe(job.pid, "torch", "--once").stdout
        assert f"write_metrics ({job.script}:8)" in shown, shown
        modules = shown[shown.index("of steps %"):].split("\n\n")[0].splitlines()[1:]
        assert len(modules) >= 5, "shares are of the step, not of each other"
        assert sum(float(line.split()[-1]) for line in modules) < 20, "shares are of the step, not of each other"


def test_ranks_show_their_collectives():
    with torchrun("ddp.py", ready="step 0") as ranks:
        for pid in ranks.values():
            turn_on(pid)
        sql = ("SELECT count(*) AS n FROM python.comm_collective WHERE op = 'allreduce' AND duration_ms > 0 AND "
               "location LIKE '%ddp.py:%'")
        for pid in ranks.values():
            jobs.wait_until(lambda: query(pid, sql)[0]["n"] > 10, 60, "collectives")
        slower = ("import time, torch.nn.functional as F; F.mse_loss = lambda *given, loss=F.mse_loss, "
                  "sleep=time.sleep: (sleep(0.03), loss(*given))[1]")
        assert probe(ranks[1], "eval", slower).returncode == 0
        newest = lambda pid: query(pid, "SELECT max(step) AS n FROM python.torch_step")[0]["n"]
        until = {pid: newest(pid) + 220 for pid in ranks.values()}
        jobs.wait_until(lambda: all(newest(pid) > step for pid, step in until.items()), 60, "slow steps")
        launcher = next(line.split()[1] for line in open(f"/proc/{ranks[0]}/status") if line.startswith("PPid"))
        shown = probe("-t", launcher, "--all", "torch", "--once").stdout
        waits = shown[shown.index("waits for other ranks at least %"):].splitlines()[1:3]
        assert [line.split()[0] for line in waits] == ["0", "1"], shown
        assert float(waits[0].split()[-1]) > 50 and float(waits[1].split()[-1]) == 0, shown


def test_the_rank_that_stops_is_the_one_that_has_issued_less():
    with torchrun("hang.py", "--after", "1500") as ranks:
        for pid in ranks.values():
            jobs.wait_until(lambda: probe(pid, "config", "probing.torch.profiling=on",
                                          "probing.torch.hang_timeout=2").returncode == 0, 90, "the agent")
        hung = "SELECT message FROM python.alerts WHERE kind = 'hang'"
        for pid in ranks.values():
            jobs.wait_until(lambda: query(pid, hung), 90, "the alert")
        waiting = "SELECT op FROM python.comm_collective WHERE done IS NULL AND timestamp < now() - INTERVAL 1 SECOND"
        assert [row["op"] for row in query(ranks[0], waiting)] == ["allreduce"] and query(ranks[1], waiting) == []
        assert "in backward" in query(ranks[0], hung)[0]["message"]
        assert "between two phases" in query(ranks[1], hung)[0]["message"]
        assert "wait_for_a_lock" in probe(ranks[1], "backtrace").stdout
        # The stacks were kept by a process outside, and outlive the ranks.
        stacks = "SELECT function, thread, stepping, language FROM python.hang_frames WHERE stepping ORDER BY id, depth"
        for pid in ranks.values():
            jobs.wait_until(lambda: "train" in {row["function"] for row in query(pid, stacks)}, 60,
                            "the stacks of the hang")
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        jobs.wait_until(lambda: not any(Path(f"/proc/{pid}/task").exists() for pid in ranks.values()), 20,
                        "the end of the ranks")
        assert "wait_for_a_lock" in {row["function"] for row in query(ranks[1], stacks)}
        waits = {row["function"] for row in query(ranks[0], stacks)}
        assert "wait_for_a_lock" not in waits and "train" in waits


def test_tensors_that_are_kept_by_mistake_are_counted_and_the_line_is_named():
    line = next(number for number, text in enumerate((EXAMPLES / "leak.py").read_text().splitlines(), 1)
                if "remember(history, batch, loss)" in text and "def" not in text)
    with jobs.start(sys.executable, EXAMPLES / "leak.py", "--steps", "100000", ready="step 0", ready_seconds=90) as job:
        assert probe(job.pid, "inject").returncode == 0
        count = lambda: query(job.pid, "SELECT count(*) AS n FROM python.tensors WHERE name IS NULL AND "
                                       "shape = '64x128'")[0]["n"]
        before = count()
        jobs.wait_until(lambda: count() >= before + 20, 60, "more batches that are kept")
        assert query(job.pid, "SELECT count(*) AS n FROM python.tensors WHERE "
                              "name IS NOT NULL") == [{"n": 4}], "the model does not grow"
        watched = lambda: probe(job.pid, "watch", "history@train", "--duration", "1s").returncode == 0 and query(
            job.pid, "SELECT DISTINCT file, line, operation FROM python.variables WHERE how = 'in place'")
        jobs.wait_until(watched, 60, "the line")
        assert watched() == [{"file": str(EXAMPLES / "leak.py"), "line": line, "operation": "remember()"}]


def test_the_query_for_leaks_puts_the_culprit_first():
    with jobs.start(sys.executable, EXAMPLES / "leak.py", "--steps", "100000", ready="step 0", ready_seconds=90) as job:
        kept = lambda: query(job.pid, "SELECT count(*) AS n FROM python.tensors WHERE name IS NULL AND "
                                      "shape = '64x128'")[0]["n"]
        assert probe(job.pid, "config", "probing.memory.sampling=on,interval=64KB").returncode == 0
        before = kept()
        jobs.wait_until(lambda: kept() >= before + 1500, 120, "batches that are kept")
        grown = (kept() - before) * 64 * 128 * 4
        found = query(job.pid, """SELECT function_name, sum(allocated_bytes) as total_alloc FROM memory_allocations
                                  WHERE timestamp > now() - interval '1 hour' GROUP BY function_name ORDER BY total_alloc DESC""")
        assert found[0]["function_name"] == "remember", found[:5]
        assert 0.75 < found[0]["total_alloc"] / grown < 1.35, (found[:3], grown)


def test_sampled_allocations_name_the_line_that_keeps_tensors():
    line = next(number for number, text in enumerate((EXAMPLES / "leak.py").read_text().splitlines(), 1)
                if "batch.clone()" in text)
    with jobs.start(sys.executable, EXAMPLES / "leak.py", "--steps", "100000", ready="step 0", ready_seconds=90) as job:
        assert probe(job.pid, "config", "probing.memory.sampling=on,interval=64KB").returncode == 0
        kept = lambda: query(job.pid, "SELECT function_name, file, lineno, count(*) AS n FROM memory_allocations WHERE "
                                      "kind = 'tensor' AND freed IS NULL "
                                      "AND timestamp < now() - INTERVAL 1 SECOND GROUP BY ALL ORDER BY "
                                      "sum(allocated_bytes) DESC LIMIT 1")
        jobs.wait_until(lambda: kept() and kept()[0]["n"] >= 20, 60, "samples that are not freed")
        assert {key: kept()[0][key] for key in ("function_name", "file",
                                                "lineno")} == {"function_name": "remember",
                                                               "file": str(EXAMPLES / "leak.py"), "lineno": line}
