"""The page over a job of two ranks that train together by gloo: steps by rank, placement, collectives, why a step was
slow."""
import os
import re
import subprocess
import sys
from contextlib import ExitStack

import jobs
import pytest
from jobs import PROGRAM, probe
from page_kit import AXE, browse, browser_only, wait_for
from serve_kit import service

pytestmark = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")

JOB = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn

def fetch(rank, step):
    # Often, and far above what a busy machine adds to either rank.
    time.sleep(1.5 if rank == 1 and step % 4 == 0 else 0.25)
    return torch.randn(8, 32)

def train():
    rank, step = dist.get_rank(), 0
    pair = dist.new_group([0, 1])
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        x = fetch(rank, step)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.broadcast(loss.detach(), 0, group=pair)
        step += 1

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
print("ready", flush=True)
train()
"""


@pytest.fixture(scope="module")
def ranks(needs_torch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "two_ranks.py").write_text(JOB)
    with ExitStack() as stack:
        started = []
        for n in range(2):
            env = {**os.environ, "WORLD_SIZE": "2", "RANK": str(n), "LOCAL_RANK": str(n)}
            started.append(stack.enter_context(subprocess.Popen([sys.executable, str(folder / "two_ranks.py"),
                                                                 str(folder / "meet"), str(n)], env=env,
                                                                stdout=subprocess.PIPE, text=True)))
            stack.callback(started[-1].kill)
        for rank in started:
            assert rank.stdout.readline() == "ready\n"
        for rank in started:  # one after the other: each counts its steps from then on
            assert probe("-t", rank.pid, "inject").returncode == 0
            assert probe("-t", rank.pid, "config", "probing.torch.profiling=on").returncode == 0
        for rank in started:
            wait_for(lambda pid=rank.pid: jobs.rows("-t", pid, "SELECT count(*) FILTER (WHERE duration_ms > 1400) AS n "
                                                               "FROM python.torch_step")[0]["n"] > 1)
        yield started


@browser_only
@pytest.mark.timeout(150)
def test_steps_by_rank_show_who_was_behind_and_why(ranks, tmp_path):
    every, slow = "target=two_ranks.py&all=1", f"target={ranks[1].pid}"
    with service(tmp_path / "r") as served:
        found = browse(served, tmp_path, ["open", f"#/torch?{every}"], ["find", ".heat canvas"],
                       ["see", "Rank 1 is slow in"], ["text", "main h1"],
                       ["evaluate", "document.querySelector('.heat canvas').ariaLabel"],
                       ["find", "aside tr:has-text('allreduce'):has-text('rank 1')"],
                       ["find", ".sec:has-text('Groups') + table tr:has-text('0, 1')"],
                       ["text", "aside"], ["text", ".host"],
                       ["axe", "main"], ["wide"],
                       ["press", "ArrowLeft"], ["evaluate", "location.hash"], ["press", "Escape"], ["press", "Enter"],
                       ["see", "Why step"], ["text", "aside"], ["find", "td:has-text('Linear')"],
                       ["text", "main table"], ["evaluate", "location.hash"], ["axe", "main"],
                       ["open", f"#/torch?{every}&ranks=1"], ["see", "1 rank,"],
                       ["evaluate", "document.querySelector('.heat canvas').ariaLabel"],
                       ["open", f"#/inspect?{every}&tab=ranks&name=rank"], ["see", "rank differs in"],
                       ["text", "table"],
                       ["open", f"#/activity?{every}"], ["find", "[role=treeitem]:has-text('train')"],
                       ["click", "[role=treeitem]:has-text('train')"], ["find", ".source .at .who"],
                       ["text", ".source"], axe=str(AXE))
    title, heat, aside, placed = found[3], found[4], found[7], found[8]
    assert re.match(r"Rank 1 is slow in .*, where the median is ", title), title
    assert re.search(r"Often slower: .*rank 1 in \d+ steps", heat)
    # it comes last to the collective: the other one waits
    assert "rank 1" in aside.split("Last in")[1].split("Placement")[0], aside
    assert "0, 1" in aside.split("Groups")[1] and "0" in placed and "1" in placed
    assert found[9] == [] and found[10] <= 0 and "cell=" in found[12]
    assert f"{slow}&step=" in found[19] and "rest of the step" in found[16] and found[20] == []
    assert "Sequential" in found[18] and "Linear" in found[18] and "Forward" in found[18]
    assert "of 1 rank " in found[23]
    assert "differs" in found[26] and "rank 0" in found[26] and "rank 1" in found[26]
    assert re.search(r"^\d+\n? *(x = fetch|loss|optimizer|dist\.broadcast|step)", found[-1], re.M), found[-1]
    assert "rank" in found[-1], found[-1]
