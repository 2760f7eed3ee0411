"""The programs of the collection with their truth, and jobs made of them.

A program is a file in hang/, slow/, leak/, number/, crash/ or healthy/. Its truth stands in it as data and is read
without running it; the lines that are right carry the mark `# <- here`. docs: README.md.
"""
import ast
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = "# <- here"
FOLDERS = ["hang", "slow", "leak", "number", "crash", "healthy"]
DATA = ["TRUTH", "NAMES", "RANKS", "PROBE", "SETTLE", "DO"]
SCRIPTS = ["train.py", "learn.py", "tune0.py", "model.py", "epoch.py"]
# Seconds from the beginning of a fault to the question, by folder. A leak needs points of half a minute.
SETTLE = {"hang": 3, "slow": 12, "leak": 30, "number": 3, "crash": 3, "healthy": 4}


# Kinds that say little without their cause.
JUDGED_CAUSES = ["blocked_call", "slow_rank", "slow_job", "leak", "nan", "rank_gone", "stopped"]


def as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Fault:
    def __init__(self, path):
        self.path, self.folder = path, path.parent.name
        self.name = f"{self.folder}/{path.stem}"
        self.source = path.read_text()
        tree = ast.parse(self.source)
        self.about = " ".join(ast.get_docstring(tree).split())
        values, self.data_lines = {}, set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in DATA:
                values[node.targets[0].id] = ast.literal_eval(node.value)
                self.data_lines |= set(range(node.lineno, node.end_lineno + 1))
        self.truth = values["TRUTH"]
        self.names = values.get("NAMES", {})
        self.ranks = values.get("RANKS", 4)
        self.probe = values.get("PROBE")
        self.settle = values.get("SETTLE", SETTLE[self.folder])
        self.before = values.get("DO")

    @property
    def healthy(self):
        return self.truth["kind"] is None


def faults(patterns=()):
    """The programs whose name has one of the patterns in it; without patterns all."""
    found = [Fault(p) for folder in FOLDERS for p in sorted((HERE / folder).glob("*.py"))]
    return [f for f in found if not patterns or any(p in f.name for p in patterns)]


class Truth:
    """What is right for one run: the truth of the program with what was drawn."""

    def __init__(self, fault, bad, names, lines):
        truth = fault.truth
        self.kinds = as_list(truth["kind"])
        self.causes = as_list(truth.get("cause"))
        self.rank = truth.get("rank", bad)
        self.functions = [names.get(f, f) for f in as_list(truth.get("function")) if f]
        self.lines, self.never = lines, truth.get("not", [])


def drawn_source(fault, draw):
    """The program with other names and on other lines: (source, names, lines with the mark)."""
    names = {old: draw.choice(new) for old, new in fault.names.items()}
    # The truth and the marks are for us; a tool that quotes the line shall not read them.
    kept = [line for n, line in enumerate(fault.source.splitlines(), 1) if n not in fault.data_lines]
    source = "\n".join(["# a line that moves the others"] * draw.randrange(1, 60) + kept)
    for old, new in names.items():
        source = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, source)
    kept = source.splitlines()
    lines = [n for n, line in enumerate(kept, 1) if line.endswith(MARK)]
    return "\n".join(line.removesuffix(MARK).rstrip() for line in kept) + "\n", names, lines


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)


class Warm:
    """The process that has imported torch and forks jobs: one line of JSON on its standard input for each
    (script, folder, world, port, environment, kit). The answer is the file `pids` in the folder of the job."""

    def __init__(self, python):
        self.folder = Path(tempfile.mkdtemp(prefix="faults-"))
        self.count, self.lock = 0, threading.Lock()
        first = self.slot()
        script = first / SCRIPTS[0]
        script.write_text((HERE / "warm.py").read_text())
        environment = {**os.environ, "FAULT_SPACE": "x" * 1500, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        if self.process.stdout.readline() != "warm\n":
            raise RuntimeError(f"{python} cannot import torch")

    def slot(self):
        with self.lock:
            self.count += 1
            slot = self.folder / f"{self.count:04}"
        slot.mkdir()
        return slot

    def start(self, order):
        with self.lock:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)


