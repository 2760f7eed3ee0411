"""Collectives of a real DDP training with gloo: counted against torch.profiler, seen while one hangs, and gone without
a trace."""
import sys

import jobs
import pytest
from jobs import probe
from jobs import rows as query

PROGRAM = """
import os, subprocess, sys, time, warnings
import torch, torch.distributed as dist, torch.nn as nn
sys.path.append(os.path.dirname(__file__) + "/site-packages")
import wraps
torch.set_num_threads(1)
word, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
other = subprocess.Popen([sys.executable, __file__, word, store, "1"], stdout=subprocess.DEVNULL) if rank == 0 else None  # lines of two would mix
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)

def wait_for(text):
    while text not in open(word).read():
        time.sleep(0.005)
    dist.barrier()

def train(steps=6):
    torch.manual_seed(rank)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), bucket_cap_mb=0.05)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.01), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 64)).square().mean()
        loss.backward(); optimizer.step()
        losses.append(loss.item())
    return losses

before = train()
print("ready", flush=True)
wait_for("go")
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU]) as p:
    assert train() == before
    x = torch.ones(10)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    wraps.send_round(x)
    with torch.inference_mode():
        dist.all_reduce(torch.ones(5))
    work = dist.all_reduce(torch.ones(7), async_op=True); work.wait()
    dist.all_gather([torch.zeros(3), torch.zeros(3)], torch.ones(3))
print("counted", sum(e.count for e in p.key_averages() if e.key.startswith("c10d::")), flush=True)
wait_for("hang")
if rank == 1:
    while "on" not in open(word).read().split():
        time.sleep(0.01)
dist.all_reduce(torch.ones(1234))
print("on", flush=True)
wait_for("dies")
if rank == 1:
    os._exit(0)
try:
    dist.all_reduce(torch.ones(3))
except Exception as error:
    print(type(error).__name__, flush=True)
while "end" not in open(word).read():
    time.sleep(0.01)
os._exit(0)
"""


pytestmark = pytest.mark.usefixtures("needs_torch")


def test_every_collective_is_a_row_also_those_of_the_reducer_and_one_that_hangs(tmp_path):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(PROGRAM)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/wraps.py").write_text(
        "import torch.distributed\n\n\ndef send_round(x):\n    torch.distributed.broadcast(x, 1)\n")
    word.write_text("")

    def say(text):
        word.write_text(word.read_text() + text + " ")
    with jobs.start(sys.executable, script, word, tmp_path / "store", "0", ready="ready\n", ready_seconds=90) as job:
        assert probe(job.pid, "probes", "start", "torch", "budget=off").returncode == 0
        jobs.wait_until(lambda: "collectives" in probe(job.pid, "probes").stdout, 30, "the probe")
        say("go")
        jobs.wait_until(lambda: "counted" in job.output or not job.alive(), 60, "the training")
        assert job.alive(), job.output
        backward = PROGRAM.splitlines().index("        loss.backward(); optimizer.step()") + 1
        counted = int(job.output.split("counted ")[1].split()[0])
        rows = query(job, "SELECT op, location, bytes, duration_ms, src_rank, dst_rank, async_op, tensor_shape, "
                          "group_size, global_rank FROM python.comm_collective "
                          # the first is the barrier before the profiler was on
                          "WHERE seq != 1 OR seq IS NULL ORDER BY timestamp")
        assert len(rows) == counted, rows
        assert all(row["duration_ms"] > 0 for row in rows)
        reduced = [row for row in rows if row["op"] == "allreduce" and row["location"].endswith(f"job.py:{backward}")]
        assert len(reduced) >= 6 and sum(row["bytes"] for row in reduced) == 6 * 4 * (64 * 256 + 256 + 256 * 64 + 64)
        sent = next(row for row in rows if row["op"] == "send")
        assert (sent["bytes"], sent["src_rank"], sent["dst_rank"], sent["tensor_shape"]) == (40, 0, 1, "10")
        assert "job.py:" in sent["location"]
        around = PROGRAM.splitlines().index("    wraps.send_round(x)") + 1
        assert [row["location"].split("/")[-1] for row in rows if row["op"] == "broadcast"][-1] == f"job.py:{around}", \
            "the program's own line, not the library's"
        assert [row["bytes"] for row in rows if (row["op"], row["tensor_shape"]) == ("allreduce", "5")] == [20], \
            "of an inference too"
        assert query(job, "SELECT sum(bytes) AS n FROM comm_metrics WHERE operation = 'send'")[0]["n"] == 40
        between = query(job, "SELECT src_rank, dst_rank, count(*) AS n FROM comm_metrics GROUP BY ALL ORDER BY ALL")
        # The broadcast is of rank 1; of the others the destination is the whole group.
        assert [(row["src_rank"], row["dst_rank"])
                for row in between] == [(0, -1), (0, 1), (1, -1)], between
        assert sum(row["n"] for row in between) >= counted
        say("hang")
        hanging = ("SELECT op, bytes, location FROM python.comm_collective WHERE done IS NULL AND timestamp < now() - "
                   "INTERVAL 200 MILLISECONDS")
        jobs.wait_until(lambda: [row["bytes"] for row in query(job, hanging)] == [4936], 20, "the hang")
        say("on")
        jobs.wait_until(lambda: "\non\n" in job.output, 20, "its end")
        assert query(job, hanging) == []
        assert probe(job.pid, "detach").returncode == 0
        assert probe(job.pid, "probes", "start", "torch").returncode == 0
        jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 20, "the probe")
        say("dies")
        jobs.wait_until(lambda: "Error" in job.output or not job.alive(), 30, "the error")
        assert job.output.splitlines()[-1] == "RuntimeError", job.output
        say("end")
        jobs.wait_until(lambda: not job.alive(), 20, "its end")
        assert job.process.returncode == 0


