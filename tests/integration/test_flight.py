"""torch's Flight Recorder, read from outside without an agent, against what torch itself prints of it."""
import json
import os
import signal
import sys

import jobs
import pytest
from jobs import probe
from jobs import rows as query

PROGRAM = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
store, rank = sys.argv[1], int(sys.argv[2])
other = subprocess.Popen([sys.executable, __file__, store, "1"], stdout=subprocess.DEVNULL) if rank == 0 else None
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
group = dist.new_group([0, 1], group_desc="a description that is longer than fifteen characters")
x = torch.ones(4, 8)
for _ in range(30):  # the ring of twenty turns over
    dist.all_reduce(x)
dist.broadcast(x.double(), 0, group=group)
dist.all_gather([torch.empty(3).half(), torch.empty(3).half()], torch.ones(3).half())
dist.barrier()
from torch._C._distributed_c10d import _dump_fr_trace_json
if rank == 0:
    text = _dump_fr_trace_json(includeCollectives=True, onlyActive=False)
    print("told", text.decode() if isinstance(text, bytes) else text, flush=True)
    dist.all_reduce(x[:2])  # which the other one never joins
else:
    time.sleep(1000)
"""

SAME = ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "time_created_ns",
        "timeout_ms", "is_p2p")

pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.mark.parametrize("ring", ["20", "2000"])
def test_every_entry_is_read_as_torch_has_it_while_the_process_hangs_or_is_stopped(tmp_path, ring):
    script = tmp_path / "job.py"
    script.write_text(PROGRAM)
    with jobs.start(sys.executable,
                    script,
                    tmp_path / "store",
                    "0",
                    ready="]",
                    ready_seconds=90,
                    env={"TORCH_FR_BUFFER_SIZE": ring}) as job:
        told = json.loads(job.output.split("told ", 1)[1].splitlines()[0])
        hanging = ("SELECT count(*) AS n FROM python.torch_nccl_flight_record WHERE state = 'scheduled' "
                   "AND input_sizes = '[[2, 8]]'")
        jobs.wait_until(lambda: query(job, hanging)[0]["n"] == 1, 20, "the hang")
        os.kill(job.pid, signal.SIGSTOP)
        read = query(job, "SELECT * FROM python.torch_nccl_flight_record ORDER BY record_id")
        assert read[-1]["input_sizes"] == "[[2, 8]]" and read[-1][
            "collective_seq_id"] == read[-2]["collective_seq_id"] + 1
        by_id = {each["record_id"]: each for each in told["entries"]}
        compared = [row for row in read if row["record_id"] in by_id]
        assert len(compared) == len(by_id) - (ring == "20"), (len(compared), len(by_id),
                                                              [row["record_id"] for row in read])
        for row in compared:
            entry = by_id[row["record_id"]]
            assert {name: row[name] for name in SAME} == {name: entry[name] for name in SAME}
            assert [row["pg_name"], row["pg_desc"]] == entry["process_group"]
            for name in ("input_sizes", "output_sizes"):
                assert json.loads(row[name]) == entry[name]
            for name in ("input_dtypes", "output_dtypes"):
                assert row[name] == "[%s]" % ", ".join(entry[name])
            assert row["state"] == "completed" and row["duration_ns"] is None
            assert row["retired"], "it is over by now, also where it was not yet when torch printed it"
        groups = {row["pg_name"]: row for row in query(job, "SELECT * FROM python.torch_nccl_pg_status")}
        default = groups["0"]
        assert default["last_enqueued_collective"] == read[-1]["collective_seq_id"]
        assert default["last_completed_collective"] == default["last_enqueued_collective"] - 1
        os.kill(job.pid, signal.SIGCONT)


def test_without_a_recorder_there_are_no_rows(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(PROGRAM.replace("dist.barrier()", "print('ready', flush=True); time.sleep(1000)"))
    with jobs.start(sys.executable,
                    script,
                    tmp_path / "store",
                    "0",
                    ready="ready",
                    ready_seconds=90,
                    env={"TORCH_FR_BUFFER_SIZE": "0"}) as job:
        assert query(job, "SELECT * FROM python.torch_nccl_flight_record") == []
    with jobs.python("import time; print('ready', flush=True); time.sleep(1000)") as job:
        done = probe(job.pid, "query", "SELECT count(*) FROM python.torch_nccl_pg_status")
        assert done.returncode == 0 and "0" in done.stdout, done.stderr
