"""Which rank holds up a group, said from torch's Flight Recorder of each, with no agent in any of them."""
import os
import sys
from contextlib import ExitStack

import jobs
import pytest
from jobs import probe

PROGRAM = """
import sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
store, rank, case = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
x = torch.ones(4, 8)
for _ in range(5):
    dist.all_reduce(x)
print("ready", flush=True)
if rank == 1 and case == "skips":
    time.sleep(1000)
elif rank == 1 and case == "other":
    dist.broadcast(x, 1)
    time.sleep(1000)
dist.all_reduce(x)
time.sleep(1000)
"""

pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.mark.parametrize("case, said", [
    ("skips", "rank 1: has not issued all_reduce number 6 of group 0; ranks that have, for"),
    ("other", "rank 1 has issued broadcast instead of all_reduce"),
    ("sound", None),
])
def test_the_rank_that_skips_a_collective_or_issues_another_is_named(tmp_path, case, said):
    script = tmp_path / f"{case}_job.py"
    script.write_text(PROGRAM)
    with ExitStack() as stack:
        for rank in (1, 2, 0):
            job = stack.enter_context(
                jobs.start(sys.executable,
                           script,
                           tmp_path / "store",
                           rank,
                           case,
                           env={
                               "RANK": str(rank),
                               "WORLD_SIZE": "3"
                           }))
        jobs.wait_until(lambda: "ready" in job.output, 90, "the ranks")

        def merged():
            return probe("-t", script, "--all", "backtrace", "--merge").stdout

        if said:
            jobs.wait_until(lambda: said in merged(), 20, "the verdict")
        else:
            jobs.wait_until(lambda: merged().count("sound_job.py:17") == 1, 20, "the end of the last collective")
            assert "stands at" not in merged() and "has not issued" not in merged()
        assert not [
            name for name in os.listdir(f"/proc/{job.pid}/task")
            if open(f"/proc/{job.pid}/task/{name}/comm").read().startswith("probing")
        ]
