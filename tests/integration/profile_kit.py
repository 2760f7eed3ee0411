"""Programs whose true profile is known, and the reading of folded stacks against it.

tree() makes a program of 200 functions, some of them generators, each with one caller and one line that calls it: a
stack is possible only when it is exactly the path to its innermost function, at exactly those lines. shares() makes a
program that measures by itself how long each of its functions took.
"""
import mmap
import random
import re
import struct
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import jobs
import roots
from interpreters import INTERPRETERS, interpreter_id

FUNCTIONS, GENERATORS = 200, 30
FRAME = re.compile(r"^(?P<name>.*) \((?P<file>.*?)(:(?P<line>\d+))?\)$")


class Tree:
    def __init__(self, seed=1):
        rng = random.Random(seed)
        self.parent, self.children, self.depth = {0: None}, {0: []}, {0: 1}
        for i in range(1, FUNCTIONS):
            # Deep rather than wide: most hang on the one before.
            above = i - 1 if rng.random() < 0.85 and self.depth[i - 1] < 24 else rng.randrange(i)
            self.parent[i], self.children[i], self.depth[i] = above, [], self.depth[above] + 1
            self.children[above].append(i)
        self.generators = set(rng.sample(range(1, FUNCTIONS), GENERATORS))
        self.call_line = {}
        self.source = self._write()

    def _write(self):
        lines = []
        for i in range(FUNCTIONS):
            lines.append(f"def f{i}():")
            for child in self.children[i]:
                lines.append(f"    for _ in f{child}(): pass" if child in self.generators else f"    f{child}()")
                self.call_line[child] = len(lines)
            lines.append("    yield 1" if i in self.generators else "    x = 1")
            lines.append("")
        lines += ["print('ready', flush=True)", "while True:", "    f0()"]
        self.call_line[0] = len(lines)
        return "\n".join(lines) + "\n"

    def path(self, i):
        """[("<module>", line), ("f0", line), ..., ("fI", None)]: the line of the innermost is any of its own."""
        names = []
        line = None
        while i is not None:
            names.append((f"f{i}", line))
            i, line = self.parent[i], self.call_line[i]
        return [("<module>", line), *reversed(names)]


def read_folded(text, strict=True):
    """[([(function, line or None), ...], samples), ...], outermost first; what a thread waits for is left out. What is
    no frame is an error, or "?" where other tools are read."""
    stacks = []
    for row in text.splitlines():
        frames, count = row.rsplit(" ", 1)
        stack = []
        for frame in frames.split(";"):
            if frame.startswith("["):
                continue
            match = FRAME.match(frame)
            assert match or not strict, frame
            stack.append((match["name"] if match else "?", int(match["line"]) if match and match["line"] else None))
        stacks.append((stack, int(count)))
    return stacks


def check_tree(tree, stacks):
    """(samples, samples of impossible stacks, samples that are not of full depth, an example of each)."""
    total, impossible, cut, examples = 0, 0, 0, []
    for stack, count in stacks:
        total += count
        innermost = stack[-1][0] if stack else ""
        if innermost == "<module>" and len(stack) == 1:
            continue
        if not re.fullmatch(r"f\d+", innermost):
            impossible += count
            examples.append(stack)
            continue
        path = tree.path(int(innermost[1:]))
        wanted = [*path[:-1], (innermost, stack[-1][1])]
        if stack == wanted:
            continue
        if stack == wanted[-len(stack):]:
            cut += count
        else:
            impossible += count
        examples.append(stack)
    return total, impossible, cut, examples[:3]


SHARES = """
import mmap, sys, time
clock = time.perf_counter_ns
with open(sys.argv[1], "r+b") as f:
    spent = memoryview(mmap.mmap(f.fileno(), 0)).cast("q")
{functions}
calls = [{names}]
print("ready", flush=True)
while True:
    for i, call in enumerate(calls):
        start = clock()
        call()
        spent[i] += clock() - start
"""


@contextmanager
def shares(interpreter, loops=(400, 50, 900, 100, 200, 1500, 30, 700, 300, 60)):
    """A program with a function for each of loops, and a function that gives the ns each has taken so far."""
    functions = "\n".join(f"def g{i}():\n    for _ in range({n}): pass" for i, n in enumerate(loops))
    with tempfile.NamedTemporaryFile(prefix="probing-shares-") as file:
        file.truncate(8 * len(loops))
        code = SHARES.format(functions=functions, names=", ".join(f"g{i}" for i in range(len(loops))))
        code = code.replace("sys.argv[1]", repr(file.name))
        with jobs.python(code, interpreter=interpreter) as job, mmap.mmap(file.fileno(), 0) as shared:
            yield job, lambda: struct.unpack(f"{len(loops)}q", shared[:])


def everywhere():
    """[(version, interpreter, root or None), ...]: those of this machine, and newer ones that a root has."""
    found = [(interpreter_id(path), path, None) for path in INTERPRETERS]
    newest = found[-1][0] if found else ""
    inside = [(program.rsplit("python", 1)[1], program, "sid") for program in roots.INTERPRETERS["sid"]]
    return found + [it for it in inside if not newest.startswith(it[0])]


@contextmanager
def started(code, interpreter, root, folder):
    """A program under one of those, ready to be sampled."""
    if not root:
        with jobs.python(code, interpreter=interpreter) as job:
            yield job
        return
    roots.path(root)
    script = Path(folder) / "program.py"
    script.write_text(code)
    with roots.start(root, interpreter, roots.put(root, script)) as target:
        target.wait_for("ready")
        yield target


def sample_tree(tree, pid, probe, wanted, rate, seconds, out):
    """Samples a tree that runs, slice by slice, until there are as many samples as wanted or the time is up: (samples,
    impossible, not of full depth, examples, how long the target waited for a CPU as a part of the time it wanted one,
    what it printed)."""
    total, impossible, cut, examples, printed = 0, 0, 0, [], ""
    deadline, (ran, waited) = time.monotonic() + seconds, run_delay(pid)
    while total < wanted and time.monotonic() < deadline:
        left = min(max(1, (wanted - total) / rate), 10, max(1, deadline - time.monotonic()))
        done = probe("-t", pid, "flamegraph", "-o", out, "--lines", "--rate", rate, "--duration", left, timeout=120)
        assert done.returncode == 0, done.stderr
        n, wrong, short, example = check_tree(tree, read_folded(Path(out).read_text()))
        total, impossible, cut = total + n, impossible + wrong, cut + short
        examples, printed = examples + example, done.stdout
    ran, waited = (after - before for after, before in zip(run_delay(pid), (ran, waited)))
    return total, impossible, cut, examples[:3], waited / max(1, ran + waited), printed


def distance(truth, counts):
    """Total variation distance between two distributions over the same names."""
    all_truth, all_counts = sum(truth.values()), sum(counts.values())
    return sum(abs(truth[k] / all_truth - counts.get(k, 0) / all_counts) for k in truth) / 2


def run_delay(pid):
    """(ns on a CPU, ns waiting for one) of the main thread so far."""
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]), int(fields[1])
