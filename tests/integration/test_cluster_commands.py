"""flamegraph, top, record and archive over the ranks of a cluster, and SQL over what they have archived."""
import csv
import io
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import clock_kit
import cluster_kit
import jobs
import pytest
from jobs import probe

SOAK = os.environ.get("PROBING_SOAK")

# Rank 0 computes, rank 1 waits; each has recorded a table.
RANK = """
import os, time, probing
rank = int(os.environ["RANK"])
table = probing.table("load", {"step": int, "value": float, "name": str})
for step in range(60000):
    table.append(step, step * 0.5 + rank, "odd" if step % 2 else "even")
def compute():
    total = 0
    while True:
        total += 1
def wait_for_data():
    time.sleep(3600)
print("ready", rank, flush=True)
compute() if rank == 0 else wait_for_data()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two nodes with a rank each; the clock of the second is ahead by 3.25 s for our program there."""
    folder, usual = tmp_path_factory.mktemp("commands"), (cluster_kit.RANK, cluster_kit.rank_environment)
    cluster_kit.RANK = RANK
    cluster_kit.rank_environment = lambda job, rank, local: {
        **usual[1](job, rank, local), "PROBING": "1", "PYTHONPATH": str(jobs.TOP / "python"),
        "PROBING_NODE": f"host{rank}", "TP_RANK": str(rank)}
    try:
        with clock_kit.nodes([0, 3_250_000_000], folder) as (job, words):
            cluster_kit.RANK, cluster_kit.rank_environment = usual
            done = probe("cluster", "attach", "two", *words, "--timeout", "30")
            assert done.returncode == 0 and "2 of 2 ranks" in done.stdout, done.stderr
            yield job
            probe("cluster", "detach", "two")
    finally:
        cluster_kit.RANK, cluster_kit.rank_environment = usual


def ask(*words, expect=0):
    done = probe("-t", "cluster:two", *words)
    assert done.returncode == expect, done.stderr
    return done


def test_one_graph_has_the_ranks_of_all_nodes(job, tmp_path):
    folded = tmp_path / "job.folded"
    done = ask("flamegraph", "--duration", "500ms", "--idle", "-o", folded)
    assert re.search(r"job.folded: \d+ samples of \d+ threads in 0\.\d s", done.stdout), done.stdout
    lines = folded.read_text().splitlines()
    assert any(line.startswith("rank 0;") and "compute" in line for line in lines), lines
    assert any(line.startswith("rank 1;") and "wait_for_data" in line for line in lines), lines
    merged = tmp_path / "merged.folded"
    ask("flamegraph", "--duration", "500ms", "--merge", "-o", merged)
    assert "compute" in merged.read_text() and "rank 0" not in merged.read_text()


def test_nodes_are_laid_on_one_axis_by_their_clocks(job, tmp_path):
    """Both sampled at the same time, and one of them says that it was 3.25 s later."""
    path = tmp_path / "job.json"
    done = ask("flamegraph", "--duration", "1s", "--idle", "-o", path)
    assert "by the clock here" in done.stderr, done.stderr
    rows = json.loads(path.read_text())["profiles"]
    scale = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1}[rows[0]["unit"]]
    begun = {rank: min(row["startValue"] for row in rows if f"rank {rank}" in row["name"]) * scale for rank in (0, 1)}
    assert abs(begun[0] - begun[1]) < 2, begun
    assert ask("flamegraph", "--duration", "300ms", "-o", tmp_path / "job.perfetto").returncode == 0
    assert (tmp_path / "job.perfetto").stat().st_size > 1000


def test_top_has_a_line_for_each_rank(job):
    done = ask("top", "--count", "2", "--interval", "300ms")
    lines = [line.split(None, 5) for line in done.stdout.splitlines() if re.match(r" *\d+ ", line)]
    assert [line[0] for line in lines] == ["0", "1", "0", "1"], done.stdout
    for line in lines:
        assert line[4] == f"n{line[0]}"
        assert ("compute" if line[0] == "0" else "wait_for_data") in line[5], line
    assert all(float(line[1]) > 5 for line in lines if line[0] == "0"), done.stdout


def test_every_rank_is_recorded_and_its_files_are_named(job):
    done = ask("record", "--duration", "500ms")
    paths = re.findall(r"\[rank (\d)\] (\S+): 0\.\d s at", done.stdout)
    assert [rank for rank, _ in paths] == ["0", "1"] and len({path for _, path in paths}) == 2, done.stdout
    done = ask("record", "--background")
    assert done.stdout.count("recording in the background") == 2, done.stdout
    done = ask("record", "--stop")
    for words, said in ((["record"], "--duration TIME or --background"), (["archive"], "--once or --background")):
        assert said in ask(*words, expect=2).stderr


