"""execute --thread main, and print_stack(): code and stacks of the program's own thread."""
import os
import re
import signal
import subprocess
import time

import jobs
import pytest
from jobs import probe
from every_python import SOME, evaluate, program, version_of_any

PROGRAM = """
import signal, sys, threading, time
kept = threading.local()
kept.device = 3
class Preempted(Exception): pass
def preempt(number, frame): raise Preempted(number)
signal.signal(signal.SIGTERM, preempt)
def inner(n):
    time.sleep(0.005)
    return n + 1
def train():
    n = 0
    while not stop: n = inner(n)
    return "stopped"
stop = []
def other():
    while not stop: time.sleep(0.01)
threading.Thread(target=other, name="other", daemon=True).start()
print("ready", flush=True)
try: end = train()
except BaseException as error:
    end, trace = type(error).__name__, error.__traceback__
    while trace is not None:
        end += " " + trace.tb_frame.f_code.co_name
        trace = trace.tb_next
print("END", end, signal.getsignal(signal.SIGTERM) is preempt, signal.getsignal(signal.SIGINT) is signal.default_int_handler, sys.stdout is sys.__stdout__, flush=True)
"""


@SOME
def test_the_stack_is_that_of_the_program(python):
    with program(python, PROGRAM) as job:
        for words in (["import traceback;traceback.print_stack()"], ["from traceback import print_stack\n"
                                                                     "print_stack()"],
                      ["--thread", "main", "import traceback; traceback.print_stack()"]):
            done = probe("-t", job.pid, "execute", *words)
            assert done.returncode == 0 and done.stdout == "", done.stderr
            names = re.findall(r", in (\S+)", done.stderr)
            assert "train" in names and names.index("<module>") < names.index("train"), done.stderr
            assert "<probing>" not in done.stderr, done.stderr
            assert words[0] != "--thread" or names[-1] == "<module>" and '"<execute>", line 1' in done.stderr
            assert words[0] == "--thread" or "while not stop: n = inner(n)" in done.stderr, done.stderr
        # as ever: our own line
        assert "_elsewhere" not in probe("-t", job.pid, "eval", "import traceback; traceback.print_stack(); 1").stderr
        evaluate(job, "stop.append(1)")
        jobs.wait_until(lambda: "END" in job.output, what="the end")
        assert job.output == "ready\nEND stopped True True True\n"


@SOME
def test_code_runs_in_the_main_thread(python):
    with program(python, PROGRAM) as job:
        def run(code, *options):
            return probe("-t", job.pid, "execute", "--thread", *(options or ["main"]), code)

        assert run("import threading; print(kept.device); threading.current_thread() is "
                   "threading.main_thread()").stdout == "3\nTrue\n"
        assert run("kept.device", str(job.pid) if not hasattr(job, "root") else "MainThread").stdout == "3\n"
        assert probe("-t", job.pid, "execute", "kept.device").returncode == 1  # in a thread of ours
        failed = run("def f(): 1/0\nf()")
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert '"<execute>", line 1, in f' in failed.stderr
        assert "ZeroDivisionError" in failed.stderr
        assert "<probing>" not in failed.stderr
        for code in ("raise SystemExit(5)", "import sys; sys.exit()", "raise KeyboardInterrupt", "1 +"):
            assert run(code).returncode == 1, code
        assert len(run("for i in range(200000): print(i)").stdout.split()) >= 1000
        for name, says in (("nobody", "there is no thread nobody; there are MainThread, other"),
                           ("other", "in the main thread only")):
            refused = run("1", name)
            assert refused.returncode == 1, refused.stderr
            assert says in refused.stderr, refused.stderr
            assert refused.stderr.count("\n") == 1, refused.stderr
        assert probe("-t", job.pid, "pause", "--limit", "20s").returncode == 0
        refused = run("1")
        assert refused.returncode == 1, refused.stderr
        assert "the main thread is held" in refused.stderr, refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert probe("-t", job.pid, "continue").returncode == 0
        began = jobs.calm()
        late = probe("-t", job.pid, "execute", "--timeout", "1s", "--thread", "main",
                     "import time\nwhile True: time.sleep(0.01)")
        assert late.returncode == 1 and jobs.calm() - began < 8, late.stderr
        evaluate(job, "stop.append(1)")
        jobs.wait_until(lambda: "END" in job.output, what="the end")
        assert job.output == "ready\nEND stopped True True True\n"


@SOME
def test_a_signal_of_the_program_is_the_programs(python):
    """One that comes while the code runs, even where the code catches all."""
    if version_of_any(python) == (3, 6):
        pytest.skip("3.6 runs no handler while a pending call does: the signal comes afterwards")
    code = "import time\ntry:\n  for i in range(300): time.sleep(0.01)\nexcept BaseException: pass\nprint('done')"
    for number, name in ((signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Preempted")):
        with program(python, PROGRAM) as job:
            probe("-t", job.pid, "inject")
            running = subprocess.Popen([jobs.PROGRAM, "-t", str(job.pid), "execute", "--thread", "main", code],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            jobs.wait_until(lambda: "<execute>" in probe("-t", job.pid, "backtrace").stdout, what="the code")
            os.kill(job.pid, number)
            jobs.wait_until(lambda: "END" in job.output, what="the end")
            assert re.search(r"END %s <module> train( inner)?( preempt)? True True" % name, job.output), job.output
            running.communicate(timeout=20)


def test_a_thread_in_c_code_is_an_error():
    code = ("import threading\nlock = threading.Lock(); lock.acquire()\ndef wait():\n    lock.acquire()\n"
            "print('ready', flush=True)\nwait()\n")
    with jobs.python(code) as job:
        probe("-t", job.pid, "inject")
        began = jobs.calm()
        done = probe("-t", job.pid, "execute", "--timeout", "1s", "--thread", "main", "print('never')")
        assert done.returncode == 1 and jobs.calm() - began < 5
        assert re.search(r"did not come to a safe point within 0.75 s: it stays in C code, called at .*:4 wait\n",
                         done.stderr)
        assert done.stderr.count("\n") == 1
        # What hangs is what one asks print_stack about: it needs no safe point.
        assert ", in wait" in probe("-t", job.pid, "execute", "import traceback;traceback.print_stack()").stderr
        probe("-t", job.pid, "eval", "lock.release()")
        assert job.process.wait(10) == 0 and job.output == "ready\n"
