"""Shared by tests of prompts: programs that go on while a client uses a prompt, and a real nc."""
import contextlib
import os
import re
import select
import shutil
import subprocess
import time

import jobs
import pytest
from jobs import probe

NC = shutil.which("nc")
needs_nc = pytest.mark.skipif(NC is None, reason="there is no nc here (scripts/setup.sh test installs one)")

# It counts and prints as it goes on; what it prints at its end shows whether a prompt changed anything.
COUNTING = """
import sys, time
rate = 0.1
class Model:
    def __init__(self): self.weights, self.hidden_size = [1.0, 2.0], 32
def helper(n):
    doubled = n * 2
    return doubled
def train(model):
    step, total, stop = 0, 0, False
    print("ready", flush=True)
    while not stop:
        step += 1
        total += helper(step)
        time.sleep(0.002)
    print("stopped by", stop, sys.gettrace(), total == step * (step + 1), flush=True)
train(Model())
"""

# Into a generator, a callback of C, an exception and an await, with a local in each that the program goes on with.
STEPS = """
import time
def generate():
    made = 1
    yield made
def key(n):
    turned = -n
    return turned
def fail():
    text = "no"
    raise ValueError(text)
async def inner():
    given = 5
    return given
async def outer():
    got = await inner()
    return got
def work():
    seen = []
    for n in generate():
        seen.append(n)
    ordered = sorted([1, 2], key=key)
    seen.append(ordered[0])
    try:
        fail()
    except ValueError as error:
        seen.append(str(error))
    try:
        outer().send(None)
    except StopIteration as end:
        seen.append(end.value)
    return seen
def main():
    global changed
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        found = work()
        if found != [1, 2, "no", 5]:
            changed = found
main()
"""
# What is assigned before which of its lines runs, what the program makes of that, and the lines that every step shows.
ASSIGNED = {"yield made": "made = 'M'", "return turned": "turned = n", "raise ValueError(text)": "text = 'S'",
            "return given": "given = 'G'"}
CHANGED = "['M', 1, 'S', 'G']\n"
STEPPED = {*ASSIGNED, "seen.append(n)", "except ValueError as error:", "got = await inner()", "return got",
           "except StopIteration as end:", "return seen"}


class Nc:
    """nc, connected to what `probing listen` or `probing pause` printed."""

    def __init__(self, command):
        words = command.split()
        assert words[0] == "nc", command
        self.process = subprocess.Popen([NC] + words[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.seen = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def send(self, text):
        self.process.stdin.write(text if isinstance(text, bytes) else text.encode())
        self.process.stdin.flush()

    def wait(self, text, seconds=15):
        """Reads until the text has come, and returns what came up to its end."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"not seen: {text!r}\n{self.seen}"
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                self.seen += data.decode()
                assert data or text in self.seen, f"the end, and not seen: {text!r}\n{self.seen}"
        came, _, self.seen = self.seen.partition(text)
        return came + text

    def ask(self, text, prompt=">>> "):
        """The answer to an input, without the prompt after it."""
        self.send(text + "\n")
        return self.wait(prompt)[:-len(prompt)]

    def end(self, seconds=10):
        """Reads until the other side has closed. nc itself also waits for the end of its stdin."""
        self.process.stdin.close()
        deadline = time.monotonic() + seconds
        while True:
            assert time.monotonic() < deadline, f"no end:\n{self.seen}"
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                self.seen += data.decode()
                if not data:
                    return self.seen


def address(done):
    """The command that is printed for a person."""
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"nc \S+ \d+\n", done.stdout), done.stdout
    return done.stdout.strip()


@contextlib.contextmanager
def listening(job, *words):
    with Nc(address(probe(job.pid, "listen", *words))) as nc:
        yield nc


def goes_on(job):
    """The program moves, and answers."""
    first = int(probe(job.pid, "eval", "step").stdout)
    jobs.wait_until(lambda: int(probe(job.pid, "eval", "step").stdout) > first, what="the next step")