class Job:
    """A run of one program. `with` ends it."""

    def __init__(self, warm, fault, seed, wait=False):
        draw = random.Random(f"{fault.name} {seed}")
        self.fault, self.seed, self.folder = fault, seed, warm.slot()
        self.bad = draw.randrange(fault.ranks)
        source, names, lines = drawn_source(fault, draw)
        self.script = self.folder / draw.choice(SCRIPTS)
        self.script.write_text(source)
        self.truth = Truth(fault, self.bad, names, lines)
        environment = {"FAULT_SEED": str(draw.randrange(10**6)), "FAULT_FOLDER": str(self.folder),
                       "FAULT_RANK": str(self.bad), "FAULT_WAIT": "1" if wait else "0"}
        warm.start({"script": str(self.script), "folder": str(self.folder), "world": fault.ranks, "port": free_port(),
                    "environment": environment, "kit": str(HERE)})
        wait_for((self.folder / "pids").exists, 60, f"the start of {fault.name}")
        pids = json.loads((self.folder / "pids").read_text())
        self.launcher, self.pids = pids["launcher"], pids["ranks"]

    def until_ready(self):
        """All ranks are at their third step, where they wait for go()."""
        wait_for(lambda: all((self.folder / f"ready.{n}").exists() for n in range(self.fault.ranks)), 60,
                 f"the third step of {self.fault.name}\n{self.output()}")

    def go(self):
        (self.folder / "go").touch()

    def until_begun(self):
        begun = (self.folder / "begins").exists
        try:
            wait_for(lambda: begun() or not self.alive(), 60, "it")
        except TimeoutError:
            pass
        if not begun():
            raise RuntimeError(f"the fault did not begin\n{self.output()}")

    def output(self):
        return "".join(p.read_text(errors="replace")[-2000:] for p in sorted(self.folder.glob("out.*")))

    def alive(self):
        return [pid for pid in self.pids if os.path.exists(f"/proc/{pid}/exe")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.launcher, number)
            except ProcessLookupError:
                pass


def judge(truth, job):
    """(right, what was said) of one job object of `probing diagnose --json`."""
    roots = [f for f in job.get("findings", []) if f.get("root") and f.get("sure") != "remark"]
    words = json.dumps(roots).lower()
    said = "; ".join(f"{f['kind']}/{f.get('cause')} rank {f.get('rank')} {(f.get('place') or {}).get('function')}:"
                     f"{(f.get('place') or {}).get('line')}" for f in roots) or "nothing"
    if truth.kinds == [None]:
        return not roots, said
    wrong = [word for word in truth.never if any(word in (f["kind"], f.get("cause")) for f in roots)]
    wrong += [word for word in truth.never if " " in word and word in words]
    if wrong:
        return False, f"{said} (must not say {wrong[0]})"
    return bool(roots) and matches(truth, roots[0]), said


def matches(truth, finding):
    """Kind, rank, place and, where the kind has several, cause."""
    place = finding.get("place") or {}
    right_place = not truth.functions or (place.get("function") or "").split(".")[-1] in truth.functions or (
        place.get("line") in truth.lines)
    right_rank = truth.rank == "any" or finding.get("rank") == truth.rank
    right_cause = finding["kind"] not in JUDGED_CAUSES or None in truth.causes or finding.get("cause") in truth.causes
    return finding["kind"] in truth.kinds and right_rank and right_place and right_cause


def found_in(truth, answers):
    """The culprit's functions that stand in another tool's output for the culprit's rank and for no other rank."""
    def has(output, function):
        return re.search(rf"\b{re.escape(function)}\b", output) is not None

    def tells(function):
        holders = [rank for rank, output in answers.items() if has(output, function)]
        return holders == [truth.rank] or holders and (truth.rank == "any" or len(answers) == 1)
    return [function for function in truth.functions if tells(function)]


def here_python():
    """The interpreter with torch: that of the build, or this one."""
    built = HERE.parent / "build/venv/bin/python"
    return str(built) if built.exists() else sys.executable
