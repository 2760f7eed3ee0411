"""Native stacks of a PyTorch process: whole commands beside py-spy's, and what one more sample costs.

    build/venv/bin/python bench/native.py [RUNS]

The job has 16 threads of its own, in tensor code, in locks and asleep. Commands take turns, so that a slow spell of the
machine hits all. "ours" is `probing backtrace --native`: Python and native frames of every thread, with lines; py-spy leaves
out threads without Python. "one more sample" is a round over all threads with everything cached, as a sampler sees it, by
a program of the tests that takes native stacks only.
"""
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
RELEASE = Path(os.environ.get("PROBING_BUILD", TOP / "build/release"))
RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
MUST_BE_FASTER = 5
JOB = """
import threading, time, torch
torch.set_num_threads(2)
def work(pause):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    batch = torch.randn(8, 16, 64)
    while True:
        layer(batch).sum().backward()
        time.sleep(pause)
def waits(lock):
    lock.acquire()
lock = threading.Lock()
lock.acquire()
for i in range(5):
    threading.Thread(target=work, args=(0.05,), daemon=True).start()
for i in range(10):
    threading.Thread(target=waits, args=(lock,), daemon=True).start()
time.sleep(2)
print("ready", flush=True)
work(0.01)
"""


def peer():
    for folder in (TOP / "build/venv/bin", TOP / "build/bench/bin"):
        if (folder / "py-spy").exists():
            return str(folder / "py-spy")
    return shutil.which("py-spy")


def seconds(command):
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    taken = time.perf_counter() - began
    return taken if done.returncode == 0 and done.stdout else None


def spread(name, times, failed):
    times = sorted(t * 1000 for t in times)
    print(f"  {name:<28} {statistics.median(times):8.2f} ms   ({times[0]:.2f} to {times[-1]:.2f}, {len(times)} runs"
          + (f", {failed} failed)" if failed else ")"))
    return statistics.median(times)


def compare(pid, dump):
    commands = {"ours": [str(RELEASE / "bin/probing"), "-t", pid, "backtrace", "--native"], "native frames alone": [dump, pid]}
    if peer():
        commands["py-spy dump --native"] = [peer(), "dump", "--native", "--pid", pid]
    else:
        print("  py-spy is not installed: scripts/setup.sh bench")
    times = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            times[name].append(seconds(command))
    medians = {}
    for name, all_times in times.items():
        good = [t for t in all_times if t is not None]
        if good:
            medians[name] = spread(name, good, len(all_times) - len(good))
    return medians


def sample(pid, dump):
    """Costs of a round in a process that was seen before, and of holding a thread."""
    rounds = 300
    text = subprocess.run([dump, pid, f"repeat={rounds}"], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    first, whole, held = map(int, re.search(r"first (\d+) all (\d+) held (\d+)", text).groups())
    threads = text.count("thread ")
    each = (whole - first) / (rounds - 1)
    print(f"  one more sample of {threads} threads {each / 1000:8.2f} ms   ({each / threads:.0f} us a thread, held {held} us of it)")


def main():
    with tempfile.TemporaryDirectory() as folder:
        dump = str(Path(folder) / "native_dump")
        libraries = [str(RELEASE / f"libpb_{name}.a") for name in ("remote", "control", "table", "base")]
        subprocess.run(["cc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", f"-I{TOP / 'src'}", str(TOP / "tests/integration/targets/native_dump.c"), "-o", dump,
                        *libraries, "-ldl", "-lpthread"], check=True)
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        job = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, universal_newlines=True)
        try:
            if job.stdout.readline() != "ready\n":
                print("  the job did not start: torch is needed")
                return 1
            pid = str(job.pid)
            mappings = len(Path(f"/proc/{pid}/maps").read_text().splitlines())
            print(f"  a PyTorch process, {mappings} mappings, {len(os.listdir(f'/proc/{pid}/task'))} threads, {os.cpu_count()} CPUs")
            medians = compare(pid, dump)
            sample(pid, dump)
        finally:
            job.kill()
            job.wait()
    if "py-spy dump --native" not in medians:
        return 0
    ratio = medians["py-spy dump --native"] / medians["ours"]
    print(f"  {ratio:.1f} times as fast as py-spy --native (must be {MUST_BE_FASTER})")
    return 0 if ratio >= MUST_BE_FASTER else 1


if __name__ == "__main__":
    sys.exit(main())
