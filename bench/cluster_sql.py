"""SQL over the ranks of a cluster: build/venv/bin/python bench/cluster_sql.py [NODES RANKS ROWS]   (default 8 8 1000000)

Nodes are process trees with pids and a service of their own, and RANKS ranks each that have recorded ROWS rows.

sum       sum by rank over all of them: time of the whole command, bytes that travelled
rows      the rows of one rank by a condition, and the newest of all: what travels where there is nothing to sum up
"""
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import cluster_kit  # noqa: E402
import jobs  # noqa: E402

NODES, RANKS, ROWS = (int(word) for word in (sys.argv[1:] or ("8", "8", "1000000")))

cluster_kit.RANK = f"""
import os, time, probing
rank = int(os.environ["RANK"])
table = probing.table("load", {{"step": int, "value": float}})
for step in range({ROWS}):
    table.append(step, float(step % 1000 + rank))
print("ready", rank, flush=True)
time.sleep(3600)
"""
environment = cluster_kit.rank_environment
# The rows of a rank are some 25 bytes each, more than the usual bound of its tables holds.
cluster_kit.rank_environment = lambda *words: {**environment(*words), "PROBING": "1", "PYTHONPATH": str(TOP / "python"),
                                               "PROBING_MAX_MEMORY": f"{max(40, ROWS * 64 >> 20)}MB"}


def ask(sql, times=5):
    """The fastest of some: seconds, rows as text, bytes that travelled."""
    best, text, sent = None, "", 0
    for _ in range(times):
        start = time.perf_counter()
        done = jobs.probe("-t", "cluster:bench", "query", "--format", "csv", "--stats", "--timeout", "60", sql)
        took = time.perf_counter() - start
        assert done.returncode == 0, done.stderr
        if best is None or took < best:
            best, text, sent = took, done.stdout, int(re.search(r"bytes: (\d+)", done.stderr)[1])
    return best, text.splitlines()[1:], sent


with TemporaryDirectory() as folder, cluster_kit.nodes(NODES, RANKS, Path(folder)) as job:
    cluster_kit.attach("bench", job)
    took, rows, sent = ask("SELECT rank, sum(value), count(*) FROM load GROUP BY rank ORDER BY rank")
    expected = [f"{rank},{float(sum(step % 1000 for step in range(ROWS)) + rank * ROWS)},{ROWS}" for rank in range(NODES * RANKS)]
    assert rows == expected, (rows[:3], expected[:3])
    print(f"sum        {NODES * RANKS} ranks x {ROWS} rows on {NODES} nodes: {took:.2f} s, {sent} bytes; must: <= 2 s, <= 1 MB")
    took, rows, sent = ask(f"SELECT * FROM load WHERE rank = 1 AND step % {ROWS // 100} = 0")
    assert len(rows) == 100, len(rows)
    print(f"condition  100 rows: {took:.2f} s, {sent} bytes")
    took, rows, sent = ask("SELECT rank, step, value FROM load ORDER BY step DESC LIMIT 10")
    assert len(rows) == 10
    print(f"newest     10 rows: {took:.2f} s, {sent} bytes")
    jobs.probe("cluster", "detach", "bench")
