"""A call that moves data returns when all of it is moved, whatever is done to its thread: the reader gets all, and the
program the whole count."""
import signal
import subprocess
import sys
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe

SIZE = 300_000
PRINTS = f"print('x' * {SIZE}); print('end')"
# The same with a second thread that can be used instead, and with one that is in a transfer as well.
OTHER = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
COMMANDS = [("inject",), ("eval", "1+1"), ("config", "probing.sample_rate=0.5"), ("backtrace", "--native"),
            ("flamegraph", "--native", "--duration", "300ms", "-o", "{out}/x.folded"), ("detach",)]


def until_it_writes(pid):
    jobs.wait_for_call(pid, "write")


@pytest.fixture
def printing():
    """Starts a job that prints without a buffer, as launchers start them, to a pipe that nobody reads yet."""
    started = []

    def start(code, interpreter=sys.executable):
        job = subprocess.Popen([interpreter, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(job)
        until_it_writes(job.pid)
        return job

    yield start
    for job in started:
        job.kill()
        job.communicate()


def all_of(job):
    out, err = job.communicate(timeout=20)
    return len(out), out[-4:], err, job.returncode


WHOLE = (SIZE + 5, b"end\n", b"", 0)


@pytest.mark.parametrize("interpreter", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)
def test_an_unbuffered_print_loses_nothing(printing, interpreter, tmp_path):
    job = printing(PRINTS, interpreter)
    for command in COMMANDS:
        done = probe(job.pid, *[word.format(out=tmp_path) for word in command])
        # Before 3.7 there may be no GIL to take while the only thread is in a call.
        assert done.returncode == 0 or (command[0] == "eval" and "no GIL" in done.stderr), done.stderr
    assert all_of(job) == WHOLE


def test_nor_beside_another_thread(printing):
    job = printing(OTHER + PRINTS)
    assert probe(job.pid, "inject").returncode == 0
    assert all_of(job) == WHOLE


def test_its_stack_is_still_the_programs(printing):
    """Injected, the thread waits in instructions of ours, for as long as nobody reads."""
    job = printing(PRINTS)
    assert probe(job.pid, "inject").returncode == 0
    until_it_writes(job.pid)
    shown = probe(job.pid, "backtrace", "--native").stdout
    frames = [line.split()[0] for line in shown.split('"MainThread"')[1].split("\n\n")[0].splitlines()[1:]]
    assert frames[0].strip("_") == "write", shown
    assert frames[1].startswith("_Py_write"), shown
    assert frames[-1].startswith("_start"), shown
    assert all_of(job) == WHOLE


def test_a_tool_that_is_killed_loses_nothing(printing):
    job = printing(PRINTS)
    for i in range(12):
        tool = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "inject"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        time.sleep(0.1 + i * 0.005)
        tool.send_signal(signal.SIGKILL)
        tool.wait()
    assert all_of(job) == WHOLE


SPLICES = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
r, w = os.pipe()
libc.fcntl(w, 1031, 1 << 20)
os.write(w, b"x" * (1 << 20))
a, b = socket.socketpair()
b.setblocking(False)
if os.fork() == 0:
    a.close()
    import time
    while not os.path.exists({go!r}): time.sleep(0.01)
    n = 0
    b.setblocking(True)
    while n < 1 << 20: n += len(b.recv(65536)) or 1 << 20
    os._exit(0)
print(libc.splice(r, None, a.fileno(), None, 1 << 20, 0), flush=True)
"""


def test_what_cannot_be_finished_is_left_alone(tmp_path):
    """splice from a pipe to a socket ends when the pipe is empty: whether a stop ended it cannot be told."""
    go = tmp_path / "go"
    job = subprocess.Popen([sys.executable, "-c", SPLICES.format(go=str(go))], stdout=subprocess.PIPE,
                           universal_newlines=True)
    try:
        jobs.wait_for_call(job.pid, "splice")
        done = probe(job.pid, "inject", "--timeout", "1s")
        assert done.returncode == 1 and "waits in splice" in done.stderr and "nothing was changed" in done.stderr, done
        assert "splice" in probe(job.pid, "backtrace", "--native").stdout
        go.touch()
        assert job.communicate(timeout=20)[0] == f"{1 << 20}\n"
    finally:
        job.kill()
        job.communicate()
