"""SQL over the ranks of a cluster: what queries as people write them give over nodes is what they give over the
processes, and every row says whose it is."""
import json
import os
import secrets
import sys
from pathlib import Path

import cluster_kit
import jobs
import pytest
from jobs import probe

ROOT = Path(__file__).parents[2]

RANK = """
import os, sys, time
import torch, torch.distributed as dist
import probing
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).square().mean().backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    probing.log(epoch=step // 4, loss=1.0 / (step + 1 + rank))
if rank:
    dist.send(torch.ones(3), 0)
else:
    dist.recv(torch.ones(3), 1)
dist.barrier()
time.sleep(0.5)
print("ready", flush=True)
time.sleep(3600)
"""

# As people write them, with an order where the rows have none of their own.
QUERIES = [
    "SELECT operation_name, AVG(duration_ms) as avg_duration, COUNT(*) as call_count FROM python.torch_trace WHERE "
    "timestamp > now() "
    "- interval '50 minutes' GROUP BY operation_name ORDER BY avg_duration DESC LIMIT 10",
    "SELECT operation_name, avg(duration_ms), count(*) FROM profiling_data WHERE timestamp > now() - interval '50 "
    "minutes' GROUP BY "
    "operation_name ORDER BY avg(duration_ms) DESC",
    "SELECT epoch, avg(loss), min(loss), count(*) as steps FROM training_logs GROUP BY epoch ORDER BY epoch",
    "SELECT src_rank, dst_rank, avg(latency_ms) FROM comm_metrics ORDER BY ALL",
    "SELECT avg(gpu_util) FROM gpu_metrics WHERE timestamp > now() - 60",
    "SELECT function_name, sum(allocated_bytes) as total_alloc FROM memory_allocations WHERE timestamp > now() - "
    "interval '1 hour' "
    "GROUP BY function_name ORDER BY total_alloc DESC",
    "SELECT a.rank, b.rank, count(*), max(a.loss - b.loss) FROM training_logs a JOIN training_logs b ON a.epoch = "
    "b.epoch AND a.rank < "
    "b.rank GROUP BY ALL",
    "SELECT count(DISTINCT operation), median(latency_ms) FROM comm_metrics WHERE bytes > 0",
]


def ask(name, sql, *words, expect=0):
    done = probe("-t", f"cluster:{name}", "query", "--format", "json", "--timeout", "30", sql, *words)
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout), done.stderr


def about(value):
    return f"{value:.9g}" if isinstance(value, float) else value


@pytest.fixture(scope="module")
def training(tmp_path_factory, needs_torch):
    """Two ranks of a gloo job on this machine, attached as a cluster."""
    folder = tmp_path_factory.mktemp("gloo")
    script, mark = folder / "train_cluster.py", f"CLUSTER_TEST={secrets.token_hex(8)}"
    script.write_text(RANK)
    name, value = mark.split("=")

    def rank(number):
        return jobs.start(sys.executable, script, folder / "store", ready="ready", ready_seconds=120,
                          env={"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", name: value,
                               "PROBING": "1", "PROBING_TORCH_PROFILING": "on", "PYTHONPATH": str(ROOT / "python")})

    # The first is ready when the second is: both are started before either is waited for.
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        both = [rank(0), rank(1)]
        started = [pool.submit(one.__enter__) for one in both]
        try:
            for one in started:
                one.result()
            done = probe("cluster", "attach", "gloo", "--here", "--match", mark, "--roles", "dp=2")
            assert done.returncode == 0, done.stderr
            yield script
        finally:
            for one in both:
                one.__exit__(None, None, None)
            probe("cluster", "detach", "gloo")


@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_over_nodes_gives_what_it_gives_over_the_processes(training, sql):
    direct = probe("-t", training, "--all", "query", "--format", "json", sql)
    assert direct.returncode == 0, direct.stderr
    rows, notes = ask("gloo", sql)
    assert [{k: about(v) for k, v in row.items()} for row in rows] == [
        {k: about(v) for k, v in row.items()} for row in json.loads(direct.stdout)]
    assert ("GROUP BY ALL" in notes) == ("GROUP BY ALL" in direct.stderr)


def test_groups_travel_instead_of_rows_and_a_cap_is_said(training):
    rows, notes = ask("gloo", "SELECT rank, role, count(*) AS n FROM training_logs GROUP BY ALL ORDER BY rank",
                      "--stats")
    assert rows == [{"rank": 0, "role": "dp=0", "n": 12}, {"rank": 1, "role": "dp=1", "n": 12}]
    assert "nodes that answered: 1 of 1, rows that travelled: 2 (groups" in notes
    rows, notes = ask("gloo", "SELECT list(epoch) AS all FROM training_logs", "--max-rows", "5")
    assert "more than 5 rows of training_logs" in notes
    assert len(rows[0]["all"]) < 12


def test_every_row_says_whose_it_is_and_a_node_that_is_gone_is_named(tmp_path):
    with cluster_kit.nodes(2, 2, tmp_path) as job:
        cluster_kit.attach("rows", job, "--roles", "tp=2,pp=*")
        sql = ("SELECT rank, node, role, func FROM python.backtrace WHERE func IN ('all_reduce', 'load_batch') "
               "ORDER BY rank")
        rows, notes = ask("rows", sql)
        assert rows == [{"rank": 1, "node": job.addresses[0], "role": "tp=1,pp=0", "func": "all_reduce"},
                        {"rank": 2, "node": job.addresses[1], "role": "tp=0,pp=1", "func": "all_reduce"},
                        {"rank": 3, "node": job.addresses[1], "role": "tp=1,pp=1", "func": "load_batch"}]
        rows, _ = ask("rows", "SELECT node, count(DISTINCT rank) AS n FROM python.backtrace GROUP BY node "
                              "ORDER BY node")
        assert rows == [{"node": node, "n": 2} for node in sorted(job.addresses)]
        rows, _ = ask("rows", "SELECT rank, func FROM python.backtrace WHERE role LIKE '%pp=1' AND depth = 0 "
                              "ORDER BY rank", "--ranks",
                      "pp=1")
        assert [row["rank"] for row in rows] == [2, 3]
        os.kill(job.nodes[1].pid, 9)
        rows, notes = ask("rows", "SELECT DISTINCT rank FROM python.backtrace ORDER BY rank", expect=3)
        assert [row["rank"] for row in rows] == [0, 1]
        assert job.addresses[1] in notes
        rows, _ = ask("rows", "SELECT node, state, ranks FROM cluster.nodes ORDER BY state", expect=3)
        assert rows == [{"node": job.addresses[0], "state": "answered", "ranks": 2},
                        {"node": job.addresses[1], "state": "unreachable", "ranks": 2}]
        rows, _ = ask("rows", "SELECT count(*) AS n FROM cluster.ranks", expect=3)
        assert rows == [{"n": 4}]
