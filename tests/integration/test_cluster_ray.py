"""A job of Ray as one target, over two of its nodes: the ranks are actors, and a task on each node asks for us. Long:
make soak."""
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import cluster_kit
import jobs
import pytest
from jobs import probe

pytestmark = pytest.mark.skipif(not os.environ.get("PROBING_SOAK"), reason="the long form starts Ray: make soak")

# Two actors on each node; rank 3 is elsewhere. A rank is told by the environment that its actor is started with.
DRIVER = """
import sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank):
        self.rank = rank
    def all_reduce(self):
        time.sleep(3600)
    def load_batch(self):
        time.sleep(3600)
    def train(self):
        self.load_batch() if self.rank == 3 else self.all_reduce()

nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
ranks = [Trainer.options(scheduling_strategy=On(node_id=nodes[rank // 2], soft=False),
                         runtime_env={"env_vars": {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4"}}).remote(rank) for rank in range(4)]
work = [rank.train.remote() for rank in ranks]
print("ready", flush=True)
ray.get(work)
"""


def start_node(stack, folder, *words):
    """A node of Ray with its own pids."""
    ray = Path(sys.executable).with_name("ray")
    return stack.enter_context(jobs.start("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable,
                                          ray, "start", "--block", "--num-cpus=1",
                                          "--object-store-memory=100000000", "--disable-usage-stats",
                                          "--node-ip-address=127.0.0.1", *words,
                                          env={"RAY_TMPDIR": str(folder), "RAY_memory_monitor_refresh_ms": "0"}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster_kit.needs_namespaces()
    pytest.importorskip("ray")
    # Ray's sockets are in it, whose names have room for 107 characters.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")))
        head = start_node(stack, folder, "--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}")
        jobs.wait_until(lambda: re.search(r"--address='([^']+)'", head.output) or not head.alive(), 90,
                        what="the head of Ray")
        assert head.alive(), head.output
        address = re.search(r"--address='([^']+)'", head.output)[1]
        other = start_node(stack, folder, f"--address={address}")
        jobs.wait_until(lambda: "Ray runtime started" in other.output or not other.alive(), 90,
                        what="the second node of Ray")
        assert other.alive(), other.output
        env = {"RAY_ADDRESS": address}
        script = folder / "driver.py"
        script.write_text(DRIVER)

        def nodes():
            done = subprocess.run([sys.executable, "-c", "import ray; ray.init(logging_level='error'); "
                                                         "print(sum(node['Alive'] for node in ray.nodes()))"],
                                  env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  universal_newlines=True, timeout=90)
            return done.stdout.strip() == "2"
        jobs.wait_until(nodes, 120, what="two nodes of Ray")
        driver = stack.enter_context(jobs.start(sys.executable, script, env=env, ready="ready", ready_seconds=90))

        def ask(*words, timeout=120):
            assert driver.alive(), driver.output
            return probe(*words, timeout=timeout, env={**os.environ, **env})
        # The actors' processes start one after the other.
        jobs.wait_until(lambda: "2 nodes by ray, 4 of 4 ranks" in ask("cluster", "attach", "of-ray", "--launcher",
                                                                      sys.executable, "--timeout", "60").stdout, 180,
                        what="the ranks of Ray")
        yield ask
        ask("cluster", "detach", "of-ray")


def test_actors_are_the_ranks_of_a_job(cluster):
    shown = json.loads(cluster("cluster", "show", "of-ray", "--json").stdout)
    assert [row["rank"] for row in shown] == [0, 1, 2, 3]
    assert len({row["node"] for row in shown}) == 2
    assert shown[0]["node"] == shown[1]["node"] != shown[2]["node"] == shown[3]["node"]


def test_the_odd_actor_is_found(cluster):
    def tops():
        done = cluster("-t", "cluster:of-ray", "backtrace", "--json", "--timeout", "60")
        assert done.returncode == 0, done.stderr
        found = {}
        for one in json.loads(done.stdout)["classes"]:
            for frame in one["frames"]:
                if "all_reduce" in frame["function"] or "load_batch" in frame["function"]:
                    found[frame["function"].split(".")[-1]] = cluster_kit.ranks_in(one["ranks"])
        return found
    jobs.wait_until(lambda: tops() == {"load_batch": [3], "all_reduce": [0, 1, 2]}, 120, what="the actors' work")


def test_sql_and_evaluation_over_actors(cluster):
    done = cluster("-t", "cluster:of-ray", "query", "--json", "--timeout", "60",
                   "SELECT rank, count(*) AS frames FROM python.backtrace WHERE func LIKE '%train%' GROUP BY rank "
                   "ORDER BY rank")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["rank"] for row in rows] == [0, 1, 2, 3] and all(row["frames"] >= 1 for row in rows), rows
    done = cluster("-t", "cluster:of-ray", "eval", "1 + 1", "--timeout", "60")
    assert done.returncode == 0 and done.stdout == "[ranks 0-3] 2\n", (done.stdout, done.stderr)
