"""Ctrl-C, and what other signal handlers of the program raise, while its main thread is held at a prompt: the program
gets it, and nothing of ours."""
import os
import re
import signal
import socket
import sys
import time

import jobs
import pytest
from jobs import probe
from every_python import SOME, program, version_of_any

PROGRAM = """
import signal, sys, time, traceback
class Preempted(Exception): pass
def preempt(number, frame):
    raise Preempted(number)
signal.signal(signal.SIGTERM, preempt)
signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
signal.siginterrupt(signal.SIGTERM, False)
seen = []
def work():
    print("ready", flush=True)
    for n in range(2000):
        time.sleep(0.005)
        n += 1
    return "ran to the end"
try:
    end = work()
except BaseException as error:
    end = type(error).__name__
    trace = error.__traceback__
    while trace is not None:
        if "probing>" in trace.tb_frame.f_code.co_filename: end += " with a frame of ours: %s %d %s" % (trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
kept = signal.getsignal(signal.SIGTERM) is preempt and signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("END", end, kept, seen, flush=True)
"""
TYPED = {"waiting": None, "runs": "for i in range(1000): __import__('time').sleep(0.01)",
         "catches": "exec('try:\\n for i in range(300): __import__(\"time\").sleep(0.01)\\nexcept "
                    "BaseException: pass')", "raises": "raise KeyboardInterrupt"}


def connect(command):
    """A client of the address that a command printed."""
    said = command.stdout + command.stderr
    found = re.search(r"127\.0\.0\.1[ :](\d+)", said)
    assert found, said
    client = socket.create_connection(("127.0.0.1", int(found.group(1))), timeout=20)
    return client


def read_until(client, end):
    found = b""
    while end not in found:
        piece = client.recv(65536)
        assert piece, found
        found += piece
    return found


def end_of(job):
    jobs.wait_until(lambda: "END" in job.output, seconds=20, what="the end")
    return re.search("END (.*)", job.output).group(1)


@SOME
@pytest.mark.parametrize("held", ["pause", "break"])
@pytest.mark.parametrize("typed", TYPED)
def test_the_program_gets_it(python, held, typed):
    if version_of_any(python) == (3, 6) and held == "pause":
        pytest.skip("3.6 runs no handler while a pending call does: the signal comes after the pause")
    number, name = ((signal.SIGINT, "KeyboardInterrupt") if typed in ("waiting", "raises")
                    else (signal.SIGTERM, "Preempted"))
    with program(python, PROGRAM) as job:
        script = getattr(job, "script", None) or re.search(r"(\S+\.py)",
                                                           " ".join(open(f"/proc/{job.pid}/cmdline").read().split(
                                                               "\0"))).group(1)
        line = PROGRAM.splitlines().index("        n += 1") + 1
        done = probe("-t", job.pid, "pause", "--limit",
                     "30s") if held == "pause" else probe("-t", job.pid, "break", f"{os.path.basename(script)}:{line}",
                                                          "--limit", "30s")
        assert done.returncode == 0, done.stderr
        with connect(done) as client:
            read_until(client, b"(work) ")
            os.kill(job.pid, signal.SIGUSR2)  # a handler that raises nothing: the program is held on
            if TYPED[typed]:
                client.sendall(TYPED[typed].encode() + b"\n")
                if typed == "raises":
                    assert b"KeyboardInterrupt" in read_until(client, b"(work) ")
            time.sleep(0.3)
            assert "END" not in job.output
            os.kill(job.pid, number)
            assert end_of(job) == f"{name} True [{int(signal.SIGUSR2)}]"


def test_it_ends_a_thread_that_catch_holds():
    code = PROGRAM.replace('return "ran to the end"',
                           '').replace("range(2000)",
                                       "range(100)").replace("try:\n    end = work()", "work()\n1/0\ntry: pass")
    with program(sys.executable, code) as job:
        done = probe("-t", job.pid, "catch", "--limit", "30s")
        jobs.wait_until(lambda: "ZeroDivisionError" in job.output, what="the failure")
        with connect(done) as client:
            read_until(client, b"(<module>) ")
            before = job.output
            os.kill(job.pid, signal.SIGINT)
            assert job.process.wait(10) == 1
            assert job.output == before
