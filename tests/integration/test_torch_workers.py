"""A training with workers of a data loader: which process is which, where it is, and that none is left out."""
import contextlib
import json
import os
import signal
import sys

import jobs
import pytest
from jobs import probe

pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.timeout(400)]
PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
class Stops(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        while i == 9:
            time.sleep(1000)
        return torch.zeros(8)
def train():
    for i, batch in enumerate(DataLoader(Stops(), batch_size=1, num_workers=3, multiprocessing_context=%r)):
        print("batch", i, flush=True)
if __name__ == "__main__":
    train()
"""


@pytest.fixture(params=["fork", "spawn"])
def training(request, tmp_path):
    script = tmp_path / "train_with_workers.py"
    script.write_text(PROGRAM % request.param)
    with jobs.start(sys.executable, script, ready="batch 8\n", ready_seconds=120, env={"RANK": "1"}) as job:
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
            started = [int(pid) for pid in file.read().split()]
        yield job
        for pid in started:  # one of them sleeps, and does not look whether its parent lives
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def now(job):
    return json.loads(probe("-t", job.pid, "--all", "now", "--json").stdout)


def test_each_worker_has_its_number_its_line_and_its_time_and_the_parent_is_there(training, tmp_path):
    least = 5.5 if os.path.exists("/proc/self/sched") else 0  # not every kernel tells when a thread ran last
    waits = lambda rows: [row for row in rows if row["worker"] and (row["since"] or 0) >= least]
    jobs.wait_until(lambda: len(waits(now(training))) == 3, 90, "workers that look for a batch every five seconds")
    rows = {row["worker"]: row for row in now(training) if row["function"]}
    stuck, parent = rows["worker 0 of rank 1"], next(row for row in now(training) if row["pid"] == training.pid)
    assert parent["function"] == "train" and parent["worker"] is None
    assert (stuck["function"], stuck["line"]) == ("Stops.__getitem__", 10)
    assert {row["function"] for name, row in rows.items() if name and "0" not in name} == {"_worker_loop"}
    assert {"worker 1 of rank 1", "worker 2 of rank 1"} < set(rows)

    if (tmp_path / "train_with_workers.py").read_text().count("'spawn'"):
        return  # a report of each takes seconds; those of forked ones are enough
    done = probe("-t", training.pid, "--all", "report", "-o", tmp_path / "ticket.html")
    assert done.returncode == 0, done.stderr
    pages = sorted(path.name for path in tmp_path.glob("ticket*"))
    assert "ticket-rank-1.html" in pages
    assert {f"ticket-rank-1-pid-{row['pid']}.html" for name, row in rows.items() if name} <= set(pages)


SPAWNED = """
import time
import torch
def work(number):
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        net(torch.randn(8 * (number + 1), 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
if __name__ == "__main__":
    context = torch.multiprocessing.spawn(work, nprocs=2, join=False)
    print("ready", *context.pids(), flush=True)
    context.join()
"""


def test_processes_without_ranks_have_a_row_each(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNED)
    with jobs.start(sys.executable, script, ready="ready", ready_seconds=120) as job:
        jobs.wait_until(lambda: "\n" in job.output, 20, "the pids")
        pids = [int(word) for word in job.output.split()[1:3]]
        try:
            of = "SELECT count(*) AS n, max(samples) AS samples FROM python.torch_step HAVING count(*) > 20"
            for pid in pids:
                assert probe(pid, "config", "probing.torch.profiling=on").returncode == 0
            jobs.wait_until(lambda: all(jobs.rows(pid, of) for pid in pids), 90, "steps of both")
            samples = [jobs.rows(pid, of)[0]["samples"] for pid in pids]
            assert samples == [8, 16]
            shown = probe("-t", job.pid, "--all", "torch", "--once").stdout.split("\n\n")[0]
            assert [line.split()[1] for line in shown.splitlines()[1:]] == list(map(str, sorted(pids))), shown
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
