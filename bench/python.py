"""What recording from Python, starting with a program and an eval cost, each beside what it must not exceed and, where there is one, a peer.

    build/venv/bin/python bench/python.py [PART...] [INTERPRETER...]        parts: recording starting eval; all without one

What is compared takes turns. Given are the median, its quartiles and the least of all runs; a bound is judged by the median. Recording and the start-up are
CPU time, which other work on the machine lengthens less than the clock's; the agent and an eval are by the clock. The peers: of an append, a tuple
put into a list; of a span, a context manager in Python that notes two times in a list; of the start, a .pth file that does nothing.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import interpreters  # noqa: E402
import jobs  # noqa: E402

PTH = (TOP / "python/probing-start.pth").read_text()
INSIDE = """
import sys, time, timeit
sys.path.insert(0, %r)
import probing
t = probing.table("steps", {"step": int, "loss": float, "note": str, "ok": bool})
rows, times = [], []
class Timed:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        self.begun = time.perf_counter()
    def __exit__(self, *error):
        times.append((self.name, self.begun, time.perf_counter()))
cases = ["pass", "t.append(7, 0.5, 'abc', True)", "rows.append((7, 0.5, 'abc', True))", "with probing.span('x'): pass", "with Timed('x'): pass", "probing.log(loss=0.5)"]
timers = [timeit.Timer(each, timer=getattr(time, "thread_time", time.process_time), globals=globals()) for each in cases]
for _ in range(30):
    print(*[each.timeit(5000) / 5000 * 1e9 for each in timers])
    del rows[:], times[:]
""" % str(TOP / "python")
UP = "import time; a = time.perf_counter(); from probing import _start; _start.begin(); print((time.perf_counter() - a) * 1e3)"
BUSY = """
def work(n):
    total = 0
    for i in range(50):
        total += i * n
    return total
print("ready", flush=True)
step = 0
while True:
    step += 1
    work(step)
"""


def say(python, what, ours, unit, must=None, peer=None):
    low, middle, high = statistics.quantiles(ours, n=4)
    text = "%-8s %-26s must %-8s ours %7.3g %s (quartiles %.3g to %.3g, least %.3g)" % (
        interpreters.interpreter_id(python), what, "%g %s" % (must, unit) if must else "-", middle, unit, low, high, min(ours))
    if peer:
        low, other, high = statistics.quantiles(peer, n=4)
        text += "; peer %.3g (%.3g to %.3g)" % (other, low, high)
        if other > 0 and middle > 0:
            text += ", x %.2f" % (middle / other)
    print(text + ("" if must is None else ": met" if middle <= must else ": MISSED"), flush=True)


def recording(python):
    out = subprocess.run([python, "-c", INSIDE], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    rounds = [list(map(float, line.split())) for line in out.splitlines()][5:]  # the first are for the interpreter to warm up
    case = lambda number: [row[number] - row[0] for row in rounds]
    say(python, "append of 4 values", case(1), "ns", 120, case(2))
    say(python, "span", case(3), "ns", 600, case(4))
    say(python, "log of a value", case(5), "ns")


def starting(python, runs=120):
    """A Python that does nothing: without a .pth file, with an empty one, with ours."""
    with tempfile.TemporaryDirectory() as folder:
        envs = {name: Path(folder, name) for name in ("bare", "empty", "ours")}
        for env in envs.values():
            subprocess.run([python, "-m", "venv", "--without-pip", env], check=True)
        packages = {name: next((env / "lib").glob("python3*/site-packages")) for name, env in envs.items()}
        (packages["empty"] / "empty.pth").write_text("\n")
        (packages["ours"] / "probing-start.pth").write_text(PTH)
        shutil.copytree(TOP / "python/probing", packages["ours"] / "probing", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([python, "-m", "compileall", "-q", packages["ours"]], check=True)  # as pip does
        clean = {name: value for name, value in os.environ.items() if name not in ("PROBING", "PROBE", "PYTHONDONTWRITEBYTECODE")}
        rounds = []
        for _ in range(runs):
            took = {}
            for name, env in envs.items():
                job = subprocess.Popen([env / "bin/python", "-c", "pass"], env=clean)
                _, status, used = os.wait4(job.pid, 0)
                job.returncode = os.waitstatus_to_exitcode(status)
                assert job.returncode == 0
                took[name] = (used.ru_utime + used.ru_stime) * 1e3
            rounds.append(took)
        added = lambda name: [each[name] - each["bare"] for each in rounds]
        say(python, "start-up added, unset", added("ours"), "ms", 0.2, added("empty"))
        least = {name: min(each[name] for each in rounds) for name in envs}
        print("         best against best: ours %+.3f ms, an empty .pth file %+.3f ms (a Python that does nothing: %.1f)" % (
            least["ours"] - least["bare"], least["empty"] - least["bare"], least["bare"]))
        code = "import timeit; print(min(timeit.repeat(%r, number=1000, repeat=5)))" % PTH.strip()
        done = subprocess.run([envs["ours"] / "bin/python", "-c", code], env=clean, stdout=subprocess.PIPE, universal_newlines=True, check=True)
        print("         the line of the .pth file alone: %.2f us" % (float(done.stdout) * 1e3))
        env = dict(clean, PROBING_LIBRARY=str(TOP / "build/release/lib/probing/libprobing-glibc.so"))
        begin = [envs["ours"] / "bin/python", "-c", "import os; os.environ['PROBING'] = '1'; " + UP]
        took = [float(subprocess.run(begin, stdout=subprocess.PIPE, universal_newlines=True, check=True, env=env).stdout) for _ in range(40)]
        say(python, "the agent up, PROBING=1", took, "ms", 5)


def evals(python, runs=60):
    """The whole command on a program that computes without a pause; the bound is 15 ms and the interpreter's switch interval."""
    with jobs.python(BUSY, interpreter=python) as job:
        words = [str(jobs.PROGRAM), "-t", str(job.pid), "eval", "1"]
        took = []
        for _ in range(runs + 1):
            begun = time.perf_counter()
            assert subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout == b"1\n"
            took.append((time.perf_counter() - begun) * 1e3)
        say(python, 'eval "1", busy program', took[1:], "ms", 20)  # the first one injects


PARTS = {"recording": recording, "starting": starting, "eval": evals}
parts = [word for word in sys.argv[1:] if word in PARTS] or list(PARTS)
print("load %.1f" % os.getloadavg()[0])
for each in [word for word in sys.argv[1:] if word not in PARTS] or interpreters.INTERPRETERS:
    for part in parts:
        PARTS[part](each)
