"""How long a whole `backtrace` takes, beside `py-spy dump` and, where it is installed, pystack.

    build/venv/bin/python bench/backtrace.py [RUNS]

The target is a torch process (or, where torch is not installed, a plain one with as many threads) that sleeps, with
sixteen threads, then one that trains. The commands take turns, so that what else the machine does hits all of them.
Each figure has the start of the process in it; that of `true` is printed for comparison. The bounds hold for a machine
with a free core.
"""
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import jobs  # noqa: E402

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
MUST_MS, MUST_RATIO = 3.0, 3.0

TORCH = """
import sys, threading, time
try:
    import torch
    torch.set_num_threads(4)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    data = torch.randn(64, 256)
    step = lambda: model(data).sum().backward()
except ImportError:
    print("no torch", flush=True)
    step = lambda: sum(range(100000))
step()
while threading.active_count() + 3 < 16:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
if sys.argv[1] == "idle":
    time.sleep(1000)
while True:
    step()
"""


def once(command):
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3, done.returncode


def commands(pid):
    found = {"probing": [jobs.PROGRAM, "-t", pid, "backtrace"], "true": ["true"]}
    for name, words in (("py-spy", ["dump", "-p", pid]), ("pystack", ["remote", pid])):
        program = shutil.which(name, path=str(TOP / "build/venv/bin")) or shutil.which(name)
        if program:
            found[name] = [program, *words]
        else:
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


def show(mode):
    with jobs.start(sys.executable, "-c", TORCH, mode, ready=None) as job:
        jobs.wait_until(lambda: "ready" in job.output or not job.alive(), seconds=60, what="the start of torch")
        time.sleep(0.3)
        maps = Path(f"/proc/{job.pid}/maps").read_text().count("\n")
        print(f"{mode}: {maps} mappings, {len(job.threads())} threads{', no torch' if 'no torch' in job.output else ''}")
        times = measure(job.pid)
    ours = statistics.median(times["probing"])
    for name, values in times.items():
        values.sort()
        print(f"  {name:8} p50 {statistics.median(values):8.2f} ms   p10..p90 {values[len(values) // 10]:.2f}.."
              f"{values[len(values) * 9 // 10]:.2f}   {statistics.median(values) / ours:6.1f} x")
    return ours, statistics.median(times["py-spy"]) / ours if "py-spy" in times else None


def main():
    failed = False
    for mode in ("idle", "training"):
        ours, ratio = show(mode)
        failed |= ours > MUST_MS or (ratio is not None and ratio < MUST_RATIO)
    print(f"must: p50 <= {MUST_MS} ms, {MUST_RATIO} x faster than py-spy: {'NOT met' if failed else 'met'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
