"""What each thread waits for, as data: `backtrace --json` has it for every thread, with the holder."""
import fcntl
import json
import os
import signal
import time

import jobs
import pytest

PRELUDE = """
import ctypes, fcntl, os, select, socket, subprocess, sys, threading, time
def thread(name, target):
    t = threading.Thread(target=target, name=name, daemon=True)
    t.start()
    return t
"""


def waits(pid):
    """Thread name -> what it waits for."""
    done = jobs.probe("-t", pid, "backtrace", "--json")
    assert done.returncode == 0, done.stderr
    return {t["name"]: dict(t["waits_for"] or {}, tid=t["tid"]) for t in json.loads(done.stdout)[0]["threads"]}


def wait_of(pid, name, kind, *fields):
    """The wait of that thread, once it is of that kind and has these fields: on a busy machine a holder is not always
    found."""
    seen = {}

    def there():
        seen.clear()
        seen.update(waits(pid))
        wait = seen.get(name, {})
        return wait.get("kind") == kind and all(field in wait for field in fields)

    jobs.wait_until(there, what=f"{name} waits for {kind}")
    return seen[name], seen


def start(code):
    return jobs.python(PRELUDE + "print('ready', flush=True)\n" + code)


def test_a_python_lock_names_the_thread_that_holds_it():
    code = """
lock, other = threading.Lock(), threading.Lock()
barrier = threading.Barrier(2)
def one():
    with lock:
        barrier.wait()
        with other: pass
def two():
    with other:
        barrier.wait()
        with lock: pass
thread("one", one); thread("two", two)
time.sleep(600)
"""
    with start(code) as job:
        one, seen = wait_of(job.pid, "one", "python lock")
        assert one["holder_tid"] == seen["two"]["tid"] and one["holder_pid"] == job.pid and one["object"]
        assert seen["two"]["holder_tid"] == one["tid"]
        assert seen["MainThread"]["kind"] == "sleep"


def test_a_mutex_names_its_owner():
    code = """
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
libc.pthread_mutex_init(mutex, None)
taken = threading.Event()
def owner():
    libc.pthread_mutex_lock(mutex); taken.set(); time.sleep(600)
def waiter():
    taken.wait(); libc.pthread_mutex_lock(mutex)
thread("owner", owner); thread("waiter", waiter)
time.sleep(600)
"""
    with start(code) as job:
        waiter, seen = wait_of(job.pid, "waiter", "mutex")
        assert waiter["holder_tid"] == seen["owner"]["tid"]


def test_two_mutexes_make_a_deadlock():
    code = """
libc = ctypes.CDLL(None)
a, b = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
libc.pthread_mutex_init(a, None); libc.pthread_mutex_init(b, None)
barrier = threading.Barrier(2)
def take(first, second):
    libc.pthread_mutex_lock(first); barrier.wait(); libc.pthread_mutex_lock(second)
thread("one", lambda: take(a, b)); thread("two", lambda: take(b, a))
time.sleep(600)
"""
    with start(code) as job:
        wait_of(job.pid, "one", "mutex")
        verdict = json.loads(jobs.probe("-t", job.pid, "backtrace", "--json").stdout)[0]["verdict"]
        assert verdict.startswith("deadlock: ") and "waits for a mutex that" in verdict, verdict


def test_descriptors_name_the_process_at_their_other_end():
    code = """
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
pair = socket.socketpair()
child = subprocess.Popen([sys.executable, "-c", '''
import socket, sys, time
tcp = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
unix = socket.socket(fileno=int(sys.argv[2]))
time.sleep(600)
''', str(listener.getsockname()[1]), str(pair[1].fileno())], pass_fds=[pair[1].fileno()], stdout=subprocess.PIPE)
pair[1].close()
connection = listener.accept()[0]
thread("tcp", lambda: connection.recv(1)); thread("unix", lambda: pair[0].recv(1))
thread("pipe", lambda: os.read(child.stdout.fileno(), 1)); thread("child", child.wait)
thread("listens", listener.accept); thread("polls", lambda: select.select([pair[0]], [], []))
print("child", child.pid, flush=True)
try: time.sleep(600)
finally: child.kill()
"""
    with start(code) as job:
        jobs.wait_until(lambda: "child" in job.output)
        child = int(job.output.split("child ")[1].split()[0])
        try:
            for name, kind in (("tcp", "socket"), ("unix", "socket"), ("pipe", "pipe"), ("child", "child")):
                wait, _ = wait_of(job.pid, name, kind)
                assert wait["holder_pid"] == child, (name, wait)
                assert kind == "child" or wait["object"], (name, wait)
            assert "a connection to 127.0.0.1:" in wait_of(job.pid, "tcp", "socket")[0]["what"]
            assert "listens on port" in wait_of(job.pid, "listens", "socket")[0]["what"]
            assert wait_of(job.pid, "polls", "poll")[0]["kind"] == "poll"
        finally:
            os.kill(child, 9)


def test_a_file_lock_names_the_process_that_holds_it(tmp_path):
    path = tmp_path / "lock"
    with open(path, "w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        with start(f"f = open({str(path)!r})\nfcntl.flock(f, fcntl.LOCK_EX)\n") as job:
            wait, _ = wait_of(job.pid, "MainThread", "file lock")
            assert wait["holder_pid"] == os.getpid() and wait["object"] == os.stat(path).st_ino
            out = jobs.probe("-t", job.pid, "backtrace").stdout
            assert f"the main thread waits for a file lock that process {os.getpid()} holds" in out


def test_a_wait_says_for_how_long():
    with start("time.sleep(600)\n") as job:
        wait_of(job.pid, "MainThread", "sleep")
        began = time.monotonic()
        first = waits(job.pid)["MainThread"].get("seconds")
        if first is None:
            pytest.skip("this kernel does not tell when a thread ran last (/proc/PID/sched)")
        time.sleep(1)
        grown = waits(job.pid)["MainThread"]["seconds"] - first
        assert abs(grown - (time.monotonic() - began)) < 0.2


def test_who_waits_for_the_gil_is_told_with_its_holder():
    code = """
def hold():
    ctypes.PyDLL(None).usleep(600 * 1000000)
time.sleep(0.3)
thread("holder", hold)
time.sleep(0.01)
"""
    with start(code) as job:
        wait, seen = wait_of(job.pid, "MainThread", "gil", "holder_tid")
        assert wait["holder_tid"] == seen["holder"]["tid"]


def test_other_waits_are_named_by_their_kind():
    code = """
import multiprocessing
r, w = os.pipe()
def polls():
    p = select.poll(); p.register(r); p.poll()
def epolls():
    e = select.epoll(); e.register(r, select.EPOLLIN); e.poll()
semaphore = multiprocessing.get_context("fork").Semaphore(0)
thread("polls", polls); thread("epolls", epolls); thread("semaphore", semaphore.acquire); thread("sleeps", lambda: time.sleep(600))
time.sleep(600)
"""
    with start(code) as job:
        for name, kind in (("polls", "poll"), ("epolls", "poll"), ("semaphore", "futex"), ("sleeps", "sleep")):
            assert wait_of(job.pid, name, kind)
        os.kill(job.pid, signal.SIGSTOP)
        assert wait_of(job.pid, "sleeps", "stopped")
