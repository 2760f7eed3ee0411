"""What backtrace says of real PyTorch jobs that wait: in a collective, for other ranks, for a worker of a data loader;
and of those that look alike and do not."""
import contextlib
import json
import socket
import sys
import time

import jobs
import pytest
from jobs import probe

RANK = """
import os, sys, time
import torch, torch.distributed as dist
def straggle():
    time.sleep(1000)
print("starts", flush=True)
if sys.argv[1] == "joins" and os.environ["RANK"] == "1":
    straggle()
dist.init_process_group("gloo")
print("joined", flush=True)
if sys.argv[1] == "groups":
    first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
    if os.environ["RANK"] == "2":
        straggle()
    dist.all_reduce(torch.ones(8), group=second if os.environ["RANK"] == "0" else first)
if os.environ["RANK"] == "1":
    straggle()
dist.all_reduce(torch.ones(8))
"""

LOADER = """
import ctypes, os, time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 100
    def __getitem__(self, i):
        time.sleep(1000)
job = os.getpid()
def end_with_the_job(worker):
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != job: os._exit(0)
if __name__ == "__main__":
    print("ready", flush=True)
    for batch in DataLoader(Slow(), num_workers=int(os.environ["WORKERS"]), worker_init_fn=end_with_the_job):
        pass
"""


pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.fixture
def ranks(tmp_path):
    """Starts the ranks of a script; gives all."""
    started = contextlib.ExitStack()

    def start(mode, size=2):
        script = tmp_path / "job.py"
        script.write_text(RANK)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
        return [started.enter_context(jobs.start(sys.executable, script, mode, env={**env, "RANK": str(rank)}))
                for rank in range(size)]

    with started:
        yield start


def verdict(pid):
    done = probe("-t", pid, "backtrace", "--json")
    return json.loads(done.stdout)[0]["verdict"] if done.returncode == 0 else None


def wait_for(pid, words):
    jobs.wait_until(lambda: words in (verdict(pid) or ""), seconds=60, what=f"{words}: {verdict(pid)}")


def test_a_rank_that_waits_in_a_collective_is_told_from_the_one_it_waits_for(ranks, tmp_path):
    waits, straggles = ranks("collective")
    wait_for(waits.pid, "waiting in a collective: all_reduce")
    assert verdict(straggles.pid) is None
    text = probe("-t", str(tmp_path / "job.py"), "--all", "backtrace", "--merge").stdout
    assert "rank 0: the main thread is waiting in a collective: all_reduce of group 0 (ranks 0-1)" in text
    assert "rank 1: the main" not in text
    groups = text.split("\n\n")
    assert any('rank 1' in g.splitlines()[0] and "straggle (" in g for g in groups), text
    native = probe("-t", str(tmp_path / "job.py"), "--all", "backtrace", "--merge", "--native").stdout
    assert any('rank 0' in g.splitlines()[0] and "all_reduce (" in g and "[libtorch" in g
               for g in native.split("\n\n")), native


def test_a_rank_waits_for_those_of_its_group_alone(ranks, tmp_path):
    """Ranks 0 and 1 are in the same function, but of two groups: they do not wait for the same."""
    first, other, straggles = ranks("groups", 3)
    wait_for(first.pid, "all_reduce of group 2 (ranks 0, 2)")
    wait_for(other.pid, "all_reduce of group 1 (ranks 0-1)")
    shown = {p["label"]: p for p in json.loads(probe("-t", str(tmp_path / "job.py"), "--all", "backtrace",
                                                     "--json").stdout)}
    waits = {label: next(t["waits_for"] for t in p["threads"] if t["tid"] == p["pid"]) for label, p in shown.items()}
    assert (waits["rank 0"]["group"], waits["rank 0"]["group_ranks"],
            waits["rank 0"]["absent_ranks"]) == ("2", [0, 2], "2")
    assert (waits["rank 1"]["group"], waits["rank 1"]["group_ranks"],
            waits["rank 1"]["absent_ranks"]) == ("1", [0, 1], "0")
    assert "group" not in waits["rank 2"] and shown["rank 2"]["verdict"] is None
    assert shown["rank 1"]["verdict"].endswith("; not in it: rank 0"), shown["rank 1"]["verdict"]


def test_a_rank_that_waits_for_others_to_join_is_not_in_a_collective(ranks):
    waits, absent = ranks("joins")
    wait_for(waits.pid, "waiting for other ranks to join")
    assert verdict(absent.pid) is None


def test_waiting_for_a_worker_is_told_from_loading_in_the_process_itself():
    with jobs.python(LOADER, env={"WORKERS": "1"}) as job:
        wait_for(job.pid, "waiting for a data-loader worker")
    with jobs.python(LOADER, env={"WORKERS": "0"}) as job:
        jobs.wait_until(lambda: "__getitem__" in probe("-t", job.pid, "backtrace").stdout, seconds=60)
        time.sleep(0.1)
        assert verdict(job.pid) is None
