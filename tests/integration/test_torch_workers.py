"""A training with workers of a data loader: which process is which, where it is, and that none is left out."""
import contextlib
import json
import os
import signal
import sys

import jobs
import pytest
from jobs import probe

pytestmark = pytest.mark.usefixtures("needs_torch")
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

    done = probe("-t", training.pid, "--all", "report", "-o", tmp_path / "ticket.html")
    assert done.returncode == 0, done.stderr
    pages = sorted(path.name for path in tmp_path.glob("ticket*"))
    assert "ticket-rank-1.html" in pages
    assert {f"ticket-rank-1-pid-{row['pid']}.html" for name, row in rows.items() if name} <= set(pages)
