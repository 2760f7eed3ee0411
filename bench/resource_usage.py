"""What the row a second of resource_usage costs in the job: CPU time of the resident thread with the probe and without.

    build/venv/bin/python bench/resource_usage.py [SECONDS]

Must: 0.05% of a core. Measured for programs with few and with many descriptors and threads; both states take turns.
"""
import statistics
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import jobs  # noqa: E402

PROGRAMS = {
    "10 descriptors, 1 thread": "",
    "1000 descriptors": "kept = [os.dup(0) for _ in range(1000)]",
    "200 threads": "[threading.Thread(target=threading.Event().wait, daemon=True).start() for _ in range(200)]",
}


def cpu_ns(job):
    """CPU time so far of the agent's resident thread."""
    for task in Path(f"/proc/{job.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "probing":
            return int((task / "schedstat").read_text().split()[0])
    raise RuntimeError("no agent")


def measure(job, seconds):
    before = cpu_ns(job)
    time.sleep(seconds)
    return (cpu_ns(job) - before) / seconds / 1e7  # percent of a core


def main(seconds):
    for name, setup in PROGRAMS.items():
        code = f"import os, threading, time\n{setup}\nprint('ready', flush=True)\ntime.sleep(1000)"
        with jobs.python(code) as job:
            assert jobs.probe(job.pid, "inject").returncode == 0
            shares = {"start": [], "stop": []}
            for _ in range(3):
                for word, measured in shares.items():
                    assert jobs.probe(job.pid, "probes", word, "resource_usage").returncode == 0
                    measured.append(measure(job, seconds))
            on, off = (statistics.median(shares[word]) for word in ("start", "stop"))
            print(f"{name}: {on - off:.4f}% of a core (with {on:.4f}, without {off:.4f}); must 0.05")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
