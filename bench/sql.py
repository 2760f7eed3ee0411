"""What SQL costs, beside DuckDB itself, and what it costs the process that is asked: every promise in one run.

    build/venv/bin/python bench/sql.py [ROW...]     rows: commands backtrace scans target crowd

What is compared is measured in turn, never one after the other. A figure is the median of its runs, with the tenth and
the ninetieth percentile behind it. Scans: bench/sql.c keeps ten million rows in shared memory and in a table of
DuckDB's own. The target's steps are a fixed piece of Python on one core, the queries are on the others.
"""
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BIN = TOP / "build/release/bin"
HELPER = TOP / "build/release/bench/bench-sql"
BACKTRACE = "SELECT func, file, lineno FROM python.backtrace LIMIT 5"
TOP_TEN = ("SELECT operation_name, AVG(duration_ms) AS avg_duration, COUNT(*) AS call_count FROM $T WHERE timestamp > now() "
           "- interval '5 minutes' GROUP BY operation_name ORDER BY avg_duration DESC LIMIT 10")
SUM = "SELECT sum(duration_ms), count(*) FROM $T"
# Of rows that end in 500 minutes: the last 1%.
LAST_TEN, LAST_SUM = TOP_TEN.replace("- interval '5 ", "+ interval '495 "), SUM + " WHERE timestamp > now() + interval '495 minutes'"

SLEEPER = """
import threading, time
def go(n):
    go(n - 1) if n else time.sleep(600)
for _ in range(3):
    threading.Thread(target=go, args=(8,), daemon=True).start()
go(12)
"""
TRAINER = """
import sys, time
weights = [0.5] * 20000
while True:
    began = time.perf_counter()
    weights = [w * 0.999 + 0.001 for w in weights]
    loss = sum(w * w for w in weights)
    sys.stdout.write(f"{time.perf_counter() - began}\\n")
    sys.stdout.flush()
"""
failures = []


def spread(values):
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} ({ordered[len(ordered) // 10]:.2f}..{ordered[-1 - len(ordered) // 10]:.2f})"


def report(what, ours, must, unit="ms", peer=None):
    """One line: ours, the peer's, the ratio. must: {"value": bound, "ratio": bound}, either or both."""
    value = statistics.median(ours)
    ratio = value / statistics.median(peer) if peer else None
    bad = [name for name, got in (("value", value), ("ratio", ratio)) if name in must and not got <= must[name]]
    failures.extend([what] if bad else [])
    print(f"{what:58} {spread(ours):>26} {unit:4}"
          + (f" peer {spread(peer):>26}  ratio {ratio:5.2f}" if peer else " " * 48)
          + "  " + ("TOO MUCH" if bad else "ok" if must else "")
          + "".join(f" ({name} <= {bound:g})" for name, bound in must.items()), flush=True)


def check(what, good, told=""):
    failures.extend([] if good else [what])
    print(f"{what:58} {told or ('yes' if good else 'no'):>26}      {'' if good else ' WRONG'}", flush=True)


def timed(*command):
    began = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


def query(pid, sql):
    return [BIN / "probing", *(["-t", str(pid)] if pid else []), "query", sql]


class Directory:
    """A separate runtime directory: the first query in it is cold, and all workers in it belong to this run."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="probing-bench-")
        os.environ["XDG_RUNTIME_DIR"] = self.folder.name
        return self

    def workers(self):
        """Pids of this build's workers that were not there before."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "exe") == str(BIN / "probing-sql") and int(entry.name) not in self.before:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    before = frozenset()

    def __exit__(self, *_):
        self.folder.cleanup()


def commands():
    cold, alone = [], []
    for _ in range(7):
        with Directory():
            cold.append(timed(*query(None, "SELECT 1")))
        alone.append(timed(HELPER, "alone"))
    report('query "SELECT 1", first time (peer: DuckDB loaded alone)', cold, {"value": 150}, peer=alone)
    with Directory():
        timed(*query(None, "SELECT 1"))
        report('query "SELECT 1", worker warm', [timed(*query(None, "SELECT 1")) for _ in range(60)], {"value": 10})


def backtrace():
    target = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        time.sleep(0.5)
        with Directory():
            inside, whole = [], []
            for i in range(105):
                began = time.perf_counter()
                done = subprocess.run([*query(target.pid, BACKTRACE), "--stats"], check=True, capture_output=True, text=True)
                if i >= 5:
                    whole.append((time.perf_counter() - began) * 1e3)
                    inside.append(float(re.search(r"in the worker: ([\d.]+) ms", done.stderr)[1]))
            report("python.backtrace LIMIT 5, inside a warm worker", inside, {"value": 3})
            report("the same, whole command", whole, {})
    finally:
        target.kill()
        target.wait()


def scans():
    with Directory():
        helper = subprocess.Popen([HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "PROBING_SQL_WORKER": str(BIN / "probing-sql")})

        def ask(who, sql):
            helper.stdin.write(f"{who} {sql}\n")
            helper.stdin.flush()
            return float(helper.stdout.readline())

        assert helper.stdout.readline() == "ready\n"
        kinds = [("ours", TOP_TEN), ("native", TOP_TEN), ("ours", SUM), ("native", SUM), ("ours", LAST_TEN), ("ours", LAST_SUM)]
        took = [[] for _ in kinds]
        for i in range(17):
            for values, kind in zip(took, kinds):
                values.extend([ask(*kind)] if i >= 2 else (ask(*kind), [])[1])
        helper.stdin.close()
        helper.wait()
    report("top 10 over 10 million rows (peer: DuckDB's own table)", took[0], {"value": 150, "ratio": 1.5}, peer=took[1])
    report("sum over 10 million rows (peer: DuckDB's own table)", took[2], {}, peer=took[3])
    report("top 10 over the last 1% by time (peer: over all, ours)", took[4], {"ratio": 0.2}, peer=took[0])
    report("sum over the last 1% by time (peer: over all, ours)", took[5], {}, peer=took[2])


def cost(pid):
    """Threads and bytes of the target."""
    status = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1]) for name in ("Threads", "VmSize", "VmData"))


