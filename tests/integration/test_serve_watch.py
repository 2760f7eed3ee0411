"""probing serve keeps watch: every process that it serves is recorded and archived. In a pid namespace of its own,
since it would record the jobs of other tests too."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from serve_kit import NEEDS_SERVE

pytestmark = [NEEDS_SERVE, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a pid namespace")]

INSIDE = """
import json, os, sys
from pathlib import Path
import jobs
from jobs import probe
from serve_kit import service
folder = Path(sys.argv[1])
os.environ.update(PROBING_ARCHIVE=str(folder / "archive"), PROBING_DIR=str(folder / "runs"))
(folder / "runs").mkdir()

def recorded(job):
    return [row for row in json.loads(probe("-t", job.pid, "record", "--list", "--json").stdout) if row["state"] == "recording"]

def sampled(job):
    return "train" in probe("flamegraph", "--from", job.pid, "-o", folder / "x.folded").stdout

with jobs.python() as one:
    with service(folder / "r", "--record", "20", "--watchdog", "60s", "--archive", "--retention", "1") as s:
        jobs.wait_until(lambda: recorded(one), 40, "a recording of the first")
        assert [row["rate"] for row in recorded(one)] == [20]
        with jobs.python() as two:
            jobs.wait_until(lambda: recorded(two) and sampled(one) and sampled(two), 40, "samples of both")
            live = [row["pid"] for row in json.loads(probe("list", "--json").stdout) if row["state"] != "dead"]
            assert {one.pid, two.pid} <= set(live) and not set(live) & {row["recorder"] for row in recorded(one) + recorded(two)}, live
            s.process.kill()
            s.process.wait()
            jobs.wait_until(lambda: not recorded(one) and not recorded(two), 40, "the end of the recorders")
            for each in (one, two):
                assert each.alive() and sampled(each)
    # The next service begins anew.
    with service(folder / "r", "--record", "20", "--archive") as s:
        jobs.wait_until(lambda: recorded(one), 40, "a recording by the next service")
    jobs.wait_until(lambda: not recorded(one), 40, "the end of it")
    kept = json.loads(probe("-t", one.pid, "record", "--list", "--json").stdout)
    assert kept and all(row["state"] == "ended" for row in kept), kept
    assert one.alive()
print("watched", flush=True)
"""


def test_all_processes_are_recorded_whenever_they_come_and_nothing_is_lost(tmp_path):
    done = subprocess.run(["unshare", "-fpm", "--kill-child", "sh", "-c", 'mount -t proc proc /proc && exec "$@"', "sh",
                           sys.executable, "-c", INSIDE, tmp_path],
                          env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parent.parent}"},
                          capture_output=True, text=True, timeout=150)
    assert done.stdout.endswith("watched\n"), done.stdout[-2000:] + done.stderr[-4000:]


def test_options_that_make_no_sense_are_refused():
    from jobs import probe
    for words in (["--record", "often"], ["--record", "0"], ["--watchdog", "60s"], ["--retention", "3"],
                  ["--record", "1", "--watchdog", "soon"]):
        done = probe("serve", *words)
        assert done.returncode == 2 and "--" in done.stderr, words
