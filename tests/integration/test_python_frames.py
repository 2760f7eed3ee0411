"""The frames of a thread are those that Python itself counts, on every version and build: no frame that the interpreter
makes for its own use is shown (entries from C, the clean-up of __init__), and none is missing."""
import ast
import os

import builds
import interpreters
import jobs
import pytest
import roots
from jobs import probe
from stack_kit import backtrace, by_name

# From C into Python and back in every way there is, down to a lock; then Python says what it sees itself.
WAYS = """
import sys, _thread, time
lock, there = _thread.allocate_lock(), _thread.allocate_lock()
lock.acquire()
there.acquire()

def bottom(*args):
    there.release()
    lock.acquire()
    return 0

class Made:
    def __init__(self, n):
        self.n = [
            bottom(k)
            for k in (n,)
        ]

class Made2(Made):
    def __new__(cls, n):
        return super().__new__(cls)
    def __init__(self, n):
        super(
        ).__init__(
            n)

class Asked:
    @property
    def value(self):
        return Made2(1).n
    def __getattr__(self, name):
        return self.value
    def __call__(self, *args):
        return self.missing
    def __lt__(self, other):
        return self(1)
    def __enter__(self):
        return sorted([self, self])
    def __exit__(self, *args):
        return None

def numbers(n):
    with Asked() as a:
        yield a

def chain():
    yield from numbers(3)

async def inner():
    return sum(map(lambda x: len(x) if x else 0,
                   chain()))

async def outer():
    return await inner()

def drive():
    try:
        outer().send(None)
    except StopIteration as e:
        return e.value

def decorated(f):
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper

@decorated
def keyed(x, *, y=1):
    return max([x, y], key=lambda v: {v: drive() for v in [v]}[v])

class Body:
    made = lambda self: eval("keyed(2)")

def work():
    try:
        raise ValueError
    except ValueError:
        for i in range(1):
            exec("Body().made()")

_thread.start_new_thread(work, ())
there.acquire()
time.sleep(0.2)
me, frames = _thread.get_ident(), []
f = next(f for ident, f in sys._current_frames().items() if ident != me)
while f:
    frames.append((f.f_code.co_name, f.f_lineno))
    f = f.f_back
print(repr(frames), flush=True)
print("ready", flush=True)
time.sleep(1000)
"""


def check(pid, output):
    wanted = ast.literal_eval(next(line for line in output.splitlines() if line.startswith("[")))
    assert len(wanted) >= 20
    threads = [thread for thread in backtrace(pid)["threads"] if thread["tid"] != pid]
    assert [[(f["name"], f["line"]) for f in thread["frames"]] for thread in threads] == [wanted]


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_the_frames_are_those_that_python_sees(interpreter):
    with jobs.python(WAYS, interpreter) as job:
        check(job.pid, job.output)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", [(name, program) for name in roots.INTERPRETERS
                                           for program in roots.INTERPRETERS[name]])
def test_in_a_container(name, program, tmp_path):
    roots.path(name)
    script = tmp_path / f"ways-{os.getpid()}.py"
    script.write_text(WAYS)
    with roots.start(name, program, roots.put(name, script)) as target:
        target.wait_for("ready")
        check(target.pid, target.output)
    script.write_text(MAKING)
    with roots.start(name, program, roots.put(name, script)) as target:
        target.wait_for("ready")
        check_samples(target.pid, tmp_path / "x.folded")
    (roots.ROOTS / name / "tmp" / script.name).unlink()


@pytest.mark.parametrize("tag", builds.FREE_THREADED)
def test_in_a_free_threaded_build(tag, tmp_path):
    script = tmp_path / "ways.py"
    script.write_text(WAYS)
    with builds.start(tag, script) as job:
        check(job.pid, job.output)
    script.write_text(MAKING)
    with builds.start(tag, script) as job:
        check_samples(job.pid, tmp_path / "x.folded")


# A sampler meets the frames while they come and go: every stack must be one that some call can have.
MAKING = """
import time
class Made:
    def __init__(self, n):
        self.n = n + 1
class More(Made):
    def __init__(self, n):
        super().__init__(n)
def numbers():
    for n in range(3):
        yield More(n).n
def total():
    return sum(numbers())
print("ready", flush=True)
while True:
    total()
"""
CHAINS = ["<module>", "<module>;total", "<module>;total;numbers", "<module>;total;numbers;__init__",
          "<module>;total;numbers;__init__;__init__"]


def check_samples(pid, folded):
    done = probe("-t", pid, "flamegraph", "--duration", "1s", "--rate", "500", "-o", folded)
    assert done.returncode == 0, done.stderr
    # Below the program are the frames of what started it, where something did.
    rows = [row[row.index("<module>"):] for row in folded.read_text().splitlines()]
    chains = {";".join(frame.split(" (")[0].rsplit(".", 1)[-1] for frame in row.rsplit(" ", 1)[0].split(";"))
              for row in rows}
    assert chains <= set(CHAINS) and len(chains) >= 3, chains


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_samples_show_no_frame_of_the_interpreter_s_own(interpreter, tmp_path):
    with jobs.python(MAKING, interpreter) as job:
        check_samples(job.pid, tmp_path / "x.folded")
