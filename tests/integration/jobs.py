"""Processes to probe: Python programs started for one test, and the program under test run against them.

    with jobs.python("import time; time.sleep(60)") as job:
        assert probe(job.pid, "eval", "1 + 1").stdout == "2\n"
"""
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("PROBING_PROGRAM", TOP / "build/release/bin/probing"))
# times slower than a machine of today: what is waited for has so much more time
SLOW = int(os.environ.get("PROBING_SLOW", 1))

# What a person probes: work in a function with locals, called from another, in a script.
TRAINING = """
import threading, time
rate = 0.1
class Model:
    def __init__(self): self.weights = [1.0, 2.0]
def train(model):
    loss = 3.5
    for step in range(10**9):
        loss = loss * 0.999
        time.sleep(0.01)
def main():
    model = Model()
    print("ready", flush=True)
    train(model)
main()
"""


class Late(AssertionError):
    """A check of time failed; other programs may have used the CPU."""


def in_time(is_so, text):
    if not is_so:
        raise Late(text)


def calm():
    """A clock in seconds that stands still while a process of the machine waits for a CPU or the disk (the kernel's
    pressure): for bounds, which say that a program does not wait and not that the machine is quick. Differences may be
    negative."""
    waited = 0
    for resource in ("cpu", "io"):
        try:
            waited += int(re.search(r"some .*total=(\d+)", Path("/proc/pressure", resource).read_text())[1])
        except OSError:  # this kernel does not count it
            pass
    return time.monotonic() - waited / 1e6


def three_tries(test):
    """Three tries for a test that raises Late: another program may have had the CPU. Other failures count at once."""
    @functools.wraps(test)
    def tried(*words, **named):
        for _ in range(2):
            try:
                return test(*words, **named)
            except Late:
                pass
        return test(*words, **named)
    return tried


def probe(*words, timeout=60, **options):
    """Runs the program; numbers may be given as they are."""
    return subprocess.run([str(PROGRAM), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, universal_newlines=True, timeout=timeout * SLOW, **options)


def rows(*words, **options):
    """What a query gives, as dictionaries: a target (a job, or what names one), options, and SQL last."""
    *before, sql = [getattr(word, "pid", word) for word in words]
    done = probe(*before, "query", "--format", "json", sql, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Job:
    def __init__(self, process, log):
        self.process, self.pid, self.log = process, process.pid, log

    @property
    def output(self):
        return Path(self.log).read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def threads(self):
        """Names of its threads."""
        tasks = Path(f"/proc/{self.pid}/task")
        names = []
        for task in tasks.iterdir():
            try:
                names.append((task / "comm").read_text().strip())
            except (FileNotFoundError, ProcessLookupError):
                pass
        return names

    def fds(self):
        """The links of its descriptors."""
        links = []
        for fd in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                links.append(os.readlink(fd))
            except FileNotFoundError:
                pass
        return sorted(links)


def wait_until(condition, seconds=30, what="it"):
    seconds *= SLOW
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.005)


# Numbers of system calls, by machine; None: there is none of the name.
CALLS = {"x86_64": {"read": 0, "write": 1, "splice": 275, "select": 23, "nanosleep": 35, "recvfrom": 45, "futex": 202,
                    "clock_nanosleep": 230, "epoll_wait": 232, "pselect6": 270, "epoll_pwait": 281},
         "aarch64": {"read": 63, "write": 64, "splice": 76, "select": None, "nanosleep": 101, "recvfrom": 207,
                     "futex": 98, "clock_nanosleep": 115, "epoll_wait": None,
                     "pselect6": 72, "epoll_pwait": 22}}[os.uname().machine]


def wait_for_call(pid, *names):
    """Until the main thread waits in a system call of one of these names."""
    numbers = {str(CALLS[name]) for name in names}
    wait_until(lambda: Path(f"/proc/{pid}/syscall").read_text().split()[0] in numbers,
               what=f"a wait in {' or '.join(names)}")


def forget(pid):
    """Removes what the runs of a dead process left, so that a person's `probing list` is not full of tests."""
    for root in ("/dev/shm", "/tmp", "/var/tmp"):
        for run in glob.glob(f"{root}/probing-*/*-{pid}-*"):  # Path.glob fails where a folder goes meanwhile
            shutil.rmtree(run, ignore_errors=True)


def forget_earlier(pid):
    """Removes runs of dead processes that had the number before: a list by the number would show them too."""
    began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    space = os.stat("/proc/self/ns/pid").st_ino
    for root in ("/dev/shm", "/tmp", "/var/tmp"):
        for run in glob.glob(f"{root}/probing-*/{space}-{pid}-*"):
            if not run.endswith(f"-{began}"):
                shutil.rmtree(run, ignore_errors=True)


@contextmanager
def own_number(command, **options):
    """A process whose number no other gets before the block ends, also after it was reaped: it is that of a process
    group, in which another one sleeps. On a busy machine numbers come again within seconds, and a command that is asked
    about a dead process would find the new one."""
    process = subprocess.Popen(command, preexec_fn=os.setpgrp, **options)
    sleeper = subprocess.Popen(["sleep", "infinity"], preexec_fn=lambda: os.setpgid(0, process.pid))
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        sleeper.kill()
        sleeper.wait()


@contextmanager
def start(*command, ready=None, ready_seconds=60, env=None, piped=subprocess.DEVNULL, **options):
    """A process for the length of a block; killed at its end. ready: what it prints when it can be probed. piped: its
    standard input."""
    with tempfile.NamedTemporaryFile("w", prefix="probing-job-", delete=False) as log:
        process = subprocess.Popen([str(word) for word in command], stdin=piped, stdout=log, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(env or {})}, **options)
    job = Job(process, log.name)
    try:
        forget_earlier(process.pid)
        if ready:
            wait_until(lambda: ready in job.output or not job.alive(), ready_seconds, what=f"{ready!r}")
            assert job.alive(), f"the process ended:\n{job.output}"
        yield job
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.unlink(log.name)
        forget(process.pid)


@contextmanager
def python(code=TRAINING, interpreter=sys.executable, ready="ready", flags=(), **options):
    """A Python program, as a script, so that it has a file and lines."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="train-", delete=False) as script:
        script.write(code)
    try:
        with start(interpreter, *flags, script.name, ready=ready, **options) as job:
            job.script = script.name
            yield job
    finally:
        os.unlink(script.name)
