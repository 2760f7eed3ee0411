"""The sampler as an ordinary user beside root: how true its profiles are of programs that are hard to sample, and what it costs.

    build/venv/bin/python bench/ordinary.py [ROW...]     rows: sleeps calls gil churn deep truth cost100 cost1000

Root reads running threads in interrupts (BPF); an ordinary user, who has no capability, stops them. Each program measures by itself how
long every function of every thread takes; a row gives the total variation distance between that and the profile: the best, the median and
the worst of TURNS (3), and what chance alone would give. truth counts impossible stacks. cost: time taken from a thread that computes.
The peer is py-spy, as root, where it is installed (PY_SPY names it); its median is also given as a multiple of each of ours.
"""
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import sampler
from sampler import NEWEST, ORDINARY, Computing, profile_kit, jobs

TURNS, SECONDS, RATE = int(os.environ.get("TURNS", 3)), float(os.environ.get("SECONDS", 2)), 500
PY_SPY = os.environ.get("PY_SPY", sampler.PY_SPY)
SLOTS = 64

HEAD = """
import itertools, mmap, os, sys, threading, time
clock = time.perf_counter_ns
with open(sys.argv[1], "r+b") as f:
    spent = memoryview(mmap.mmap(f.fileno(), 0)).cast("q")
names, lock = {}, threading.Lock()
def timed(function, *args):  # each thread has slots of its own
    start = clock()
    function(*args)
    key = (threading.get_ident(), function.__name__)
    slot = names.get(key)
    if slot is None:
        with lock: slot = names[key] = len(names) % len(spent)
        with open(sys.argv[2], "a") as f: print(slot, function.__name__, file=f)
    spent[slot] += clock() - start
def work(n):
    for _ in range(n): pass
"""
PROGRAMS = {
    "sleeps": """
def compute_long(): work(9000)
def compute_short(): work(1500)
def sleep_long(): time.sleep(0.002)
def sleep_short(): time.sleep(0.0003)
def main():
    for f in itertools.cycle((compute_long, sleep_short, compute_short, sleep_long)): timed(f)
""",
    "calls": """
zero = os.open("/dev/zero", os.O_RDONLY); r, w = os.pipe(); block = bytearray(1 << 20)
def call_stat():
    for _ in range(100): os.stat("/")
def call_read(): os.readv(zero, [block])
def call_pipe():
    for _ in range(50): os.write(w, b"x"); os.read(r, 1)
def compute(): work(4000)
def main():
    for f in itertools.cycle((call_stat, compute, call_read, call_pipe)): timed(f)
""",
    "gil": """
def hold_long(): work(20000)
def hold_short(): work(3000)
def let_go(): time.sleep(0.0005)
def turn():
    for f in itertools.cycle((hold_short, let_go, hold_long)): timed(f)
def main():
    for _ in range(3): threading.Thread(target=turn, daemon=True).start()
    turn()
""",
    "churn": """
def brief(): work(15000)
def nap(): time.sleep(0.01)
def live():
    for _ in range(3): timed(brief); timed(nap)
def start_two():
    threads = [threading.Thread(target=live) for _ in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
def between(): work(30000)
def main():
    while True: timed(start_two); timed(between)
""",
    "deep": """
sys.setrecursionlimit(4000)
def leaf_long(): work(6000)
def leaf_short(): work(1000)
def leaf_sleep(): time.sleep(0.0005)
def loop():
    for f in itertools.cycle((leaf_long, leaf_sleep, leaf_short)): timed(f)
def down(n): return down(n - 1) if n else loop()
def main(): down(1500)
""",
}


class Program:
    """One of them, running, with what it has measured so far."""
    def __init__(self, name, folder):
        self.file, self.names = folder / "spent", folder / "names"
        self.file.write_bytes(bytes(8 * SLOTS))
        self.names.write_text("")
        script = folder / f"{name}.py"
        script.write_text(HEAD + PROGRAMS[name] + "print('ready', flush=True)\nmain()\n")
        self.job = jobs.start(*ORDINARY, NEWEST, script, self.file, self.names, ready="ready")

    def __enter__(self):
        self.running = self.job.__enter__()
        time.sleep(0.3)
        return self

    def __exit__(self, *error):
        return self.job.__exit__(*error)

    @property
    def pid(self):
        return self.running.pid

    def spent(self):
        """{function: ns}, all threads together."""
        slots = struct.unpack(f"{SLOTS}q", self.file.read_bytes())
        named = {int(line.split()[0]): line.split()[1] for line in self.names.read_text().splitlines()}
        total = {}
        for slot, name in named.items():
            total[name] = total.get(name, 0) + slots[slot]
        return total


def tools():
    found = {"root": [str(sampler.PROBING)], "ordinary user": [*ORDINARY, str(sampler.PROBING)]}
    if PY_SPY:
        found["py-spy"] = [PY_SPY]
    return found


def print_ratio(medians):
    """The peer's median as a multiple of ours: above 1 it is farther from the truth, or costs more."""
    peer = medians.pop("py-spy", None)
    if peer is None:
        print("    py-spy: not installed" if not PY_SPY else "    py-spy: no profile", flush=True)
        return
    print("    py-spy " + ", ".join(f"{peer / ours:.1f} x {tool}" if ours > 0 else f"{peer:+.2f} to {ours:+.2f} of {tool}" for tool, ours in medians.items()), flush=True)


