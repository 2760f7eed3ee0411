"""A cluster by its launchers: SLURM and ssh for real, nothing of ours running on the nodes before."""
import json
import os
import signal
import time

import jobs
import pytest
import slurm_kit


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_kit.cluster(4, tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def job(slurm):
    return "cluster:slurm-" + slurm.submit(4)


def stacks(slurm, target, *words):
    done = slurm.probe("-t", target, "backtrace", "--json", *words)
    answer = json.loads(done.stdout)
    return done, answer, {one["frames"][0]["function"]: one["ranks"] for one in answer["classes"]}


def test_slurm_finds_the_odd_rank(slurm, job):
    done, answer, tops = stacks(slurm, job, "--timeout", "20")
    assert done.returncode == 0, done.stderr
    assert tops == {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4, 6, 7]}
    assert [node["node"] for node in answer["nodes"]] == ["n1", "n2", "n3", "n4"]


def test_lines_that_srun_would_cut_arrive_whole(slurm, job):
    done = slurm.probe("-t", job, "eval", "'x' * 100000 + str(rank)", "--ranks", "0-1", "--timeout", "30")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[rank %d] '%s%d'" % (rank, "x" * 100000, rank) for rank in (0, 1)]


def test_a_node_that_hangs_is_named_and_the_others_answer(slurm, job):
    """srun itself waits for it, and would end the others' tasks some seconds later."""
    hung = slurm.slurmd("n2")
    os.kill(hung, signal.SIGSTOP)
    try:
        done, answer, tops = stacks(slurm, job, "--timeout", "5")
        assert done.returncode == 3
        assert "3 of 4 nodes answered" in done.stderr and "n2: unreachable" in done.stderr
        assert tops == {"load_batch": [5], "all_reduce": [0, 1, 4, 6, 7]}
    finally:
        os.kill(hung, signal.SIGCONT)
    jobs.wait_until(lambda: stacks(slurm, job, "--timeout", "10")[1]["answered"] == 4, 60, what="the return of the node")


@jobs.three_tries
def test_a_question_to_four_nodes_of_slurm_takes_no_time(slurm, job):
    begun = time.monotonic()
    done, _, _ = stacks(slurm, job)
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    jobs.in_time(took < 2, f"{took:.2f} s")


def test_somebody_else_gets_nothing_of_the_job(slurm, job):
    done = slurm.run("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", jobs.PROGRAM, "cluster", "attach", "--slurm", job.split("-")[1],
                     "--timeout", "5")
    assert done.returncode == 1 and "rank" not in done.stdout
    assert "no node answered" in done.stderr, done.stderr


def test_ssh_asks_each_host_and_names_those_that_are_not_there(slurm, job, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# of the job\nn[1-4] slots=2\nn9\n")
    done = slurm.probe("cluster", "attach", "by-ssh", "--hosts", hosts, "--launcher", f"ssh -F {slurm.folder}/ssh.conf", "--match",
                       "SLURM_JOB_ID=" + job.split("-")[1], "--timeout", "20")
    assert done.returncode == 3, done.stderr
    assert "cluster by-ssh: 5 nodes by ssh, 8 of 8 ranks" in done.stdout and "n9: unreachable" in done.stderr
    done, _, tops = stacks(slurm, "cluster:by-ssh", "--nodes", "n[1-4]", "--timeout", "20")
    assert done.returncode == 0, done.stderr
    assert tops == {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4, 6, 7]}
    done = slurm.probe("cluster", "attach", "nowhere", "--hosts", hosts, "--launcher", f"ssh -F {slurm.folder}/ssh.conf", "--program", "/no/such/probing",
                       "--timeout", "20")
    assert done.returncode == 1 and "n1: refused: /no/such/probing cannot be started there" in done.stderr, done.stderr


def test_a_job_that_has_ended_is_told(slurm, job):
    assert "knows no running job" in slurm.probe("cluster", "attach", "--slurm", "999").stderr or \
        "Invalid job id" in slurm.probe("cluster", "attach", "--slurm", "999").stderr
    assert slurm.run("scancel", job.split("-")[1]).returncode == 0
    jobs.wait_until(lambda: slurm.probe("cluster", "refresh", job.split(":")[1]).returncode == 1, 60, what="the end of the job")
