"""catch: uncaught exceptions and fatal signals leave their scene, and the program dies as it would have died."""
import os
import signal
import sys

import builds
import jobs
from catch_kit import handled, let_fail, rows, status_of_an_error
from every_python import EVERY, NEWER, PYTHONS, SOME, program, version_of_any
from jobs import probe
from prompt_kit import Nc, address, needs_nc

PROGRAM = """
import os, signal, sys, threading, time
def fail(how, password="hunter2"):
    deep = [1, {"a": 2}]
    if how == "segv":
        try: import ctypes
        except ImportError: os.kill(os.getpid(), signal.SIGSEGV)  # a static build
        else: ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGFPE)
        time.sleep(10)
    raise ValueError("boom")
def other():
    while True:
        time.sleep(0.1)
threading.Thread(target=other, name="other", daemon=True).start()
go = []
signal.signal(signal.SIGUSR1, lambda *_: go.append(1))
BEFORE
print("ready", flush=True)
while not go:
    time.sleep(0.005)
WORK
"""


def start(python, work, before=""):
    return program(python, PROGRAM.replace("WORK", work).replace("BEFORE", before))


SIGNALS = [("segv", signal.SIGSEGV), ("abort", signal.SIGABRT), ("kill", signal.SIGFPE)]


@EVERY
def test_a_fatal_signal(python):
    """Python and native frames with locals; and the process dies of that signal."""
    # In a root it is process 1, which the kernel lets die of a fault alone.
    how, number = SIGNALS[0 if python in NEWER else PYTHONS.index(python) % len(SIGNALS)]
    with start(python, f"fail({how!r})") as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == -number
        assert rows(job, "SELECT kind, type, thread FROM python.exceptions") == [["signal", number.name, "MainThread"]]
        found = rows(job, "SELECT language, function, locals FROM python.crash_frames WHERE failed ORDER BY depth")
        assert "native" in {row[0] for row in found}
        locals_of = next(row[2] for row in found if row[1] == "fail")
        assert f"how = '{how}'" in locals_of and "deep = [1, {" in locals_of and "hunter2" not in locals_of
        assert rows(job, "SELECT count(*) FROM python.crash_frames WHERE function = 'other' AND NOT failed") == [["1"]]
        assert job.output == "ready\n"


@EVERY
def test_an_exception_in_a_thread_and_in_the_main_thread(python):
    work = "t = threading.Thread(target=fail, args=('quietly',), name='producer'); t.start(); t.join(); fail('loudly')"
    with start(python, work) as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == status_of_an_error(python)
        assert rows(job, "SELECT type, message, thread, function FROM python.exceptions ORDER BY id") == [
            ["ValueError", "boom", "producer", "fail"], ["ValueError", "boom", "MainThread", "fail"]]
        found = rows(job, "SELECT locals FROM python.crash_frames WHERE failed AND function = 'fail' ORDER BY id")
        assert ["how = 'quietly'" in found[0][0], "how = 'loudly'" in found[1][0]] == [True, True], found
        assert "hunter2" not in str(found)
        assert job.output.count("ValueError: boom") == 2 and "probing:" not in job.output


@needs_nc
@EVERY
def test_the_failing_frame_is_served(python):
    with start(python, "fail('here')") as job:
        command = address(probe("-t", job.pid, "catch"))
        let_fail(job)
        jobs.wait_until(lambda: "held by `catch`" in probe("-t", job.pid, "backtrace").stdout, what="the failure")
        with Nc(command) as nc:
            assert "ValueError ended thread MainThread" in nc.wait("(fail) ")
            assert nc.ask("how, deep, error", "(fail) ") == "('here', [1, {'a': 2}], ValueError('boom'%s))\n" % (
                "," if version_of_any(python) == (3, 6) else "")
            assert "cannot go on" in nc.ask("next", "(fail) ")
            nc.ask("up", "(<module>) ")
            nc.send("continue\n")
            nc.end()
        assert job.process.wait(20) == status_of_an_error(python)


@SOME
def test_faulthandler_before_and_after_it(python):
    """Its traceback is printed once, and the process dies of the signal."""
    for before, work in (("import faulthandler; faulthandler.enable()", "fail('segv')"),
                         ("", "import faulthandler; faulthandler.enable(); fail('segv')")):
        with start(python, work, before) as job:
            assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
            let_fail(job)
            assert job.process.wait(20) == -signal.SIGSEGV
            assert job.output.count("Fatal Python error: Segmentation fault") == 1, job.output
            assert rows(job, "SELECT count(*) FROM python.exceptions") == [["1"]]


def test_it_is_given_back():
    code = ("import sys, threading; (sys.excepthook is sys.__excepthook__, threading.excepthook is "
            "threading.__excepthook__)")

    with start(sys.executable, "pass") as job:
        probe("-t", job.pid, "inject")
        before = handled(job)
        for release in (("catch", "--stop"), ("detach",)):
            assert probe("-t", job.pid, "inject", "-c").returncode == 0
            assert handled(job) != before and probe("-t", job.pid, "eval", code).stdout == "(False, False)\n"
            assert probe("-t", job.pid, *release).returncode == 0
            assert handled(job) == before
            jobs.wait_until(lambda: "True, True" in probe("-t", job.pid, "eval", code).stdout, what="the hooks")
        assert "not on" in probe("-t", job.pid, "catch", "--stop").stderr


