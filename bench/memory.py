"""What `memory` and the rows of python.memory cost: build/venv/bin/python bench/memory.py

The target's heap has 300,000 or 10 million small lists. `memory` is timed as a whole command; the rows by the CPU time of a
recorder that samples once a second, which does little else.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build/release/bin/probing"
CODE = "import sys, time; keep = [[i] for i in range(int(sys.argv[1]))]; print('ready', flush=True); time.sleep(600)"
SECONDS = 10


def run(*args):
    return subprocess.run([PROGRAM, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    for lists in (300000, 10000000):
        target = subprocess.Popen([sys.executable, "-c", CODE, str(lists)], stdout=subprocess.PIPE)
        target.stdout.readline()
        run(target.pid, "memory")
        took = []
        for _ in range(20):
            begun = time.perf_counter()
            shown = json.loads(run(target.pid, "memory", "--json"))[0]
            took.append((time.perf_counter() - begun) * 1e3)
        before = cpu_of_children()
        run(target.pid, "record", "--rate", 1, "--duration", SECONDS)
        cpu = cpu_of_children() - before
        print(f"heap of {shown['heap_bytes'] / 2**20:.0f} MB, {shown['heap_blocks']} blocks: memory p50 {statistics.median(took):.1f} ms "
              f"(worst {max(took):.1f}); a recorder's CPU {cpu / SECONDS * 1e3:.1f} ms a second", flush=True)
        target.kill()
        target.wait()
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
