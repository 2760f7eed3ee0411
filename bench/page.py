"""What the page takes and how fast it is, in Chromium: build/venv/bin/python bench/page.py [load] [flame] [rows] [open]

load      bytes before the first view and in all, compressed; first contentful paint, nine times
flame     a flame graph of 100,000 nodes: script time of each step of zooms and walks
rows      a result of a million rows: script time of each jump while it is scrolled
open      the page open on Now, then on Activity, of a job of 4 and of 64 ranks, live at 1 Hz: CPU time of the page's own
          process, and of the service and its commands. It sees all Python processes of the machine: where others run,
          give it a process namespace of its own (unshare -pfm --mount-proc)
"""
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from serve import MARK, TOP, cpu_seconds, jobs, service, show  # bench/serve.py

CHROMIUM = "/usr/bin/chromium"
SETTLE, SECONDS = 12, 60


def measure(s, folder, what, **plan):
    (folder / "plan").write_text(json.dumps({"chromium": CHROMIUM, "modules": str(TOP / "web/package.json"), "url": f"http://{s.address}/?token={s.token}", "what": what, **plan}))
    done = subprocess.run(["node", TOP / "bench/page.mjs", folder / "plan"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def load(s, running, folder):
    found = measure(s, folder, "load")
    files = TOP / "build/release/page/files"
    everything = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files.rglob("*") if path.is_file())
    show("load", f"{found['bytes'] / 1024:.1f} KB before the first view, {everything / 1024:.1f} KB in all; first paint median {statistics.median(found['paints']):.0f} ms, worst {max(found['paints']):.0f}",
         "40 KB, 300 KB, 300 ms")


def say(took):
    took = sorted(took)
    return f"median {statistics.median(took):.1f} ms, p95 {took[int(len(took) * 0.95)]:.1f}, worst {took[-1]:.1f}"


def flame(s, running, folder):
    show("flame", say(measure(s, folder, "flame", target=running[0].pid)["took"]), "16 ms each")


def rows(s, running, folder):
    found = measure(s, folder, "rows")
    assert found["last"]
    show("rows", say(found["took"]), "they scroll")


STEPS = """
import time, probing

def train_step():
    time.sleep(0.05)

print("ready", flush=True)
for step in range(10**9):
    train_step()
    if step % 20 == 0:
        probing.log(step=step, loss=1 / (step + 1))
"""


def open_(s, running, folder):
    for ranks, must in ((4, "3%"), (64, "8%")):
        script = folder / f"train{ranks}.py"
        script.write_text(STEPS)
        with ExitStack() as stack:
            for rank in range(ranks):
                one = stack.enter_context(subprocess.Popen([jobs.PROGRAM, "launch", "--", sys.executable, script], stdout=subprocess.PIPE,
                                                           env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)}))
                stack.callback(one.kill)
                assert one.stdout.readline()
            for view in ("now", "activity"):
                with ThreadPoolExecutor(1) as pool:
                    page = pool.submit(measure, s, folder, "open", hash=f"#/{view}?target={script.name}&all=1", seconds=SETTLE + SECONDS + 2)
                    time.sleep(SETTLE)  # the browser starts, and the workers of SQL with the page's first questions
                    before, begun = cpu_seconds(s.process.pid), time.monotonic()
                    time.sleep(SECONDS)
                    share = (cpu_seconds(s.process.pid) - before) / (time.monotonic() - begun)
                    own = page.result()["page"]
                show("open", f"{view}, {ranks} ranks: {share:.1%} of a core in the service and its commands, {own:.1%} in the page", must)


NAMES = {"load": load, "flame": flame, "rows": rows, "open": open_}
if __name__ == "__main__":
    with ExitStack() as stack, TemporaryDirectory() as folder:
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
        names = sys.argv[1:] or list(NAMES)
        running = [stack.enter_context(jobs.python(flags=MARK)) for _ in range(0 if names == ["open"] else 8)]
        for job in running:
            subprocess.run([jobs.PROGRAM, str(job.pid), "inject"], check=True, capture_output=True)
        s = stack.enter_context(service(Path(folder) / "r"))
        for name in names:
            NAMES[name](s, running, Path(folder))