BLOCKS = """
import os, subprocess, sys, threading, time
sys.path.insert(0, sys.argv[4])
import torch, torch.distributed as dist, torch.nn as nn
import probing
torch.set_num_threads(1)
word, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
other = subprocess.Popen([sys.executable, __file__, word, store, "1", sys.argv[4]]) if rank == 0 else None
tell = lambda *words: rank == 0 and print(*words, flush=True)
has_kernel = lambda: torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")

def wait_for(text):
    while text not in open(word).read().split():
        time.sleep(0.005)

with probing.trace("collective_ops"):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(4))
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU]) as p, probing.trace("collective_ops", part="second"):
    net = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
    net(torch.randn(2, 8)).square().mean().backward()
    with probing.span("inner"):
        work = dist.all_reduce(torch.ones(5), async_op=True)
    dist.broadcast(torch.ones(6), 1)
work.wait()
dist.all_reduce(torch.ones(7))
tell("counted", sum(e.count for e in p.key_averages() if e.key.startswith("c10d::")))
wait_for("probe")
with probing.trace("collective_ops"):
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        wait_for("on")
    dist.all_reduce(torch.ones(9))
    tell("passed", has_kernel())
    wait_for("detached")
    while rank == 0 and has_kernel():
        time.sleep(0.005)
    dist.all_reduce(torch.ones(10))
tell("over")
wait_for("end")
with probing.trace("collective_ops"):
    dist.all_reduce(torch.ones(11))
tell("end")
os._exit(0)
"""


def test_what_a_block_issues_is_in_its_table_with_its_times(tmp_path):
    script, word = tmp_path / "job.py", tmp_path / "word"
    script.write_text(BLOCKS)
    word.write_text("")

    def say(text):
        word.write_text(word.read_text() + text + " ")
    columns = "op, tensor_shape, bytes, c.duration_ms, done, group_size"
    with jobs.start(sys.executable, script, word, tmp_path / "store", "0", jobs.TOP / "python", ready="",
                    ready_seconds=90) as job:
        jobs.wait_until(lambda: "counted" in job.output or not job.alive(), 90, "the blocks")
        assert job.alive(), job.output
        counted = int(job.output.split("counted ")[1].split()[0])
        # Inside of the block and not around it; also what was waited for later, and the reducer's.
        rows = query(job, f"SELECT {columns}, s.name, s.attributes FROM collective_ops c LEFT JOIN python.trace_event "
                          f"s USING (span_id) ORDER BY c.timestamp")
        assert (rows[0]["op"], rows[0]["bytes"], rows[0]["name"]) == ("allreduce", 12, "collective_ops"), rows
        assert len(rows) == 1 + counted, rows
        assert all(row["duration_ms"] > 0 and row["done"] and row["group_size"] == 2 for row in rows), rows
        assert [(row["op"], row["bytes"], row["name"])
                for row in rows[-2:]] == [("allreduce", 20, "inner"), ("broadcast", 24, "collective_ops")]
        assert sum(row["bytes"] for row in rows if row["op"] == "allreduce"
                   and row["name"] == "collective_ops") >= 12 + 4 * (8 * 4 + 4)
        assert not {row["tensor_shape"] for row in rows} & {"4", "7"}
        assert query(job, "SELECT count(*) AS n FROM python.comm_collective")[0]["n"] == 0, "the probe is off"
        # The probe's table and the block's beside each other; one that hangs is there while it hangs.
        assert probe(job.pid, "probes", "start", "torch", "budget=off").returncode == 0
        jobs.wait_until(lambda: "collectives" in probe(job.pid, "probes").stdout, 30, "the probe")
        say("probe")
        hanging = "SELECT bytes FROM collective_ops WHERE done IS NULL"
        jobs.wait_until(lambda: [row["bytes"] for row in query(job, hanging)] == [36], 30, "the hang")
        say("on")
        jobs.wait_until(lambda: "passed" in job.output, 30, "its end")
        assert "passed True" in job.output and query(job, hanging) == []
        # Durations are as recorded; how a time becomes UTC is found anew by each query.
        both = ["SELECT bytes, op, seq, duration_ms FROM %s WHERE bytes IN (32, 36) ORDER BY 1" % name
                for name in ("collective_ops", "python.comm_collective")]
        assert query(job, both[0]) == query(job, both[1]) and len(query(job, both[0])) == 2
        # Detached inside of a block: what we put into torch is gone, and the program goes on.
        assert probe(job.pid, "detach").returncode == 0
        say("detached")
        jobs.wait_until(lambda: "over" in job.output or not job.alive(), 30, "the block after detach")
        say("end")
        jobs.wait_until(lambda: not job.alive(), 30, "its end")
        assert job.process.returncode == 0 and job.output.endswith("end\n"), job.output