def test_every_command_that_takes_all_takes_a_cluster(job, tmp_path):
    """Each with what it must say of both ranks."""
    for words, said in ((["inspect", "rank * 10 + 17", "--json"], r'\[rank {}\] .*"value":"(17|27)"'),
                        (["listen"], r"\[rank {}\] .*nc 127.0.0.1 \d+"),
                        (["listen", "--stop"], None), (["catch", "--no-prompt"], None), (["catch", "--stop"], None),
                        (["track"], None),
                        (["now"], r"rank {}"), (["torch", "--once"], None),
                        (["pause"], r"\[rank {}\] .*nc 127.0.0.1 \d+"),
                        (["continue"], None), (["debug"], r"\[rank {}\] .*127.0.0.1:\d+"), (["debug", "--stop"], None)):
        if words[0] == "pause":
            words, said = [*words, "--ranks", "0"], said.replace("{}", "0")  # the other stays in C code
        done = ask(*words, "--timeout", "30") if words[0] not in ("torch", "now") else ask(*words)
        for rank in (0, 1):
            assert said is None or re.search(said.replace("{}", str(rank)),
                                             done.stdout), (words, done.stdout, done.stderr)
    path = tmp_path / "load.csv"
    ask("export", "load", "-o", path)
    rows = list(csv.DictReader(path.open()))
    assert {row["rank"] for row in rows} == {"0", "1"} and {row["name"] for row in rows} == {"odd", "even"}
    for words, said in ((["torch", "profile"], "no torch profile"), (["now", "--watch"], "does not take --watch")):
        assert said in ask(*words, expect=2).stderr


@contextmanager
def archived(job, tmp_path):
    """An archive of both ranks in one folder, and one with a folder for each node."""
    one, each = tmp_path / "one", tmp_path / "each"
    each.mkdir()
    ask("archive", "--once", "--to", one)
    for rank in (0, 1):
        ask("archive", "--once", "--to", each / f"folder{rank}", "--ranks", rank)
    yield one, each


QUERIES = ["SELECT rank, count(*) AS n, sum(value) AS total, max(step) AS last FROM load WHERE step < 40000 GROUP BY "
           "rank ORDER BY rank",
           "SELECT rank, name, min(step) AS first, avg(value) AS mean FROM load WHERE step BETWEEN 20000 AND 29999 "
           "GROUP BY rank, name ORDER BY rank, name"]


def history(folder, sql):
    done = probe("cluster", "query", "--archive", folder, "--format", "csv", sql)
    assert done.returncode == 0, done.stderr
    return list(csv.reader(io.StringIO(done.stdout)))


def test_what_all_ranks_archived_is_one_table(job, tmp_path):
    with archived(job, tmp_path) as folders:
        for folder in folders:
            rows = history(folder, "SELECT rank, node, role, count(*), min(step) FROM load GROUP BY ALL ORDER BY rank")
            assert [row[:3] for row in rows[1:]] == [["0", "host0", "tp=0"], ["1", "host1", "tp=1"]], rows
            assert all(int(row[3]) > 1000 for row in rows[1:])
        assert history(folders[0], QUERIES[1]) == history(folders[1], QUERIES[1])
        pairs = history(folders[1], "SELECT count(*) FROM load a JOIN load b ON a.step = b.step AND a.rank < b.rank "
                                    "WHERE a.step BETWEEN 30000 AND 30499")
        assert pairs[1] == ["500"]
        sql = "SELECT rank, count(*) FROM load WHERE step BETWEEN 30000 AND 30999 GROUP BY rank ORDER BY rank"
        assert history(folders[0], sql) == list(csv.reader(io.StringIO(ask("query", "--format", "csv", sql).stdout)))
    done = probe("cluster", "query", "--archive", tmp_path / "nothing", "SELECT 1")
    assert done.returncode == 1 and "cannot be read" in done.stderr
    assert "--archive DIR" in probe("cluster", "query", "SELECT 1").stderr


@pytest.mark.skipif(not SOAK, reason="the long form starts Spark and Ray: make soak")
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_other_engines_give_the_same_rows(job, tmp_path, engine):
    def values(rows):
        return [[float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else cell for cell in row] for row in rows]
    with archived(job, tmp_path) as folders:
        for folder, sql in zip(folders, QUERIES):
            done = subprocess.run([sys.executable, str(jobs.TOP / f"examples/history_{engine}.py"), str(folder), "load",
                                   sql.replace("FROM load", "FROM history")],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
            assert done.returncode == 0, done.stderr[-2000:]
            assert values(csv.reader(io.StringIO(done.stdout))) == values(history(folder, sql))
