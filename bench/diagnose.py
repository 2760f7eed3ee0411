"""How long diagnose takes, and what looking by itself costs: build/venv/bin/python bench/diagnose.py [NAME...]

ranks64   64 ranks on one machine, one of them stopped: from the command to the answer, median and most of 5
nodes32   32 nodes (pid namespaces, a service each) with 2 ranks each, one rank stopped: the same, by -t cluster
every     `diagnose --every 30s` over 8 ranks at rest: CPU of it and of all its children, as a share of a core
"""
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import surroundings  # noqa: E402

surroundings.take_folders()
import cluster_kit  # noqa: E402
import jobs  # noqa: E402

RANK = "import time\nprint('ready', flush=True)\ndef all_reduce():\n    time.sleep(3600)\nall_reduce()\n"


def show(name, text, must):
    print(f"{name:8} {text}; must: {must}; load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores", flush=True)


def ranks_here(stack, count):
    environment = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    return [stack.enter_context(jobs.python(RANK, env={**environment, "RANK": str(rank)})) for rank in range(count)]


def measure(name, target, stopped, runs=5):
    took = []
    for _ in range(runs):
        began = time.monotonic()
        done = jobs.probe("-t", target, "diagnose", timeout=120)
        took.append(time.monotonic() - began)
        assert done.returncode == 10 and stopped in done.stdout, done.stdout + done.stderr
    show(name, f"{statistics.median(took):.1f} s, at most {max(took):.1f} s", "5 s")


def ranks64():
    with ExitStack() as stack:
        ranks = ranks_here(stack, 64)
        os.kill(ranks[5].pid, signal.SIGSTOP)
        measure("ranks64", ranks[0].pid, "Rank 5 is stopped")


def nodes32():
    with TemporaryDirectory() as folder, cluster_kit.nodes(32, 2, Path(folder)) as job:
        cluster_kit.attach("bench", job)
        marked = b"RANK=41\0", job.mark.encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if b"\0" + marked[0] in b"\0" + environment and marked[1] in environment:
                os.kill(int(process.name), signal.SIGSTOP)
        measure("nodes32", "cluster:bench", "Rank 41 is stopped")


def every():
    seconds = 120
    with ExitStack() as stack:
        first = ranks_here(stack, 8)[0]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        asked = subprocess.Popen([jobs.PROGRAM, "-t", str(first.pid), "diagnose", "--every", "30s"])
        time.sleep(seconds)
        asked.send_signal(signal.SIGINT)
        asked.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    show("every", f"{100 * used / seconds:.2f}% of a core", "small")


BENCHES = {"ranks64": ranks64, "nodes32": nodes32, "every": every}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or BENCHES:
        BENCHES[chosen]()
