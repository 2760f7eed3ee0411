"""pause: the main thread stops between two bytecodes, and a real nc talks to it in its frame."""
import os
import signal
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from prompt_kit import ASSIGNED, CHANGED, COUNTING, STEPPED, STEPS, Nc, address, goes_on, needs_nc
from every_python import EVERY, program

pytestmark = needs_nc
OLDEST_AND_NEWEST = pytest.mark.parametrize("python", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)


def is_paused(job):
    """Asked of the process from outside: pause again is refused."""
    return "paused already" in probe(job.pid, "pause").stderr


@pytest.fixture
def job():
    with jobs.python(COUNTING) as job:
        yield job


def to_train(nc):
    """The prompt, in the function train whatever the program was in."""
    if "(train) " not in nc.wait(") "):
        nc.send("return\n")
        nc.wait("(train) ")


def reach(nc, line, prompt="(train) "):
    for _ in range(12):
        if line in nc.ask("next", prompt):
            return
    raise AssertionError(f"no line {line}")


@EVERY
def test_a_local_is_assigned_and_used(python):
    with program(python, COUNTING) as job:
        done = probe(job.pid, "pause")
        assert done.stderr.startswith("paused at "), done.stderr
        with Nc(address(done)) as nc:
            assert "the main thread is stopped" in nc.wait("without a word\n")
            to_train(nc)
            assert nc.ask("step > 0 and rate == 0.1", "(train) ") == "True\n"
            assert nc.ask("[step - n for n in (step,)]", "(train) ") == "[0]\n"
            where = nc.ask("where", "(train) ")
            assert "<module>" in where and where.splitlines()[-1].startswith(">  0") and where.endswith(" train\n")
            before = int(nc.ask("!step", "(train) "))
            for _ in range(9):
                nc.ask("next", "(train) ")
            assert int(nc.ask("!step", "(train) ")) > before
            nc.send("stop = 'hand'\ncontinue\n")
            nc.end()
        # An unbuffered program writes its line in pieces.
        jobs.wait_until(lambda: "stopped by" in job.output and job.output.endswith("\n"), what="the end of the loop")
        assert "stopped by hand None True" in job.output, job.output


@EVERY
def test_steps(python):
    """Into a function, a generator, a coroutine, a callback of C and out of an exception; a local assigned in each is
    what the program uses."""
    with program(python, STEPS) as job:
        with Nc(address(probe(job.pid, "pause"))) as nc:
            nc.wait(") ")
            seen = []
            while not (STEPPED <= set(seen) and seen[-1] == "return seen") and len(seen) < 80:
                seen += [line[7:].strip() for line in nc.ask("step", ") ").splitlines() if line.startswith(">")]
                if seen and seen[-1] in ASSIGNED:
                    nc.ask(ASSIGNED[seen[-1]], ") ")
            assert STEPPED <= set(seen) <= {line.strip() for line in STEPS.splitlines()}, seen
            nc.send("continue\n")
            nc.end()
        jobs.wait_until(lambda: probe(job.pid, "eval", "changed").stdout == CHANGED, what="the program's use of them")
        assert probe(job.pid, "eval", "import sys; sys.gettrace()").stdout == ""
        assert job.alive() and job.output == "ready\n"


# The function of atexit runs after ours, which was registered later: by then no thread of ours is there, or about
# to end.
ENDING = """
import atexit, os, sys, time
def channels():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as name:
                found += [task] if name.read() == "probing-channel\\n" else []
        except OSError:
            pass
    return found
def last():
    until = time.time() + 30
    while channels() and time.time() < until:
        time.sleep(0.01)
    print("left" if channels() else "none is left", flush=True)
atexit.register(last)
done = False
print("ready", flush=True)
while not done:
    time.sleep(0.01)
sys.settrace(None)  # so that the step meets nothing more, as in threading._shutdown
"""


