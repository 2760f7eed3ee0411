"""What tests of catch share: programs that fail, and the rows of their errors."""
import json
import os
import signal

import builds
from jobs import probe


def rows(job, sql):
    """Also after it has died, in a root whose namespaces have gone with it: its run is in the root's files."""
    target, env = job.pid, None
    if hasattr(job, "root") and not job.alive():
        target, env = job.run, {**os.environ, "PROBING_DIR": os.path.realpath(job.root / "dev/shm")}
    done = probe("-t", target, "query", "--format", "tsv", sql, env=env)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()[1:]]


def let_fail(job):
    if hasattr(job, "root"):
        listed = json.loads(probe("list", "--json").stdout)
        job.run = "1@" + next(row["id"] for row in listed if row["pid"] == job.pid).partition("@")[2]
    os.kill(job.pid, signal.SIGUSR1)


def status_of_an_error(python):
    return 255 if python in builds.FREE_THREADED else 1  # the launcher that these builds come in ends so


def handled(job):
    """The signals that it has handlers for, as bits."""
    with open(f"/proc/{job.pid}/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
