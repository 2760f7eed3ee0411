"""What recording from Python costs: an append, a span, starting with a program. Each figure is the best and the median of several runs,
in a fresh process of each interpreter.

    build/venv/bin/python bench/python.py [INTERPRETER...]
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

PTH = (TOP / "python/probing-start.pth").read_text()
INSIDE = """
import sys, timeit
sys.path.insert(0, %r)
import probing
t = probing.table("steps", {"step": int, "loss": float, "note": str, "ok": bool})
def measure(statement):
    n = 20000
    empty = min(timeit.repeat("pass", number=n, repeat=5))
    found = sorted(timeit.repeat(statement, number=n, repeat=25, globals=globals()))
    return [(each - empty) / n * 1e9 for each in (found[0], found[12])]
print(*measure("t.append(7, 0.5, 'abc', True)"), *measure("with probing.span('x'): pass"), *measure("probing.log(loss=0.5)"))
""" % str(TOP / "python")
START = "import time; a = time.perf_counter(); from probing import _start; _start.begin(); print((time.perf_counter() - a) * 1e3)"


def recording(python):
    words = subprocess.run([python, "-c", INSIDE], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout.split()
    for what, must, at in (("append of 4 values", 120, 0), ("span", 600, 2), ("log of a value", None, 4)):
        best, middle = float(words[at]), float(words[at + 1])
        verdict = "" if must is None else "  must %d: %s" % (must, "met" if best <= must else "MISSED")
        print("%-10s %-24s %6.0f ns best %6.0f median%s" % (interpreters.interpreter_id(python), what, best, middle, verdict))


def starting(python, runs=40):
    """A Python that does nothing, with and without the .pth file, in turns; and how long the start itself takes."""
    with tempfile.TemporaryDirectory() as folder:
        bare, ours = Path(folder, "bare"), Path(folder, "ours")
        for env in (bare, ours):
            subprocess.run([python, "-m", "venv", "--without-pip", env], check=True)
        packages = next((ours / "lib").glob("python3*/site-packages"))
        (packages / "probing-start.pth").write_text(PTH)
        shutil.copytree(TOP / "python/probing", packages / "probing", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([python, "-m", "compileall", "-q", packages], check=True)  # as pip does
        clean = {name: value for name, value in os.environ.items() if name not in ("PROBING", "PROBE", "PYTHONDONTWRITEBYTECODE")}
        times = {bare: [], ours: []}
        for _ in range(runs):
            for env, found in times.items():
                begun = time.perf_counter()
                subprocess.run([env / "bin/python", "-c", "pass"], env=clean, check=True)
                found.append((time.perf_counter() - begun) * 1e3)
        added = min(times[ours]) - min(times[bare])
        middle = statistics.median(times[ours]) - statistics.median(times[bare])
        name = interpreters.interpreter_id(python)
        print("%-10s %-24s %6.3f ms best %6.3f median (of %.1f)  must 0.2: %s" % (
            name, "start-up added, unset", added, middle, min(times[bare]), "met" if added < 0.2 else "MISSED"))
        code = "import timeit; print(min(timeit.repeat(%r, number=1000, repeat=5)))" % PTH.strip()
        done = subprocess.run([ours / "bin/python", "-c", code], env=clean, stdout=subprocess.PIPE, universal_newlines=True, check=True)
        print("%-10s %-24s %6.3f us" % (name, "the line of the .pth", float(done.stdout) * 1e3))
        begin = "import os; os.environ['PROBING'] = '1'; " + START
        env = dict(clean, PROBING_LIBRARY=str(TOP / "build/release/lib/probing/libprobing-glibc.so"))
        took = sorted(float(subprocess.run([ours / "bin/python", "-c", begin], stdout=subprocess.PIPE, universal_newlines=True, check=True, env=env).stdout)
                      for _ in range(25))
        print("%-10s %-24s %6.2f ms best %6.2f median  must 5: %s" % (name, "the agent up", took[0], took[12], "met" if took[12] < 5 else "MISSED"))


for each in sys.argv[1:] or interpreters.INTERPRETERS:
    recording(each)
    starting(each)
