"""-t cluster diagnose: the ranks of all nodes are judged as one job, and a node that does not answer is named."""
import json
import os
import re
import signal
from pathlib import Path

import cluster_kit
import jobs
import pytest
from jobs import probe

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with cluster_kit.nodes(2, 2, tmp_path_factory.mktemp("cluster")) as job:
        cluster_kit.attach("judged", job)
        yield job


def diagnose(*words):
    return probe("-t", "cluster:judged", "diagnose", *words)


def answer_with(status, *words):
    """On a busy machine a rank may not be read in its time: then it is asked again."""
    for _ in range(4):
        done = diagnose(*words)
        if done.returncode == status:
            break
    assert done.returncode == status, done.stdout + done.stderr
    return done


def unread(done):
    return {rank["rank"]: rank["error"] is not None for rank in json.loads(done.stdout)["jobs"][0]["ranks"]}


def stopped(pid, now):
    os.kill(pid, signal.SIGSTOP if now else signal.SIGCONT)
    jobs.wait_until(lambda: (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T") == now)



def test_ranks_of_all_nodes_are_one_job(job):
    done = answer_with(0)
    assert "No problem found: 4 of 4 ranks answered" in done.stdout


def test_the_culprit_is_named_with_its_node(job):
    """Pids are those of their nodes: ranks of both nodes have the same ones."""
    pid = cluster_kit.pid_of(job, 2)
    stopped(pid, True)
    try:
        done, answer = answer_with(10), json.loads(answer_with(10, "--json").stdout)
    finally:
        stopped(pid, False)
    assert done.stdout.startswith("Rank 2 is stopped by a signal")
    assert re.search(rf"^  node +rank 2 +{job.addresses[1]}, pid \d+ there$", done.stdout, re.M), done.stdout
    (found,) = answer["jobs"]
    ranks = {rank["rank"]: rank for rank in found["ranks"]}
    assert {rank: one["node"] for rank, one in ranks.items()} == {rank: job.addresses[rank // 2] for rank in range(4)}
    assert ranks[0]["pid"] == ranks[2]["pid"]
    assert [(f["kind"], f["rank"]) for f in found["findings"] if f["root"]] == [("stopped", 2)]


@pytest.mark.parametrize("words, why", [(["--ranks", "0"], "judged as a whole"), (["--rules"], "not for -t cluster"),
                                        (["--watch", "2s"], "not for -t cluster")])
def test_what_cannot_be_asked_of_a_cluster_is_refused(job, words, why):
    done = diagnose(*words)
    assert done.returncode == 2 and why in done.stderr


def test_what_a_node_sends_is_data(job):
    """The question of the nodes, as a person may ask it too."""
    done = probe("-t", cluster_kit.pid_of(job, 1), "diagnose", "--facts")
    facts = json.loads(done.stdout)
    assert facts["world"] == 4 and 1 in {process["rank"] for process in facts["processes"]}
    assert "all_reduce" in {thread["own.function"] for thread in facts["threads"]}


def test_a_lost_rank_and_a_lost_node_are_named(tmp_path):
    with cluster_kit.nodes(2, 2, tmp_path) as job:
        cluster_kit.attach("judged", job)
        job.nodes[0].process.kill()
        job.nodes[0].process.wait()
        done = diagnose()
        assert done.returncode in (3, 10), done.stdout + done.stderr
        assert f"{job.addresses[0]}: unreachable" in done.stderr
        jobs.wait_until(lambda: unread(diagnose("--json")) == {0: True, 1: True, 2: False, 3: False}, 120,
                        what="an answer without the ranks of the lost node, and with the others")
        os.kill(cluster_kit.pid_of(job, 3), signal.SIGKILL)
        done = answer_with(10)
        assert done.stdout.startswith("Rank 3 is gone"), done.stdout + done.stderr
