"""How long `bundle` takes for 64 ranks that wait, each with ten minutes of rows.

    build/venv/bin/python bench/bundle.py [RANKS]
"""
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/integration"))
import jobs  # noqa: E402

RANK = """
import time
def forward(batch): time.sleep(10**6)
print("ready", flush=True)
forward(1)
"""
LOG = "import probing\nfor i in range(6000): probing.log(step=i, loss=float(i))"


def main():
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            stack.enter_context(jobs.python(RANK, env={"RANK": str(rank), "WORLD_SIZE": str(world),
                                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}))
        done = jobs.probe("-t", os.getpid(), "--all", "eval", "--timeout", "120", LOG, timeout=600)
        assert done.returncode == 0, done.stderr
        for _ in range(3):
            path = Path(folder, "incident.probing")
            before, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([jobs.PROGRAM, "-t", str(os.getpid()), "--all", "bundle", "-o", path],
                                  capture_output=True, text=True)
            took, now = time.monotonic() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            assert done.returncode == 0, done.stderr
            print(f"{world} ranks: {took:.1f} s, {cpu:.1f} s of CPUs, {path.stat().st_size / 2**20:.1f} MB, "
                  f"load {os.getloadavg()[0]:.1f}")
            print(done.stdout)


if __name__ == "__main__":
    main()
