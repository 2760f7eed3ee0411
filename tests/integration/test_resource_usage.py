"""resource_usage: what the process holds and waits for is recorded as it is, and costs next to nothing."""
import os
import subprocess

import jobs
from jobs import probe, rows

HOLDER = """
import mmap, os, socket, subprocess, sys, time
files = [open(os.devnull) for _ in range(20)]
sockets = [socket.socket() for _ in range(7)]
pipes = [os.pipe() for _ in range(3)]
block = mmap.mmap(-1, 8 << 20); block.write(b"x" * (8 << 20))
children = [subprocess.Popen(["sleep", "100"], close_fds=True) for _ in range(3)]
print("ready", flush=True)
try:
    time.sleep(100)
finally:
    [child.kill() for child in children]
"""


def newest(job):
    found = rows(job, "SELECT * FROM resource_usage ORDER BY timestamp DESC LIMIT 1")
    return found[0] if found else None


def test_a_row_has_what_the_process_holds():
    with jobs.python(HOLDER) as job:
        assert probe(job.pid, "inject").returncode == 0
        jobs.wait_until(lambda: newest(job), what="a row")
        row = rows(job, "SELECT * FROM resource_usage WHERE files IS NOT NULL LIMIT 1")[0]
        links = job.fds()
        assert row["descriptors"] == len(links)
        assert row["files"] == sum(link.startswith("/") for link in links)
        assert row["sockets"] == sum(link.startswith("socket:") for link in links) >= 7
        assert row["pipes"] == sum(link.startswith("pipe:") for link in links) >= 6
        assert 8 <= row["shared_mb"] < 16 and row["thread_id"] == job.pid
        if os.path.exists(f"/proc/{job.pid}/task/{job.pid}/children"):
            assert row["children"] == 3
        assert row["run_s"] > 0 and row["delay_s"] >= 0
        for child in subprocess.run(["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True,
                                    text=True).stdout.split():
            os.kill(int(child), 9)


def test_a_row_has_the_numbers_of_the_control_group():
    with jobs.python("import time; print('ready', flush=True); time.sleep(100)") as job:
        assert probe(job.pid, "inject").returncode == 0
        jobs.wait_until(lambda: newest(job), what="a row")
        row = newest(job)
        live = {r["name"]: r["value"] for r in rows(job, "SELECT name, value FROM system.cgroup")}
        limit = live.get("memory.max", live.get("memory.limit_in_bytes", "max"))
        if limit == "max" or int(limit) > 1 << 60:
            assert row["group_limit_mb"] is None
        else:
            assert row["group_limit_mb"] == int(limit) / 2**20
        used = live.get("memory.current", live.get("memory.usage_in_bytes"))
        assert (row["group_mb"] is None) == (used is None)
        assert (row["cpu_pressure_s"] is None) == (not os.path.exists("/proc/pressure/cpu"))


def test_many_descriptors_are_counted_and_looked_at_rarely():
    """A look at 900 descriptors takes a millisecond; the probe rests for 4000 times as long."""
    many = "import os, time; kept = [os.dup(0) for _ in range(900)]; print('ready', flush=True); time.sleep(100)"
    with jobs.python(many) as job:
        assert probe(job.pid, "inject").returncode == 0
        assert probe(job.pid, "probes", "start", "resource_usage", "interval=100ms").returncode == 0
        jobs.wait_until(lambda: rows(job, "SELECT count(*) AS n FROM resource_usage")[0]["n"] >= 12, what="rows")
        counted = rows(job, "SELECT count(files) AS n, count(*) AS all_rows FROM resource_usage")[0]
        assert 1 <= counted["n"] < counted["all_rows"]


def test_more_descriptors_than_one_look_takes_have_no_kinds():
    many = """
import os, resource, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4000) if hard != -1 else 4000, hard))
kept = [os.dup(0) for _ in range(1500)]
print('ready', flush=True); time.sleep(100)
"""
    with jobs.python(many) as job:
        assert probe(job.pid, "inject").returncode == 0
        jobs.wait_until(lambda: newest(job), what="a row")
        row = newest(job)
        assert row["files"] is None and row["descriptor_limit"] == 4000
        assert row["descriptors"] in (None, len(job.fds()))
