"""How well the clocks of a cluster's nodes are measured: build/venv/bin/python bench/cluster_clocks.py [MEASUREMENTS]   (default 200)

Nodes are process trees with namespaces of their own on one machine, so the truth is known: their clock is ours, or ours and
a given offset (tests/integration/targets/offset_clock.c).

services  two nodes that run a service: eight exchanges each over one connection
launcher  two nodes by a launcher, one of them 3.25 s ahead: eight exchanges each with a child that is started for it
"""
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import surroundings  # noqa: E402

surroundings.take_folders()
import clock_kit  # noqa: E402
import cluster_kit  # noqa: E402
import jobs  # noqa: E402
import os  # noqa: E402

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 200


def measure(name, truth):
    """Refreshes again and again: how far each offset is from the truth, and the error that was told, in us."""
    kept, found = Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters", f"{name}.cluster"), []
    for _ in range(TIMES):
        done = jobs.probe("cluster", "refresh", name)
        assert done.returncode == 0, done.stderr
        nodes = [line.split() for line in kept.read_text().splitlines() if line.startswith("node ")]
        found += [(abs(int(node[4]) - truth.get(node[1], 0)) / 1000, int(node[5]) / 1000) for node in nodes]
    return found


def show(name, found):
    off, told = sorted(one[0] for one in found), sorted(one[1] for one in found)
    honest = 100 * sum(one[0] <= one[1] for one in found) / len(found)
    print(f"{name:10} {len(found)} offsets: {off[len(off) // 2]:.1f} us off at the median, {off[len(off) * 99 // 100]:.1f} at 99 %, {off[-1]:.1f} at most; "
          f"told {told[len(told) // 2]:.1f} us at the median, honest in {honest:.1f} %; must: within 50 us, honest in 99 %", flush=True)


with TemporaryDirectory() as folder, cluster_kit.nodes(2, 1, Path(folder)) as job:
    cluster_kit.attach("bench", job)
    show("services", measure("bench", {}))
    jobs.probe("cluster", "detach", "bench")
with TemporaryDirectory() as folder, clock_kit.nodes([0, 3_250_000_000], Path(folder)) as (job, words):
    done = jobs.probe("cluster", "attach", "bench", *words)
    assert done.returncode == 0, done.stderr
    show("launcher", measure("bench", {"n1": 3_250_000_000}))
    jobs.probe("cluster", "detach", "bench")
