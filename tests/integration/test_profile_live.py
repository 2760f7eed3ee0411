"""top and record: what is shown live, and what outlives the process."""
import os
import pty
import re
import signal
import termios
import time
from pathlib import Path

import jobs
import pytest
from jobs import probe, wait_until
from profile_kit import read_folded

HANGS = """
import threading, time
lock = threading.Lock()
def busy():
    while True: time.sleep(0.005)
def hang(step):
    batch = [1, 2, 3]
    lock.acquire()
    lock.acquire()
threading.Thread(target=busy, daemon=True).start()
print("ready", flush=True)
time.sleep(1)
hang(41)
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBING_DIR", str(tmp_path))
    return tmp_path


def test_top_is_plain_text_where_nobody_watches():
    with jobs.python() as job:
        done = probe("-t", job.pid, "top", "--interval", "500ms", "--count", 2)
    assert done.returncode == 0, done.stderr
    assert "\033" not in done.stdout and done.stdout.count("FUNCTION") == 2
    assert re.search(r"^ *\d+\.\d +\d+\.\d +\d+\.\d  train \(train-", done.stdout, re.M)
    assert "MainThread" in done.stdout and "refused" in done.stdout


def test_top_says_that_the_process_ended():
    with jobs.python("import time\nprint('ready', flush=True)\ntime.sleep(1)\n") as job:
        done = probe("-t", job.pid, "top", "--count", 100, "--interval", "300ms", timeout=20)
    assert done.returncode == 0 and "has ended" in done.stderr


@pytest.mark.parametrize("end", ["q", signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_top_gives_the_terminal_back(end):
    with jobs.python() as job:
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(str(jobs.PROGRAM), ["probing", "-t", str(job.pid), "top", "--interval", "300ms"])
        before = None
        shown = b""
        deadline = time.monotonic() + 10
        while b"FUNCTION" not in shown and time.monotonic() < deadline:
            shown += os.read(terminal, 65536)
        before = termios.tcgetattr(terminal)[3]
        if end == "q":
            os.write(terminal, b"q")
        else:
            os.kill(pid, end)
        while not shown.endswith(b"\033[?25h\033[?1049l") and time.monotonic() < deadline:
            shown += os.read(terminal, 65536)
        os.waitpid(pid, 0)
        after = termios.tcgetattr(terminal)[3]
        os.close(terminal)
    assert b"\033[?1049h" in shown and shown.endswith(b"\033[?25h\033[?1049l")
    assert not before & termios.ICANON and after & termios.ICANON and after & termios.ECHO


@pytest.mark.alone
def test_a_recording_becomes_any_profile_later(runs, tmp_path):
    with jobs.python() as job:
        done = probe("-t", job.pid, "record", "--duration", 3, "--rate", 200)
    assert done.returncode == 0, done.stderr
    run = done.stdout.split(":")[0]
    whole = probe("flamegraph", "--from", job.pid, "-o", tmp_path / "a.folded")
    assert whole.returncode == 0, whole.stderr
    stacks = read_folded((tmp_path / "a.folded").read_text())
    assert sum(n for stack, n in stacks if stack[-1][0] == "train") > 400
    assert "asleep" in whole.stdout
    part = probe("flamegraph", "--from", run, "--since", "2s ago", "--until", "1s ago", "-o", tmp_path / "b.folded")
    assert part.returncode == 0, part.stderr
    seconds = float(re.search(r"in ([\d.]+) s", part.stdout)[1])
    assert 0.5 < seconds < 1.3, part.stdout
    for ending in ("svg", "html", "json", "pb.gz", "perfetto"):
        assert probe("flamegraph", "--from", run, "-o", tmp_path / f"a.{ending}").returncode == 0
        assert (tmp_path / f"a.{ending}").stat().st_size > 300


def test_a_recording_in_the_background_ends_with_the_process(runs, tmp_path):
    with jobs.python() as job:
        done = probe("-t", job.pid, "record", "--background")
        assert done.returncode == 0, done.stderr
        recorder = int(re.search(r"kill (\d+)", done.stdout)[1])
        time.sleep(2)
        assert Path(f"/proc/{recorder}").exists()
    wait_until(lambda: not Path(f"/proc/{recorder}").exists() or ") Z" in Path(f"/proc/{recorder}/stat").read_text())
    done = probe("flamegraph", "--from", job.pid, "-o", tmp_path / "a.folded")
    assert done.returncode == 0, done.stderr
    assert "train" in (tmp_path / "a.folded").read_text()


def test_a_killed_recorder_leaves_what_it_had(runs, tmp_path):
    with jobs.python() as job:
        done = probe("-t", job.pid, "record", "--background")
        time.sleep(2.5)
        os.kill(int(re.search(r"kill (\d+)", done.stdout)[1]), signal.SIGKILL)
        done = probe("flamegraph", "--from", job.pid, "-o", tmp_path / "a.folded")
        assert done.returncode == 0, done.stderr
    assert sum(n for _, n in read_folded((tmp_path / "a.folded").read_text())) > 100


def test_the_watchdog_keeps_stacks_and_locals_of_a_hang(runs):
    with jobs.python(HANGS) as job:
        done = probe("-t", job.pid, "record", "--watchdog", "2s", "--duration", 6)
    assert done.returncode == 0, done.stderr
    assert "stood still 1 time" in done.stdout
    arena = (Path(done.stdout.split(":")[0]) / "arena").read_bytes()
    assert b"step = 41" in arena and b"batch = [1, 2, 3]" in arena


def test_the_watchdog_is_quiet_while_there_is_progress(runs):
    with jobs.python("import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.3)\n"
                     "    time.sleep(0.3)\n") as job:
        done = probe("-t", job.pid, "record", "--watchdog", "1s", "--duration", 3)
    assert done.returncode == 0 and "stood still" not in done.stdout


def test_no_recording_is_one_line(runs, tmp_path):
    done = probe("flamegraph", "--from", "4194000", "-o", tmp_path / "a.svg")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "no recording" in done.stderr


# A main thread that waits for good, one that computes in C for good, and one that polls at one line.
STANDING = """
import os, time
def spin_in_c():
    sum(iter(int, 1))