@EVERY
def test_the_end_does_not_wait_for_a_client_of_a_step(python):
    with program(python, ENDING) as job:
        with Nc(address(probe(job.pid, "pause"))) as nc:
            nc.wait("(<module>) ")
            nc.ask("done = True", "(<module>) ")
            nc.send("until 10000\n")
            nc.end()
        jobs.wait_until(lambda: not job.alive(), what="the end of the program")
        assert job.output == "ready\nnone is left\n", job.output


def test_a_client_that_vanishes_leaves_it_paused(job):
    command = address(probe(job.pid, "pause"))
    with Nc(command) as nc:
        nc.wait(") ")
        nc.send("note = 'kept'\n")
    with Nc(command) as nc:
        nc.wait(") ")
        assert is_paused(job)
        nc.send("1 +")
    with Nc(command) as nc:
        nc.wait(") ")
        with Nc(command) as second:  # not before: the first that is there is served first
            nc.send("quit\n")
            nc.end()
            second.end()
    goes_on(job)
    assert "not paused" in probe(job.pid, "pause", "--continue").stderr
    assert job.output == "ready\n"


def test_it_goes_on_by_itself(job):
    command = address(probe(job.pid, "pause", "--limit", "400ms"))
    assert is_paused(job)
    goes_on(job)
    command = address(probe(job.pid, "pause", "--limit", "400ms"))
    with Nc(command) as nc:  # a client that says nothing
        nc.wait(") ")
        goes_on(job)
        nc.end()
    told = probe(job.pid, "listen")
    with Nc(address(told)) as nc:
        nc.wait(">>> ")
        assert nc.ask("notes()").count("ended after 0.4 s") == 2
    assert job.output == "ready\n"


def test_it_is_let_go(job):
    for release in (("pause", "--continue"), ("detach",)):
        address(probe(job.pid, "pause"))
        assert probe(job.pid, *release).returncode == 0
        goes_on(job)
        with Nc(address(probe(job.pid, "pause"))) as nc:
            nc.wait(") ")
            assert probe(job.pid, *release).returncode == 0
            goes_on(job)
            nc.end()
    assert job.output == "ready\n"


def test_a_main_thread_in_c_is_named():
    code = ("import threading\ndef wait():\n    threading.Lock().acquire() or threading.Lock()\n"
            "    lock = threading.Lock(); lock.acquire()\n"
            "    print('ready', flush=True)\n    lock.acquire()\nwait()\n")
    with jobs.python(code) as job:
        assert probe(job.pid, "inject").returncode == 0  # within a time of its own
        began = jobs.calm()
        done = probe(job.pid, "pause", "--timeout", "500ms")
        assert jobs.calm() - began < 5
        assert done.returncode == 1 and "stays in C" in done.stderr and "wait" in done.stderr and ":6" in done.stderr
        assert job.alive()


@OLDEST_AND_NEWEST
def test_a_trace_function_of_the_program_stays(python):
    code = COUNTING.replace("train(Model())", "def trace(*_): return None\nsys.settrace(trace)\ntrain(Model())")
    with jobs.python(code, interpreter=python) as job:
        with Nc(address(probe(job.pid, "pause"))) as nc:
            nc.wait(") ")
            assert "trace function of its own" in nc.ask("next", ") ")
            nc.send("continue\n")
            nc.end()
        goes_on(job)


@OLDEST_AND_NEWEST
def test_signal_handlers_of_the_program_run(python):
    code = COUNTING.replace("train(Model())", """
import signal
class Late(Exception): pass
def late(*_): raise Late()
signal.signal(signal.SIGALRM, late)
try:
    train(Model())
except Late:
    print("late", sys.gettrace(), flush=True)
""")
    with jobs.python(code, interpreter=python) as job:
        address(probe(job.pid, "pause"))
        os.kill(job.pid, signal.SIGALRM)
        if python == INTERPRETERS[0]:  # 3.6 calls handlers as it calls us: one after the other
            assert probe(job.pid, "pause", "--continue").returncode == 0
        jobs.wait_until(lambda: "late None" in job.output, what="what its handler raised")
