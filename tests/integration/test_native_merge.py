"""Native and Python frames in one stack: what calls what, in the order it was called, on every interpreter."""
import re
import subprocess

import jobs
import pytest
import roots
from interpreters import INTERPRETERS, interpreter_id
from native_kit import RELEASE, build, folder, settled  # noqa: F401

# Python that is called from Python, from C (sorted, map, a generator's next, __init__), and from C in between.
CODE = """
import functools, threading, time
def leaf(): time.sleep(1000)
def plain(): leaf()
def key(x): plain()
def generator():
    for x in [1]:
        yield sorted([x], key=key)
class Thing:
    def __init__(self): self.made = [x for x in generator()]
def reducer(a, b): return Thing()
def body(): functools.reduce(reducer, [1, 2])
thread = threading.Thread(target=body, daemon=True)
thread.start()
print("ready", flush=True)
body()
"""
BUSY = """
import threading
def spin(n):
    while True:
        total = 0
        for x in sorted(range(200), key=lambda v: -v):
            total += sum(map(abs, (y for y in range(5))))
for i in range(2): threading.Thread(target=spin, args=(i,), daemon=True).start()
print("ready", flush=True)
spin(3)
"""


@pytest.fixture(scope="session")
def native_merge(folder):  # noqa: F811
    libraries = [str(RELEASE / f"libpb_{name}.a") for name in ("remote", "control", "table", "base")]
    return build(["gcc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", f"-I{jobs.TOP / 'src'}"], "native_merge.c",
                 folder / "native_merge", *libraries, "-ldl", "-lpthread")


def stacks(tool, pid, *words):
    done = subprocess.run([str(tool), str(pid), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_every_frame_is_where_it_was_called(interpreter, native_merge):
    with jobs.python(CODE, interpreter=interpreter) as job:
        settled(job.pid)
        found = re.split(r"^thread (\d+) (\d)\n", stacks(native_merge, job.pid), flags=re.M)[1:]
        threads = {int(found[i]): (int(found[i + 1]), found[i + 2].splitlines()) for i in range(0, len(found), 3)}
        assert len(threads) == 2
        for tid, (how, frames) in threads.items():
            assert how == 0, frames
            assert not [line for line in frames if "_PyEval_EvalFrameDefault" in line]
            names = [line.split()[1] for line in frames]
            python = [line.split()[1] for line in frames if line.startswith("py ")]
            wanted = ["leaf", "plain", "key", "generator", "<listcomp>", "__init__", "reducer", "body"]
            # Since 3.13 a frame of the interpreter's own, by the same name, lies below an inlined __init__.
            own = [name for name, before in zip(python, [None, *python]) if name in wanted and name != before]
            assert own == [name for name in wanted if name in python]
            assert python[:4] == wanted[:4] and python[-1] in ("<module>", "_bootstrap")
            # What is in C lies between its caller and what it calls.
            between = frames[names.index("key") + 1:names.index("generator")]
            assert len(between) >= 2 and all(line.startswith("c ") for line in between)
            if "c ?" not in frames:     # not stripped
                assert "c builtin_sorted" in between
                assert names.index("reducer") < names.index("functools_reduce") < names.index("body")
                assert names.index("time_sleep") < names.index("leaf")
            assert names[-1] in ("_start", "__clone", "clone", "clone3", "__clone3", "__GI___clone3",
                                 "__GI___clone"), names[-1]


@pytest.mark.alone
@pytest.mark.parametrize("interpreter", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)
def test_running_threads_fit_nearly_always(interpreter, native_merge):
    """Now and then one is stopped between entering the loop and telling of its frame: then both are shown apart."""
    with jobs.python(BUSY, interpreter=interpreter) as job:
        full, partial, apart, failed = map(int, re.findall(r"\d+", stacks(native_merge, job.pid, "200")))
        assert full + partial + apart + failed == 600
        assert full >= 0.9 * (full + partial + apart) and failed < 60, (full, partial, apart, failed)


@pytest.mark.parametrize("root, interpreter", [(root, path) for root, paths in roots.INTERPRETERS.items()
                                               for path in paths])
def test_in_a_container_with_libraries_of_its_own(root, interpreter, native_merge):
    """Another root and pid namespace: files with the same path are others here."""
    with roots.start(root, interpreter, "-c", CODE) as target:
        target.wait_for("ready")
        settled(target.pid)
        found = re.split(r"^thread (\d+) (\d)\n", stacks(native_merge, target.pid), flags=re.M)[1:]
        assert str(target.pid) in found[0::3] and found[1::3] == ["0", "0"], found
        for frames in found[2::3]:
            python = [line.split()[1] for line in frames.splitlines() if line.startswith("py ")]
            assert python[:4] == ["leaf", "plain", "key", "generator"]
            assert "c clock_nanosleep" in frames or "c __select" in frames
            assert re.search(r"py key \d+\n(c .*\n)+py generator", frames)