def poll():
    while True: time.sleep(0.05)
children = []
for what in (spin_in_c, poll):
    child = os.fork()
    if child == 0:
        try:
            what()
        finally:
            os._exit(1)
    children.append(child)
print("ready", *children, flush=True)
os.wait()
"""


def test_a_thread_that_polls_does_not_stand_still(runs):
    with jobs.python(STANDING) as job:
        children = job.output.split("ready")[1].split()
        done = probe("-t", job.pid, "record", "--watchdog", "2s", "--duration", 6, "--subprocesses")
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert "stood still 2 times" in done.stdout


SHORT_LIVED = """
import os, subprocess, sys, time
def start():
    return [subprocess.Popen([sys.executable, '-c', 'import time\\ndef brief():\\n    time.sleep(1.5)\\nbrief()']) for _ in range(4)]
print("ready", flush=True)
while not os.path.exists({go!r}): time.sleep(0.02)
for child in start():
    child.wait()
print("gone", flush=True)
time.sleep(60)
"""


def test_children_that_ended_are_forgotten_and_their_samples_kept(runs, tmp_path):
    with jobs.python(SHORT_LIVED.format(go=str(tmp_path / "go"))) as job:
        done = probe("-t", job.pid, "record", "--background", "--subprocesses")
        assert done.returncode == 0, done.stderr
        recorder = int(re.search(r"kill (\d+)", done.stdout)[1])
        time.sleep(0.5)
        before = len(os.listdir(f"/proc/{recorder}/fd"))
        (tmp_path / "go").touch()
        wait_until(lambda: len(os.listdir(f"/proc/{recorder}/fd")) > before + 8, 10, "the children to be sampled")
        wait_until(lambda: "gone" in job.output)
        wait_until(lambda: len(os.listdir(f"/proc/{recorder}/fd")) <= before + 3, 5, "the children to be forgotten")
        os.kill(recorder, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{recorder}").exists()
                   or ") Z" in Path(f"/proc/{recorder}/stat").read_text())
        assert probe("flamegraph", "--from", job.pid, "-o", tmp_path / "a.folded").returncode == 0
    assert "brief (<string>)" in (tmp_path / "a.folded").read_text()