def take(name, command, pid, out, rate, seconds, *options):
    words = (["record", "-p", pid, "-o", out, "-f", "raw", "-r", rate, "-d", max(1, round(seconds)), "--idle"] if name == "py-spy" else
             ["-t", pid, "flamegraph", "-o", out, "-r", rate, "-d", seconds, "--idle", *options])
    done = sampler.run(*command, *words)
    return done.stdout if done.returncode == 0 else None


def count(out, functions):
    """Samples by the innermost of those functions."""
    counts = {}
    for stack, n in profile_kit.read_folded(Path(out).read_text(errors="replace"), strict=False):
        inner = next((name for name, _ in reversed(stack) if name in functions), None)
        if inner:
            counts[inner] = counts.get(inner, 0) + n
    return counts


def row_bias(name, where):
    found = {tool: [] for tool in tools()}
    floors, ways = [], {}
    with Program(name, where) as program:
        for _ in range(TURNS):
            for tool, command in tools().items():
                before = program.spent()
                said = take(tool, command, program.pid, where / "a.folded", RATE, SECONDS)
                after = program.spent()
                truth = {key: after[key] - before.get(key, 0) for key in after}
                counts = count(where / "a.folded", truth) if said is not None else {}
                if not counts:
                    continue
                found[tool].append(profile_kit.distance(truth, counts))
                n = sum(counts.values())
                floors.append(sum((2 / 3.14159 * s * (1 - s) / n) ** 0.5 for s in (t / sum(truth.values()) for t in truth.values())) / 2)
                if tool != "py-spy":
                    ways[tool] = next((line.strip() for line in said.splitlines() if "stacks read" in line), "")
    for tool, values in found.items():
        if values:
            print(f"    {tool}: {min(values):.3f} {statistics.median(values):.3f} {max(values):.3f}   {ways.get(tool, '')}", flush=True)
        else:
            print(f"    {tool}: no profile", flush=True)
    print_ratio({tool: statistics.median(values) for tool, values in found.items() if values})
    print(f"    chance alone: {statistics.median(floors):.3f}" if floors else "    nothing was measured")


def row_truth(where):
    """Impossible stacks of the tree, while others want the CPUs too."""
    tree = profile_kit.Tree()
    script = where / "tree.py"
    script.write_text(tree.source)
    with jobs.start(*ORDINARY, NEWEST, script, ready="ready") as job, jobs.start(sys.executable, "-c", "while True: pass"):
        for tool, command in tools().items():
            total = wrong = cut = 0
            for _ in range(TURNS):
                out = where / "b.folded"
                if tool == "py-spy":
                    take(tool, command, job.pid, out, 1000, SECONDS)
                    n, bad = 0, 0
                    for stack, k in profile_kit.read_folded(out.read_text(errors="replace"), strict=False):
                        names = [name for name, _ in stack]
                        n += k
                        if names[-1] != "<module>" and names != [name for name, _ in tree.path(int(names[-1][1:]))]:
                            bad += k
                    total, wrong = total + n, wrong + bad
                    continue
                take(tool, command, job.pid, out, 2000, SECONDS, "--lines")
                n, bad, short, _ = profile_kit.check_tree(tree, profile_kit.read_folded(out.read_text()))
                total, wrong, cut = total + n, wrong + bad, cut + short
            print(f"    {tool}: {wrong} impossible, {cut} cut of {total}", flush=True)


def row_cost(where, hz):
    target = Computing(where / "lost")
    script = where / "computing.py"
    script.write_text(target.code.format(file=str(target.file)))
    with jobs.start(*ORDINARY, NEWEST, script, ready="ready") as job:
        losses, plain = {name: [] for name in tools()}, [target.measure(sampler.WITHOUT_S)]
        for _ in range(max(4, TURNS)):
            for name, command in tools().items():
                words = (["record", "-p", job.pid, "-o", where / "c.folded", "-f", "raw", "-r", hz, "-d", 30] if name == "py-spy" else
                         ["-t", job.pid, "flamegraph", "-o", where / "c.folded", "-r", hz, "-d", 30])
                taken = sampler.under([*command, *words], target)
                plain.append(target.measure(sampler.WITHOUT_S))
                losses[name].append(target.loss((plain[-2] + plain[-1]) / 2, taken))
    for name, values in losses.items():
        low, middle, high = statistics.quantiles(values)
        print(f"    {name}: {middle:+.2f}% of its time (quartiles {low:+.2f} {high:+.2f})", flush=True)
    print_ratio({name: statistics.median(values) for name, values in losses.items()})


ROWS = {**{name: lambda where, name=name: row_bias(name, where) for name in PROGRAMS}, "truth": row_truth,
        "cost100": lambda where: row_cost(where, 100), "cost1000": lambda where: row_cost(where, 1000)}


def main():
    with tempfile.TemporaryDirectory(prefix="probing-bench-") as where:
        for name in sys.argv[1:] or ROWS:
            print(f"{name}: load {os.getloadavg()[0]:.1f}", flush=True)
            ROWS[name](Path(where))


if __name__ == "__main__":
    main()
