"""pause --all: every Python thread stops between two bytecodes, can be looked into, and goes on as if nothing had
been."""
import re
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from prompt_kit import Nc, address, needs_nc
from every_python import EVERY, program

pytestmark = needs_nc
OLDEST_AND_NEWEST = pytest.mark.parametrize("python", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)

# What each thread computes shows at the end whether it lost or repeated anything.
PROGRAM = """
import sys, threading, time
counts = [0, 0]
held, never = threading.Lock(), threading.Lock()
never.acquire()
def work():
    n, total, stop = 0, 0, False
    while not stop:
        n += 1
        total += n
        counts[0] = n
    print("work", stop, total == n * (n + 1) // 2, sys.gettrace(), flush=True)
def nap():
    n = 0
    while True:
        held.acquire()
        n += 1
        time.sleep(0.002)
        counts[1] += 1
        held.release()
def wait():
    never.acquire()
def train():
    step = 0
    print("ready", flush=True)
    while True:
        step += 1
        time.sleep(0.002)
for function in (work, nap, wait):
    threading.Thread(target=function, name=function.__name__ + "-thread", daemon=True).start()
train()
"""


BUSY = PROGRAM.replace("(work, nap, wait)", "(work, nap)")  # none that stays in C, which would be waited for


def counts(job):
    return [int(n) for n in re.findall(r"\d+", probe(job.pid, "eval", "counts").stdout)]


def move(job):
    """Both threads go on."""
    first = counts(job)
    jobs.wait_until(lambda: all(now > then for now, then in zip(counts(job), first)), what=f"more than {first}")


def number_of(nc, thread, prompt):
    """Its number and state, as `threads` lists it."""
    listed = nc.ask("threads", prompt)
    found = re.search(rf"^[> ] +(\d+)  {thread} +(stopped|in C) ", listed, re.M)
    assert found, listed
    return int(found.group(1)), found.group(2)


@EVERY
def test_every_thread_stands_still(python):
    with program(python, PROGRAM) as job:
        done = probe(job.pid, "pause", "--all")
        with Nc(address(done)) as nc:
            prompt = "(train) "
            nc.wait(prompt)
            assert re.search(r"not stopped: wait-thread: it stays in C code, called at \S+:\d+ wait",
                             done.stderr), done.stderr
            assert "work-thread" not in done.stderr
            first = nc.ask("counts[:]", prompt)
            time.sleep(0.2)
            assert nc.ask("counts[:]", prompt) == first
            assert number_of(nc, "MainThread", prompt) == (0, "stopped")
            assert number_of(nc, "wait-thread", prompt)[1] == "in C"
            number, state = number_of(nc, "work-thread", prompt)
            assert state == "stopped"
            assert " work\n" in nc.ask(f"thread {number}", "(work) ")
            n = int(nc.ask("!n", "(work) "))
            assert abs(n - int(first.strip("[]\n").split(",")[0])) <= 1
            assert "only the main thread" in nc.ask("next", "(work) ")
            assert "threading.py" in nc.ask("where", "(work) ")
            nc.ask("stop = 'hand'", "(work) ")
            assert nc.ask("stop", "(work) ") == "'hand'\n"
            nc.ask("thread 0", "(train) ")
            before = int(nc.ask("!step", "(train) "))
            for _ in range(6):
                nc.ask("next", "(train) ")
            assert int(nc.ask("!step", "(train) ")) > before and nc.ask("counts[:]", "(train) ") == first
            nc.send("continue\n")
            nc.end()
        jobs.wait_until(lambda: "work" in job.output and job.output.endswith("\n"),
                        what="the thread that was told to end")
        assert job.output == "ready\nwork hand True None\n"
        first = counts(job)[1]
        jobs.wait_until(lambda: counts(job)[1] > first, what="the other thread")
        used = probe(job.pid, "eval", "[__import__('sys').monitoring.get_tool(n) for n in range(6)]")
        assert used.returncode or used.stdout == "[None, None, None, None, None, None]\n"


@OLDEST_AND_NEWEST
def test_all_are_let_go(python):
    """By the limit without a client, by another client than the one that vanished, from outside, by detach."""
    with jobs.python(BUSY, interpreter=python) as job:
        address(probe(job.pid, "pause", "--all", "--limit", "300ms"))
        move(job)
        command = address(probe(job.pid, "pause", "--all"))
        with Nc(command) as nc:
            nc.wait(") ")
        first = counts(job)
        assert "paused already" in probe(job.pid, "pause", "--all").stderr and counts(job) == first
        with Nc(command) as nc:
            nc.wait(") ")
            nc.send("quit\n")
            nc.end()
        move(job)
        for release in (("pause", "--continue"), ("detach",)):
            with Nc(address(probe(job.pid, "pause", "--all"))) as nc:
                nc.wait(") ")
                assert probe(job.pid, *release).returncode == 0
                nc.end()
            move(job)
        assert job.output == "ready\n"


@OLDEST_AND_NEWEST
def test_code_that_waits_for_a_stopped_thread(python):
    """The thread goes on as soon as somebody lets all go, and the code with it."""
    with jobs.python(BUSY, interpreter=python) as job:
        for _ in range(30):
            with Nc(address(probe(job.pid, "pause", "--all"))) as nc:
                nc.wait("(train) ")
                locked = nc.ask("held.locked()", "(train) ") == "True\n"
                if locked:
                    nc.send("held.acquire() and held.release()\n")
                    time.sleep(0.2)
                    assert probe(job.pid, "pause", "--continue").returncode == 0
                else:
                    nc.send("continue\n")
                nc.end()
            if locked:
                break
        assert locked
        move(job)
        assert job.output == "ready\n"


@OLDEST_AND_NEWEST
def test_rounds_under_load(python):
    code = PROGRAM.replace("(work, nap, wait)", "(work, work, work, nap)")
    with jobs.python(code, interpreter=python) as job:
        for _ in range(12):
            address(probe(job.pid, "pause", "--all", "--timeout", "5s"))
            assert probe(job.pid, "pause", "--continue").returncode == 0
        move(job)
        assert job.output == "ready\n"


@pytest.mark.parametrize("python", [p for p in INTERPRETERS if "3.11" in interpreter_id(p)][:1] + [INTERPRETERS[-1]],
                         ids=interpreter_id)
def test_a_thread_with_a_trace_function_keeps_it(python):
    code = PROGRAM.replace("def work():\n", "def trace(frame, event, argument): return None\ndef work():\n"
                                            "    sys.settrace(trace)\n")
    with jobs.python(code, interpreter=python) as job:
        done = probe(job.pid, "pause", "--all")
        with Nc(address(done)) as nc:
            nc.wait("(train) ")
            state = number_of(nc, "work-thread", "(train) ")[1]
            nc.send("continue\n")
            nc.end()
        assert (state == "in C") == ("work-thread: it has a trace function of its own" in done.stderr), done.stderr
        move(job)