def steps(trainer, seconds):
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        taken.append(float(trainer.stdout.readline()) * 1e3)
    return taken


def target():
    cores = sorted(os.sched_getaffinity(0))
    trainer = subprocess.Popen([sys.executable, "-u", "-c", TRAINER], stdout=subprocess.PIPE, text=True,
                               preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]))
    try:
        os.sched_setaffinity(0, cores[1:] or cores)
        timed(BIN / "probing", "-t", trainer.pid, "inject")
        steps(trainer, 2)
        for name, sql in (("recorded", "SELECT count(*), avg(memory_mb) FROM memory_usage"), ("live", BACKTRACE)):
            with Directory():
                timed(*query(trainer.pid, sql))
                before, without, during, asked = cost(trainer.pid), [], [], 0
                for _ in range(6):
                    without.append(statistics.median(steps(trainer, 0.7)))
                    loop = subprocess.Popen(["sh", "-c", 'while "$@" >/dev/null 2>&1; do :; done', "sh", *query(trainer.pid, sql)])
                    time.sleep(0.05)
                    during.append(statistics.median(steps(trainer, 0.7)))
                    loop.kill()
                    loop.wait()
                after = cost(trainer.pid)
            # A twentieth: what two phases of one idle machine differ by.
            report(f"a step while queries of a {name} table run (peer: none run)", during, {"ratio": 1.05}, peer=without)
            check(f"the target has as many threads and bytes, {name}", before == after, f"{after[0] - before[0]} and {after[1] - before[1]} kB")
    finally:
        os.sched_setaffinity(0, cores)
        trainer.kill()
        trainer.wait()


def resident(pids):
    total = 0
    for pid in pids:
        try:
            total += int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])
        except OSError:
            continue
    return total / 1024


def crowd():
    with Directory() as directory:
        directory.before = frozenset(directory.workers())
        began = time.perf_counter()
        running = [subprocess.Popen([str(word) for word in query(None, "SELECT count(*) FROM range(1000000)")],
                                    stdout=subprocess.PIPE, text=True) for _ in range(100)]
        most, at_once = 0, 0
        while any(process.poll() is None for process in running):
            pids = directory.workers()
            most, at_once = max(most, resident(pids)), max(at_once, len(pids))
            time.sleep(0.05)
        took = (time.perf_counter() - began) * 1e3
        answered = sum("1000000" in process.communicate()[0] for process in running)
    check("100 queries at once, answered", answered == 100, str(answered))
    report("the last of them after", [took], {"value": 10000})
    check("workers at most 8, and within 1 GB", at_once <= 8 and most <= 1024, f"{at_once}, {most:.0f} MB")


ROWS = {"commands": commands, "backtrace": backtrace, "scans": scans, "target": target, "crowd": crowd}

if __name__ == "__main__":
    for row in sys.argv[1:] or ROWS:
        ROWS[row]()
    if failures:
        sys.exit(f"bench/sql.py: not kept: {'; '.join(failures)}")
