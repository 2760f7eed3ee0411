"""What `probing trace` costs: a traced function of about 1 us, a function that is not traced, and both after trace --stop.

    build/venv/bin/python bench/trace.py [INTERPRETER...]
"""
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import interpreters  # noqa: E402
import jobs  # noqa: E402

# It measures when it is told to by a file, so that nothing of ours runs meanwhile.
PROGRAM = """
import os, sys, time, timeit
def work(n):
    total = 0
    for i in range(n):
        total += i
    return total
def other(n):
    total = 0
    for i in range(n):
        total += i
    return total
n = 10
while min(timeit.repeat(lambda: work(n), number=2000, repeat=5)) / 2000 < 1e-6:
    n += 2
def measure(function):
    found = sorted(timeit.repeat(lambda: function(n), number=5000, repeat=15))
    return found[0] / 5000 * 1e9
print("ready", flush=True)
seen = ""
while True:
    time.sleep(0.02)
    asked = open(sys.argv[0] + ".ask").read() if os.path.exists(sys.argv[0] + ".ask") else ""
    if asked != seen:
        seen = asked
        print("measured", measure(work), measure(other), flush=True)
"""


def figures(job, number):
    Path(job.script + ".ask").write_text(str(number))
    jobs.wait_until(lambda: job.output.count("measured") == number, seconds=60, what="a measurement")
    return [float(word) for word in job.output.splitlines()[-1].split()[1:]]


for python in sys.argv[1:] or interpreters.INTERPRETERS:
    with jobs.python(PROGRAM, interpreter=python) as job:
        figures(job, 1)
        before = figures(job, 2)
        assert jobs.probe(job.pid, "trace", "work", "--duration", "60s").returncode == 0
        on = figures(job, 3)
        assert jobs.probe(job.pid, "trace", "--stop").returncode == 0
        after = figures(job, 4)
        Path(job.script + ".ask").unlink()
    added = on[0] - before[0]
    verdict = "" if interpreters.version_of(python) < (3, 12) else "  must 1000: %s" % ("met" if added <= 1000 else "MISSED")
    print("%-8s traced: %5.0f ns + %4.0f%s; not traced: %5.0f + %4.0f; after --stop: %+4.0f, %+4.0f" % (
        interpreters.interpreter_id(python), before[0], added, verdict, before[1], on[1] - before[1], after[0] - before[0], after[1] - before[1]))
