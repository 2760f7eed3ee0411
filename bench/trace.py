"""What trace, watch and break cost a function of about 1 us while they are on, and what is left of that afterwards.

    build/venv/bin/python bench/trace.py [INTERPRETER...]

Times are CPU time of the thread, the least of 20 runs of 2,000 calls, since other work on the machine only adds. Each case is measured before, during and
after it; a round ends with detach, so that the next one begins without an agent. Given are medians over the rounds and their quartiles; what is added is the median of each round's difference, and the noise that of two measurements of the bare program. The peer is what one
would write oneself: callbacks in Python that note the time of each start and return (sys.monitoring for this function alone, from 3.12 on; sys.setprofile before).
"""
import os
import statistics
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import interpreters  # noqa: E402
import jobs  # noqa: E402

ROUNDS = 11
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
    return min(timeit.repeat(lambda: function(n), timer=time.thread_time, number=2000, repeat=20)) / 2000 * 1e9
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
CASES = {"nothing": [], "peer": [], "trace": ["trace", "work"], "trace --args": ["trace", "work", "--args"],
         "break --log, a line of it": ["break", "{script}:6", "--log", "{{total}}"], "watch total, a loop of it": ["watch", "total@work"]}


def measure(job):
    """{case: [(before, during, after)]}, each (ns of work, ns of the other function); of "detach" there is no during."""
    found, number = {name: [] for name in [*CASES, "detach"]}, 0

    def figures(case):
        nonlocal number
        number += 1
        Path(job.script + ".ask").write_text(f"{number} {case}")
        jobs.wait_until(lambda: job.output.count("measured") == number and job.output.endswith("\n"), seconds=60, what="a measurement")
        return [float(word) for word in job.output.splitlines()[-1].split()[1:]]

    def run(*words):
        done = jobs.probe(job.pid, *words)
        assert done.returncode == 0, done.stderr
    for _ in range(ROUNDS):
        begun = before = figures("before")
        for name, words in CASES.items():
            words = [word.format(script=job.script) for word in words]
            if words:
                run(*words, "--duration", "60s")
            during = figures(name)
            if words:
                run(words[0], "--stop")
            after = figures("after")
            found[name].append((before, during, after))
            before = after
        run("detach")
        found["detach"].append((begun, begun, figures("after")))
    return found


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def say(name, rows, which, noise):
    """One line; what is added and what is left, as medians."""
    before, during, after = ([row[i][which] for row in rows] for i in range(3))
    added, left = ([b - a for a, b in zip(before, each)] for each in (during, after))
    low, middle, high = statistics.quantiles(left, n=4)
    back = "back within the noise" if abs(middle) <= noise or low <= 0 <= high else "NOT BACK"
    print(f"  {name:28} before {spread(before)}, during {spread(during)}, after {spread(after)} ns: {statistics.median(added):+.0f} ns, "
          f"x {statistics.median(during) / statistics.median(before):.2f}; left {middle:+.0f} ({low:+.0f} to {high:+.0f}): {back}", flush=True)
    return statistics.median(added)


for python in sys.argv[1:] or interpreters.INTERPRETERS[-1:]:
    with jobs.python(PROGRAM, interpreter=python) as job:
        found = measure(job)
        Path(job.script + ".ask").unlink()
    bare = [abs(row[1][0] - row[0][0]) for row in found["nothing"]]
    noise = statistics.quantiles(bare, n=4)[2]
    print(f"CPython {interpreters.interpreter_id(python)}, load {os.getloadavg()[0]:.1f}: a function of 1 us; two measurements of it differ by {spread(bare)} ns")
    added = {name: say(name, rows, 0, noise) for name, rows in found.items()}
    say("trace: another function", found["trace"], 1, noise)
    if interpreters.version_of(python) >= (3, 12):
        print(f"  a traced call: must + 1000 ns, ours {added['trace']:+.0f}, peer {added['peer']:+.0f}:", "met" if added["trace"] <= 1000 else "MISSED")
