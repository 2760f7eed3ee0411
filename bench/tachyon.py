"""CPython's own tools beside ours, on CPython 3.15: the sampler `python -m profiling.sampling` (Tachyon) and
`python -m asyncio pstree`. Both read 3.15 only, so all programs run in the root of Debian unstable (scripts/root.sh sid), as root.

    build/venv/bin/python bench/tachyon.py [ROW...]     rows: truth bias taken tasks

truth: samples, and of those that were kept the impossible ones, of calls whose stacks are known. bias: the distance of a
profile from what the program measured by itself. taken: the share of time that a sampler takes from a thread that
computes, and from a CPU for itself. tasks: the time of one look at 100 asyncio tasks. DURATION (5) is how many seconds each is
sampled, TURNS (8) how often `taken` alternates. Each row prints the load.
"""
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "bench")]
import profile_kit  # noqa: E402
import roots  # noqa: E402
import sampler  # noqa: E402

PYTHON = "/usr/bin/python3.15"
SECONDS = int(os.environ.get("DURATION", 5))
TURNS = int(os.environ.get("TURNS", 8))
TASKS = """
import asyncio
async def leaf(n): await asyncio.sleep(1000)
async def middle(n): await leaf(n)
async def main():
    async with asyncio.TaskGroup() as group:
        for n in range(100): group.create_task(middle(n), name="child %d" % n)
        print("ready", flush=True)
asyncio.run(main())
"""


@contextmanager
def program(code):
    script = roots.path("sid") / "tmp/tachyon-target.py"
    script.write_text(code)
    try:
        with roots.start("sid", PYTHON, "/tmp/tachyon-target.py") as target:
            target.wait_for("ready")
            yield target
    finally:
        script.unlink()


def inside(target, *words):
    """A command of the same root and namespaces, where the target is process 1."""
    return ["nsenter", f"--target={target.pid}", "--pid", "--mount", "--root", "--wd", PYTHON, "-m", *words, "1"]


def attach(target, rate, seconds, out, *options):
    return inside(target, "profiling.sampling", "attach", "-r", str(rate), "-d", str(seconds), "--collapsed", "-o",
                  f"/tmp/{out}", *options)


def tachyon(target, rate, *options):
    """(what it printed, its stacks as read_folded gives them, CPU seconds)."""
    done, cpu, _ = sampler.cpu_of_children(
        lambda: sampler.run(*attach(target, rate, SECONDS, "tachyon.out", *options)))
    assert done.returncode == 0, done.stderr
    out = roots.path("sid") / "tmp/tachyon.out"
    stacks = []
    for row in out.read_text().splitlines():
        frames, count = row.rsplit(" ", 1)
        parts = [frame.rsplit(":", 2) for frame in frames.split(";") if not frame.startswith("tid:")]
        stacks.append(([(part[1], int(part[2])) if len(part) == 3 else ("?", None) for part in parts], int(count)))
    out.unlink()
    return done.stdout + done.stderr, stacks, cpu


def ours(target, rate, where, *options):
    said, cpu, _ = sampler.cpu_of_children(
        lambda: sampler.probing(target.pid, where / "a.folded", rate, SECONDS, "--lines", *options))
    return said, profile_kit.read_folded((where / "a.folded").read_text()), cpu


def row_truth(where):
    tree = profile_kit.Tree()
    with program(tree.source) as target:
        for rate in (1000, 10000, 100000):
            for options in ([], ["--blocking"]):
                if options and rate == 100000:
                    continue
                said, stacks, cpu = tachyon(target, rate, *options)
                taken = int(re.search(r"Captured ([\d,]+) samples", said)[1].replace(",", ""))
                kept, wrong, cut, _ = profile_kit.check_tree(tree, stacks)
                print(f"    Tachyon {rate} Hz {' '.join(options)}: {taken} samples, {kept} kept, {wrong} impossible and {cut} "
                      f"cut of these; CPU {100 * cpu / SECONDS:.0f}%", flush=True)
            said, stacks, cpu = ours(target, rate, where)
            kept, wrong, cut, _ = profile_kit.check_tree(tree, stacks)
            sampler.check("truth", wrong == 0 and cut <= kept / 100,
                          f"probing {rate} Hz: {kept} samples, {wrong} impossible, {cut} cut; CPU {100 * cpu / SECONDS:.0f}%; "
                          f"{said.splitlines()[1].strip()}")


