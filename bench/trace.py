"""What trace, watch and break cost a function of about 1 us, and what is left of that after --stop.

    build/venv/bin/python bench/trace.py [INTERPRETER...]

The bare program is measured first. The peer is what one would write oneself: callbacks in Python that note the time of each start and
return (sys.monitoring for this function alone, from 3.12 on; sys.setprofile before). Each figure is the median of several rounds, with the least and the
most of them; what is added is the difference of the least, since other work on the machine only adds. Rounds of the cases take turns.
"""
import statistics
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import interpreters  # noqa: E402
import jobs  # noqa: E402

ROUNDS = 5
# It measures when it is told to by a file, so that nothing of ours runs meanwhile.
PROGRAM = """
import os, sys, time, timeit
def work(n):
    total = 0
    for i in range(n): total += i
    return total
def other(n):
    total = 0
    for i in range(n): total += i
    return total
n = 10
while min(timeit.repeat(lambda: work(n), number=2000, repeat=5)) / 2000 < 1e-6:
    n += 2
noted = []
def note_start(*_):
    noted.append(time.perf_counter())
def note_return(*_):
    noted.append(time.perf_counter())
    del noted[:]
def profile(frame, event, argument):
    if frame.f_code is work.__code__:
        noted.append(time.perf_counter())
        del noted[1:]
def begin_peer():
    if not hasattr(sys, "monitoring"):
        return sys.setprofile(profile)
    mon = sys.monitoring
    mon.use_tool_id(2, "peer")
    mon.register_callback(2, mon.events.PY_START, note_start)
    mon.register_callback(2, mon.events.PY_RETURN, note_return)
    mon.set_local_events(2, work.__code__, mon.events.PY_START | mon.events.PY_RETURN)
def end_peer():
    if not hasattr(sys, "monitoring"):
        return sys.setprofile(None)
    sys.monitoring.set_local_events(2, work.__code__, 0)
    sys.monitoring.free_tool_id(2)
def measure(function):
    return min(timeit.repeat(lambda: function(n), number=5000, repeat=7)) / 5000 * 1e9
print("ready", flush=True)
seen = ""
while True:
    time.sleep(0.02)
    asked = open(sys.argv[0] + ".ask").read() if os.path.exists(sys.argv[0] + ".ask") else ""
    if asked != seen:
        seen = asked
        if "peer" in asked: begin_peer()
        print("measured", measure(work), measure(other), flush=True)
        if "peer" in asked: end_peer()
"""
CASES = {"bare": [], "peer": [], "trace": ["trace", "work"], "trace --args": ["trace", "work", "--args"],
         "break --log, a line of it": ["break", "{script}:6", "--log", "{{total}}"], "watch total, a loop of it": ["watch", "total@work"]}


def figures(job, case, number):
    Path(job.script + ".ask").write_text(f"{number} {case}")
    jobs.wait_until(lambda: job.output.count("measured") == number, seconds=60, what="a measurement")
    return [float(word) for word in job.output.splitlines()[-1].split()[1:]]


def measure(job):
    """{case: [(work, other)]}; what was measured right after a case's --stop is the case "after"."""
    found, number = {name: [] for name in [*CASES, "after"]}, 0
    for _ in range(ROUNDS):
        for name, words in CASES.items():
            words = [word.format(script=job.script) for word in words]
            if words:
                done = jobs.probe(job.pid, *words, "--duration", "60s")
                assert done.returncode == 0, done.stderr
            number += 1
            found[name].append(figures(job, name, number))
            if words:
                assert jobs.probe(job.pid, words[0], "--stop").returncode == 0
        number += 1
        found["after"].append(figures(job, "after", number))
    return found


def say(name, found, bare):
    least = min(found)
    print(f"  {name:28} {statistics.median(found):6.0f} ns ({least:.0f} to {max(found):.0f})  {least - bare:+6.0f} ns  x {least / bare:.2f}", flush=True)
    return least - bare


for python in sys.argv[1:] or interpreters.INTERPRETERS[-1:]:
    with jobs.python(PROGRAM, interpreter=python) as job:
        found = measure(job)
        Path(job.script + ".ask").unlink()
    print(f"CPython {interpreters.interpreter_id(python)}: a function of 1 us; another one that nobody asked for")
    bare, bare_other = (min(row[i] for row in found["bare"]) for i in (0, 1))
    added = {name: say(name, [row[0] for row in rows], bare) for name, rows in found.items()}
    say("trace: the other one", [row[1] for row in found["trace"]], bare_other)
    say("after: the other one", [row[1] for row in found["after"]], bare_other)
    if interpreters.version_of(python) >= (3, 12):
        print("  a traced call must add at most 1000 ns:", "met" if added["trace"] <= 1000 else "MISSED")
