"""How long a whole `backtrace` takes, beside `py-spy dump` and, where it is installed, pystack.

    build/venv/bin/python bench/backtrace.py [RUNS]

The target is a torch process (or, where torch is not installed, a plain one with as many threads) with sixteen threads of
its own that sleeps ("idle"), one that trains on one core ("training"), and one that trains with more threads than there are
cores ("crowded"). Then one with 100 further threads: what each of those adds. The commands take turns, so that what else the
machine does hits all of them. Each figure has the start of the process in it; that of `true` is printed for comparison.
The bound in milliseconds holds where a core is free, so it is not asked of the crowded one; the ratio holds everywhere.
"""
import contextlib
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import jobs  # noqa: E402

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
MUST_MS, MUST_RATIO, MUST_THREAD_US = 3.0, 3.0, 35
FURTHER = 100
NULL = os.open(os.devnull, os.O_RDWR)

TORCH = """
import sys, threading, time
try:
    import torch
    torch.set_num_threads(1 if sys.argv[1] == "training" else 4)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    data = torch.randn(64, 256)
    step = lambda: model(data).sum().backward()
except ImportError:
    print("no torch", flush=True)
    step = lambda: sum(range(100000))
step()
while threading.active_count() + 3 < 16 + int(sys.argv[2]):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
if sys.argv[1] == "idle":
    time.sleep(1000)
while True:
    step()
"""


def once(command):
    """Spawned without Python's subprocess, which takes as long again as a short command."""
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, NULL, n) for n in (1, 2)])
    status = os.waitpid(pid, 0)[1]
    return (time.perf_counter() - start) * 1e3, os.waitstatus_to_exitcode(status)


def commands(pid, quiet=False):
    found = {"probing": [jobs.PROGRAM, "-t", pid, "backtrace"], "true": [shutil.which("true")]}
    for name, words in (("py-spy", ["dump", "-p", pid]), ("pystack", ["remote", pid])):
        program = shutil.which(name, path=str(TOP / "build/venv/bin")) or shutil.which(name)
        if program:
            found[name] = [program, *words]
        elif not quiet:
            print(f"  {name}: not installed, not compared")
    return {name: [str(word) for word in words] for name, words in found.items()}


def measure(pid):
    table = commands(pid)
    times = {name: [] for name in table}
    for i in range(RUNS):
        for name, words in table.items():
            if name == "pystack" and i % 10:
                continue  # hundreds of milliseconds each
            ms, status = once(words)
            assert status == 0, f"{name} failed"
            times[name].append(ms)
    return times


@contextlib.contextmanager
def target(mode, further=0):
    with jobs.start(sys.executable, "-c", TORCH, mode, further, ready=None) as job:
        jobs.wait_until(lambda: "ready" in job.output or not job.alive(), seconds=60, what="the start of torch")
        time.sleep(0.3)
        yield job


def show(mode):
    with target(mode) as job:
        maps = Path(f"/proc/{job.pid}/maps").read_text().count("\n")
        print(f"{mode}: {maps} mappings, {len(job.threads())} threads{', no torch' if 'no torch' in job.output else ''}")
        times = measure(job.pid)
    ours = statistics.median(times["probing"])
    for name, values in times.items():
        values.sort()
        print(f"  {name:8} p50 {statistics.median(values):8.2f} ms   p10..p90 {values[len(values) // 10]:.2f}.."
              f"{values[len(values) * 9 // 10]:.2f}   {statistics.median(values) / ours:6.1f} x")
    return ours, statistics.median(times["py-spy"]) / ours if "py-spy" in times else None


def further():
    """What a further thread adds: two targets, measured in turns."""
    with target("idle") as few, target("idle", FURTHER) as many:
        times = {job.pid: [] for job in (few, many)}
        for _ in range(RUNS):
            for pid in times:
                times[pid].append(once(commands(pid, quiet=True)["probing"])[0])
        counts = [len(job.threads()) for job in (few, many)]
    low, high = (statistics.median(values) for values in times.values())
    each = (high - low) * 1e3 / (counts[1] - counts[0])
    print(f"further threads: {counts[0]} threads {low:.2f} ms, {counts[1]} threads {high:.2f} ms: {each:.1f} us each")
    return each


def main():
    failed = False
    for mode in ("idle", "training", "crowded"):
        ours, ratio = show(mode)
        failed |= (mode != "crowded" and ours > MUST_MS) or (ratio is not None and ratio < MUST_RATIO)
    failed |= further() > MUST_THREAD_US
    print(f"must: p50 <= {MUST_MS} ms, {MUST_RATIO} x faster than py-spy, <= {MUST_THREAD_US} us a further thread: "
          f"{'NOT met' if failed else 'met'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