def row_bias(where):
    loops = (400, 50, 900, 100, 200, 1500, 30, 700, 300, 60)
    functions = "\n".join(f"def g{i}():\n    for _ in range({n}): pass" for i, n in enumerate(loops))
    spent = roots.path("sid") / "tmp/tachyon-spent"
    spent.write_bytes(bytes(8 * len(loops)))
    code = profile_kit.SHARES.format(functions=functions, names=", ".join(f"g{i}" for i in range(len(loops))))

    def read():
        return struct.unpack(f"{len(loops)}q", spent.read_bytes())

    with program(code.replace("sys.argv[1]", repr("/tmp/tachyon-spent"))) as target:
        for rate in (1000, 10000):
            before = read()
            _, stacks, _ = tachyon(target, rate)
            sampler.show_bias(f"Tachyon {rate} Hz", before, read(), stacks, False)
            before = read()
            _, stacks, _ = ours(target, rate, where)
            sampler.show_bias(f"probing {rate} Hz", before, read(), stacks, True)
    spent.unlink()


def row_taken(where):
    lost = roots.path("sid") / "tmp/tachyon-lost"
    measured = sampler.Computing(lost)
    with program(sampler.COMPUTING.format(file="/tmp/tachyon-lost")) as target:
        for rate in (100, 1000, 10000):
            tools = {"probing": [sampler.PROBING, "-t", target.pid, "flamegraph", "-o", where / "x.folded", "-r", rate, "-d", 30],
                     "Tachyon": attach(target, rate, 30, "tachyon.out"),
                     "Tachyon --blocking": attach(target, rate, 30, "tachyon.out", "--blocking")}
            losses, plain = {name: [] for name in tools}, [measured.measure(sampler.WITHOUT_S)]
            for _ in range(TURNS):
                for name, command in tools.items():
                    with_it = sampler.under(command, measured)
                    plain.append(measured.measure(sampler.WITHOUT_S))
                    losses[name].append(measured.loss((plain[-2] + plain[-1]) / 2, with_it))
            for name, values in losses.items():
                low, middle, high = statistics.quantiles(values)
                print(f"    {rate} Hz: {name} takes {middle:+.2f}% (quartiles {low:+.2f} {high:+.2f})", flush=True)
    lost.unlink()


def row_tasks(where):
    with program(TASKS) as target:
        looks = {"probing backtrace": [sampler.PROBING, "-t", target.pid, "backtrace"],
                 "asyncio pstree": inside(target, "asyncio", "pstree")}
        for name, command in looks.items():
            times, said = [], ""
            for _ in range(10):
                start = time.monotonic()
                said = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      universal_newlines=True).stdout
                times.append(1000 * (time.monotonic() - start))
            named = len(set(re.findall(r"child \d+", said)))
            text = f"{name}: {statistics.median(times):.0f} ms (least {min(times):.0f}, most {max(times):.0f}), {named} of 100 tasks named"
            if name.startswith("probing"):
                sampler.check("tasks", named == 100, text)
            else:
                print(f"    {text}")


ROWS = {"truth": row_truth, "bias": row_bias, "taken": row_taken, "tasks": row_tasks}


def main():
    if os.geteuid() != 0:
        print("left out: the root of Debian unstable needs root rights")
        return 0
    with tempfile.TemporaryDirectory(prefix="probing-bench-") as where:
        for name in sys.argv[1:] or ROWS:
            print(f"{name}: load {os.getloadavg()[0]:.1f}", flush=True)
            ROWS[name](Path(where))
    print("missed: " + "; ".join(sampler.missed) if sampler.missed else "all bounds held", flush=True)
    return 1 if sampler.missed else 0


if __name__ == "__main__":
    sys.exit(main())
