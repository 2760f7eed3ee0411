"""A job some of whose ranks are in trouble: whatever a rank does, the others are shown, and it is named.

The ranks are real: one is stopped, agent and all; one stands in the middle of execve, with the kernel's locks of that
held; one has memory that nobody can read without waiting for ever, as with a file system that is gone.
"""
import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import jobs
import pytest
from jobs import probe
from serve_kit import NEEDS_SERVE, service

MARK = f"deadlines-{os.getpid()}"

CODE = """
import ctypes, fcntl, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def sleeping_thread():
    tid = []
    threading.Thread(target=lambda: (tid.append(threading.get_native_id()), time.sleep(1000)), daemon=True).start()
    while not tid or open("/proc/self/task/%d/syscall" % tid[0]).read().split()[0] == "running":
        time.sleep(0.01)
    time.sleep(0.1)
    return tid[0]

def exec_for_ever():
    # A tracer holds the second thread in its exit, and execve waits for that.
    tid, (r, w) = sleeping_thread(), os.pipe()
    if os.fork() == 0:
        libc.prctl(1, 9)  # ends with its parent
        assert libc.ptrace(0x4206, tid, None, ctypes.c_void_p(0x40)) == 0  # PTRACE_SEIZE, with PTRACE_O_TRACEEXIT
        os.write(w, b"x")
        time.sleep(1000)
    os.read(r, 1)
    print("ready", flush=True)
    os.execv("/bin/sleep", ["sleep", "1000"])

def hold_memory():
    # The page of the second thread's stack pointer goes to a userfaultfd that nobody serves.
    call = open("/proc/self/task/%d/syscall" % sleeping_thread()).read().split()
    page = int(call[-2], 16) & ~4095
    fd = libc.syscall(323 if os.uname().machine == "x86_64" else 282, os.O_CLOEXEC)
    if fd < 0:
        print("cannot ready", flush=True)
        time.sleep(1000)
    fcntl.ioctl(fd, 0xc018aa3f, bytearray(struct.pack("QQQ", 0xaa, 0, 0)))  # UFFDIO_API
    fcntl.ioctl(fd, 0xc020aa00, bytearray(struct.pack("QQQQ", page, 4096, 1, 0)))  # UFFDIO_REGISTER, missing pages
    assert libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(4096), 4) == 0
    kept.append(fd)

def waits_here():
    print("ready", flush=True)
    time.sleep(1000)

kept = []
if os.environ["RANK"] == "2":
    exec_for_ever()
if os.environ["RANK"] == "3":
    hold_memory()
waits_here()
"""


@pytest.fixture(scope="module")
def ranks():
    with ExitStack() as stack:
        started = [stack.enter_context(jobs.python(CODE, flags=("-X", MARK), env={**os.environ, "RANK": str(rank)}))
                   for rank in range(4)]
        if "cannot" in started[3].output:
            pytest.skip("this machine gives no userfaultfd (vm.unprivileged_userfaultfd, and not root)")
        assert probe("-t", started[1].pid, "inject").returncode == 0
        os.kill(started[1].pid, signal.SIGSTOP)
        yield started
        os.kill(started[1].pid, signal.SIGCONT)


def ask(*words):
    began = jobs.calm()
    done = probe("-t", MARK, "--all", *words)
    assert jobs.calm() - began < 20, done.stderr
    return done


def test_stacks_of_the_others_are_shown_and_the_one_that_hangs_is_named(ranks):
    done = ask("backtrace", "--native", "--json", "--timeout", "2")
    check_stacks(json.loads(done.stdout), ranks)
    assert done.returncode == 1 and f"rank 3: process {ranks[3].pid}: timed out: no answer within 2 s" in done.stderr


def check_stacks(processes, ranks):
    shown = {process["label"]: process for process in processes}
    assert {"rank 0", "rank 1", "rank 3"} <= set(shown) and "error" not in shown["rank 0"]
    for rank in ("rank 0", "rank 1"):
        assert "waits_here" in [frame["function"] for frame in shown[rank]["threads"][0]["frames"]]
    assert f"process {ranks[3].pid}: timed out: no answer within 2 s" in shown["rank 3"]["error"]
    assert shown["rank 3"]["threads"] == []


@NEEDS_SERVE
def test_the_service_answers_for_the_others_and_names_the_one_that_hangs(ranks, tmp_path):
    with service(tmp_path / "r") as served:
        status, _, body = served.ask(f"/api/v1/stacks?target={MARK}&all=true&native=true&timeout=2")
        assert status == 200
        check_stacks(json.loads(body), ranks)
        merged = served.json(f"/api/v1/stacks?target={MARK}&all=true&merge=true&native=true&timeout=2")
        assert [row["pid"] for row in merged if "error" in row] and any("waits_here" in str(row) for row in merged)


def test_a_query_has_the_rows_of_the_others(ranks):
    done = ask("query", "SELECT DISTINCT rank FROM python.backtrace", "--format", "json", "--timeout", "6")
    assert {0, 1} <= {row["rank"] for row in json.loads(done.stdout)}
    assert f"rank 3 (process {ranks[3].pid}) is missing in python.backtrace" in done.stderr
    assert "timed out" in done.stderr


@pytest.mark.parametrize("command", ["memory", "config"])
def test_what_does_not_need_that_memory_is_answered_for_all(command, ranks):
    done = ask(command, "--json")
    assert "timed out" not in done.stderr
    found = {row.get("label", row.get("target")) for row in json.loads(done.stdout)}
    assert {"rank 0", "rank 1", "rank 3"} <= found, (found, done.stderr)


def test_what_injects_reaches_the_others_and_gives_up_the_one_that_hangs(ranks):
    """inject has a process of its own for each target, config opens the sessions of all at once. One of the two waits
    for the process in execve without end, the other for its injection."""
    with ThreadPoolExecutor() as both:
        answers = list(both.map(lambda words: ask(*words, "--timeout", "1"),
                                [("inject",), ("config", "probing.sample_rate=0.5")]))
    assert [done.returncode for done in answers] == [1, 1]
    for command, done in zip(("inject", "config"), answers):
        assert re.search(rf"\[rank 2\] probing: {command}: .*process {ranks[2].pid}(: timed out: no answer within 6 s| "
                         rf"is under way)", done.stderr)
    assert any(f"process {ranks[2].pid}: timed out" in done.stderr for done in answers)
    (row,) = json.loads(probe("-t", ranks[0].pid, "config", "probing.sample_rate", "--json").stdout)
    assert row["value"] == "0.5"


def test_no_child_is_left_behind(ranks):
    left = [line for line in probe("list", "--json").stdout.splitlines() if str(jobs.PROGRAM) in line]
    assert not left
