"""Tests for every CPython there is: those of this machine, 3.14 and 3.15 in a root, and free-threaded builds."""
import contextlib
import os
import re
import time

import builds
import jobs
import pytest
import roots
from interpreters import INTERPRETERS, interpreter_id, version_of
from jobs import probe

NEWER = [path for path in roots.INTERPRETERS["sid"]
         if os.path.basename(path) not in {"python%d.%d" % version_of(p)[:2] for p in INTERPRETERS}]
PYTHONS = [*INTERPRETERS, *NEWER, *builds.FREE_THREADED]
# The oldest, the newest, the newest of all and one without a GIL; every one in the long form.
FEW = PYTHONS if os.environ.get("PROBING_SOAK") else [INTERPRETERS[0], INTERPRETERS[-1], *NEWER[-1:],
                                                      builds.FREE_THREADED[-1]]


def name_of(python):
    return python if python.startswith("cp") else os.path.basename(
        python) + "-root" if python in NEWER else interpreter_id(python)


def version_of_any(python):
    """(3, 15) of any of them."""
    digits = re.search(r"3\.?(\d+)", name_of(python)).group(1)
    return 3, int(digits)


EVERY = pytest.mark.parametrize("python", PYTHONS, ids=name_of)
SOME = pytest.mark.parametrize("python", FEW, ids=name_of)


@contextlib.contextmanager
def program(python, code, ready="ready", env=None):
    """A program for the length of a block, whatever has to be done to start it in that interpreter."""
    env = {"PYTHONUNBUFFERED": "1", **(env or {})}
    if python not in NEWER and python not in builds.FREE_THREADED:
        with jobs.python(code, interpreter=python, ready=ready, env=env) as job:
            yield job
        return
    name = f"harm-{os.getpid()}-{time.monotonic_ns()}.py"
    script = roots.path("sid") / "tmp" / name if python in NEWER else builds.path(python) / name
    # these ignore PYTHONUNBUFFERED; lines keep their numbers where the first is empty
    if python in builds.FREE_THREADED:
        code = "import sys; sys.stdout.reconfigure(line_buffering=True)" + ("" if code.startswith(
            "\n") else "\n") + code
    script.write_text(code)
    try:
        if python in NEWER:
            with roots.start("sid", python, f"/tmp/{name}", env=env) as target:
                if ready:
                    target.wait_for(ready)
                target.script = f"/tmp/{name}"
                yield target
        else:
            with jobs.start(builds.path(python) / "trainer", script, ready=ready, env=env) as job:
                job.script = str(script)
                yield job
    finally:
        script.unlink()


def evaluate(job, text, *options, expect=None):
    done = probe(job.pid, "eval", text, *options)
    assert job.alive(), f"the program ended after eval {text!r}:\n{job.output[-2000:]}"
    if expect is not None:
        assert (done.stdout, done.returncode) == (expect, 0), done.stderr
    return done


def has_locals(python):
    return python not in builds.FREE_THREADED