def test_a_child_of_fork_dies_as_ever():
    work = "pid = os.fork()\nif pid == 0: os.abort()\nprint(os.waitpid(pid, 0)[1] & 127, flush=True)"
    with start(sys.executable, work) as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == 0
        assert job.output.split() == ["ready", str(int(signal.SIGABRT))]


@SOME
def test_hooks_of_the_program_run_as_ever(python):
    """Those that were there, and one that is set later and calls what it found."""
    before = """
def loud(kind, error, trace): print("loud", kind.__name__, error, trace.tb_frame.f_code.co_name, flush=True)
sys.excepthook = loud
if hasattr(threading, "excepthook"):
    threading.excepthook = lambda args: print("thread", args.exc_type.__name__, args.thread.name, flush=True)
"""
    work = """
found = sys.excepthook
def later(*words):
    print("later", flush=True)
    found(*words)
sys.excepthook = later
thread = threading.Thread(target=fail, args=("quietly",), name="producer")
thread.start()
thread.join()
fail("loudly")
"""
    with start(python, work, before) as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == status_of_an_error(python)
        # the launcher's frame is the first
        loud = f"loud ValueError boom {'run' if python in builds.FREE_THREADED else '<module>'}"
        assert job.output.splitlines()[-2:] == ["later", loud]
        if version_of_any(python) >= (3, 8):
            assert job.output.splitlines() == ["ready", "thread ValueError producer", "later", loud]
        assert rows(job, "SELECT thread FROM python.exceptions ORDER BY id") == [["producer"], ["MainThread"]]


def test_a_producer_that_died_silently():
    """No traceback is printed, and the consumer only sees that no item comes: the table has the exception."""
    before = "threading.excepthook = lambda args: None"
    work = """
import queue
items = queue.Queue()
def produce():
    for n in range(3):
        items.put(10 // (1 - n))
threading.Thread(target=produce, name="producer", daemon=True).start()
got = []
try:
    while True:
        got.append(items.get(timeout=1))
except queue.Empty:
    print("got", got, flush=True)
"""
    with start(sys.executable, work, before) as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == 0
        assert job.output == "ready\ngot [10]\n"
        assert rows(job,
                    "SELECT type, thread, function FROM python.exceptions") == [[
                        "ZeroDivisionError", "producer", "produce"]]
        assert rows(job, "SELECT locals FROM python.crash_frames WHERE failed AND depth = 0") == [["n = 1"]]


def test_a_prompt_of_the_programs_own_is_not_held():
    """It calls sys.excepthook for what was typed, and goes on."""
    work = "import code\nconsole = code.InteractiveConsole()\nconsole.push('1/0')\nprint('goes on', flush=True)"
    with start(sys.executable, work) as job:
        assert probe("-t", job.pid, "catch").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == 0
        assert "ZeroDivisionError" in job.output and job.output.endswith("goes on\n") and "probing:" not in job.output
        assert rows(job, "SELECT count(*) FROM python.exceptions") == [["0"]]


TENSORS = """
import time, torch
def fail():
    loss = torch.tensor(1.25, requires_grad=True)
    steps = torch.tensor(7)
    small = torch.tensor([[1.0, float("nan")], [-2.5, 3.0]])
    large = torch.ones(100, 1000)
    empty, sparse = torch.ones(0, 2), torch.eye(2).to_sparse()
    parts = [loss, small]
    raise ValueError("boom")
import os, signal
go = []
signal.signal(signal.SIGUSR1, lambda *_: go.append(1))
print("ready", flush=True)
while not go:
    time.sleep(0.005)
fail()
"""


def test_numbers_and_ranges_of_tensors_are_in_the_scene(needs_torch):
    with jobs.python(TENSORS, ready_seconds=120) as job:
        assert probe(job.pid, "catch", "--no-prompt").returncode == 0
        os.kill(job.pid, signal.SIGUSR1)
        job.process.wait(60)
        (text,) = [row["locals"] for row in jobs.rows(job, "SELECT locals FROM python.crash_frames WHERE "
                                                           "function = 'fail'")]
        assert dict(line.split(" = ", 1) for line in text.splitlines()) == {
            "loss": "<torch.Tensor () float32 cpu: 1.25>", "steps": "<torch.Tensor () int64 cpu: 7>",
            "small": "<torch.Tensor (2, 2) float32 cpu: -2.5 to 3, 1 NaN>",
            "large": "<torch.Tensor (100, 1000) float32 cpu>",
            "empty": "<torch.Tensor (0, 2) float32 cpu>", "sparse": "<torch.Tensor>",
            "parts": "[<torch.Tensor () float32 cpu: 1.25>, <torch.Tensor (2, 2) float32 cpu: -2.5 to 3, 1 NaN>]"}, text
