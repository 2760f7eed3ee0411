"""A cluster by its launchers: SLURM and ssh for real, nothing of ours running on the nodes before."""
import json
import os
import signal
import sys
import time
from pathlib import Path

import cluster_kit
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
    return done, answer, {one["frames"][0]["function"]: cluster_kit.ranks_in(one["ranks"])
                          for one in answer["classes"]}


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
    jobs.wait_until(lambda: stacks(slurm, job, "--timeout", "10")[1]["answered"] == 4, 60,
                    what="the return of the node")


@jobs.three_tries
def test_a_question_to_four_nodes_of_slurm_takes_no_time(slurm, job):
    begun = time.monotonic()
    done, _, _ = stacks(slurm, job)
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    jobs.in_time(took < 2, f"{took:.2f} s")


def test_clocks_of_nodes_are_measured_through_srun(slurm, job):
    done = slurm.probe("-t", job, "query", "--json", "SELECT node, offset_us, error_us FROM cluster.clocks "
                                                     "ORDER BY node")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["node"] for row in rows] == ["n1", "n2", "n3", "n4"]
    assert all(abs(row["offset_us"]) <= row["error_us"] for row in rows), rows  # they share one clock


def test_somebody_else_gets_nothing_of_the_job(slurm, job):
    done = slurm.run("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", jobs.PROGRAM, "cluster",
                     "attach", "--slurm", job.split("-")[1], "--timeout", "5")
    assert done.returncode == 1 and "rank" not in done.stdout
    assert "no node answered" in done.stderr, done.stderr


def test_ssh_asks_each_host_and_names_those_that_are_not_there(slurm, job, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# of the job\nn[1-4] slots=2\nn9\n")
    done = slurm.probe("cluster", "attach", "by-ssh", "--hosts", hosts, "--launcher", f"ssh -F {slurm.folder}/ssh.conf",
                       "--match", "SLURM_JOB_ID=" + job.split("-")[1], "--timeout", "20")
    assert done.returncode == 3, done.stderr
    assert "cluster by-ssh: 5 nodes by ssh, 8 of 8 ranks" in done.stdout and "n9: unreachable" in done.stderr
    done, _, tops = stacks(slurm, "cluster:by-ssh", "--nodes", "n[1-4]", "--timeout", "20")
    assert done.returncode == 0, done.stderr
    assert tops == {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4, 6, 7]}
    done = slurm.probe("cluster", "attach", "nowhere", "--hosts", hosts, "--launcher",
                       f"ssh -F {slurm.folder}/ssh.conf", "--program", "/no/such/probing", "--timeout", "20")
    assert done.returncode == 1 and "n1: refused: /no/such/probing cannot be started there" in done.stderr, done.stderr


def kept_tokens(name):
    kept = Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters", f"{name}.cluster")
    assert kept.stat().st_mode & 0o777 == 0o600
    return [line.split()[3] for line in kept.read_text().splitlines() if line.startswith("service ")]


def said_by_processes(slurm):
    """The command lines and environments of all processes of the cluster; others can read the first."""
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if slurm.is_inside(process.name):
                texts += [(process / "cmdline").read_bytes().decode(errors="replace"),
                          (process / "environ").read_bytes().decode(errors="replace")]
        except OSError:
            pass
    return "\0".join(texts)


def test_services_are_started_by_srun_and_only_those_are_ended(slurm, job):
    done = slurm.ssh("n2", jobs.PROGRAM, "serve", "--background", "10.77.0.1:0")  # the user's own, from before
    assert done.returncode == 0, done.stderr
    own = slurm.processes("probing-serve")
    assert len(own) == 1
    done = slurm.probe("cluster", "attach", "served", "--slurm", job.split("-")[1], "--serve", "--timeout", "20")
    assert done.returncode == 0 and "services on 4 of 4 nodes" in done.stdout, done.stderr
    assert "the services have no TLS" in done.stderr
    shown = json.loads(slurm.probe("cluster", "show", "served", "--json").stdout)
    assert len({row["by"] for row in shown}) == 4 and all(row["by"].startswith("10.77.0.1:") for row in shown), shown
    assert len(slurm.processes("probing-serve")) == 4
    tokens, said = kept_tokens("served"), said_by_processes(slurm)
    assert len(set(tokens)) == 4 and "probing-serve" in said and not any(token in said for token in tokens)
    expected = {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4, 6, 7]}
    stopped = [slurm.slurmd(f"n{i}") for i in range(1, 5)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:  # srun reaches no node now
        done, _, tops = stacks(slurm, "cluster:served", "--timeout", "20")
        assert done.returncode == 0 and tops == expected, done.stderr
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    os.kill(next(pid for pid in slurm.processes("probing-serve") if pid not in own), signal.SIGKILL)
    done, _, tops = stacks(slurm, "cluster:served", "--timeout", "20")
    assert done.returncode == 0 and tops == expected, done.stderr  # that node by srun again
    done = slurm.probe("cluster", "refresh", "served", "--timeout", "20")
    assert done.returncode == 0 and "services on 4 of 4 nodes" in done.stdout, done.stderr
    done = slurm.probe("cluster", "detach", "served", "--timeout", "20")
    assert done.returncode == 0, done.stderr
    assert slurm.processes("probing-serve") == own
    jobs.wait_until(lambda: "--no-kill" not in said_by_processes(slurm), what="the end of the step")
    assert slurm.ssh("n2", jobs.PROGRAM, "serve", "--stop").returncode == 0


def test_a_node_where_no_service_can_be_started_is_asked_by_ssh(slurm, job, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn3\nn9\n")
    place = f"{os.environ['XDG_RUNTIME_DIR']}/probing-serve"
    assert slurm.ssh("n3", f"rm -rf {place} && touch {place}").returncode == 0
    done = slurm.probe("cluster", "attach", "by-ssh-served", "--hosts", hosts, "--launcher",
                       f"ssh -F {slurm.folder}/ssh.conf", "--match",
                       "SLURM_JOB_ID=" + job.split("-")[1], "--serve", "--timeout", "20")
    assert done.returncode == 3 and "services on 1 of 3 nodes" in done.stdout, done.stderr
    assert "note: no service on n3, which is reached by ssh instead: " in done.stderr, done.stderr
    assert "note: no service on n9" in done.stderr, done.stderr
    done, _, tops = stacks(slurm, "cluster:by-ssh-served", "--nodes", "n1,n3", "--timeout", "20")
    assert done.returncode == 0 and sum(map(len, tops.values())) == 4, done.stderr
    assert slurm.probe("cluster", "attach", "by-ssh-served", "--services", "127.0.0.1:1", "--serve").returncode == 2
    done = slurm.probe("cluster", "detach", "by-ssh-served", "--timeout", "20")
    assert done.returncode == 3 and "note: what was started on n9 may still run: " in done.stderr, done.stderr
    assert not slurm.processes("probing-serve")
    assert slurm.ssh("n3", f"rm {place}").returncode == 0


def test_mpirun_is_asked_for_its_hosts(slurm):
    """Its ranks stand beside those of the SLURM job, on the same nodes."""
    if not list(slurm_kit.MPI.glob("openmpi-bin_*.deb")):
        pytest.skip("scripts/setup.sh brought no packages of Open MPI (no Debian, or no network)")
    ssh = f"ssh -F {slurm.folder}/ssh.conf"
    with jobs.start(*slurm.inside("mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", ssh, "--mca", "plm", "rsh",
                                  "--mca", "oob_tcp_if_include", "lo",
                                  "-x", "CLUSTER_TEST=mpi", "-H", "n1:3,n3:3", sys.executable, slurm.script)) as mpirun:
        try:
            def attached():
                assert mpirun.alive(), mpirun.output
                done = slurm.probe("cluster", "attach", "mpi", "--mpi", "--launcher", ssh, "--match",
                                   "CLUSTER_TEST=mpi", "--timeout", "20")
                return "cluster mpi: 2 nodes by ssh, 6 of 6 ranks" in done.stdout
            jobs.wait_until(attached, 60, what="the start of mpirun's ranks")
            jobs.wait_until(lambda: stacks(slurm, "cluster:mpi", "--timeout",
                                           "20")[2] == {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4]}, 30,
                            what="the ranks' work")
            shown = json.loads(slurm.probe("cluster", "show", "mpi", "--json").stdout)
            assert [(row["node"], row["local"])
                    for row in shown] == [("n1", 0), ("n1", 1), ("n1", 2), ("n3", 0), ("n3", 1), ("n3", 2)]
        finally:  # nsenter has started it as a child; it ends its ranks
            os.kill(int(Path(f"/proc/{mpirun.pid}/task/{mpirun.pid}/children").read_text()), signal.SIGTERM)
            mpirun.process.wait(30)
    assert "no mpirun of yours runs here" in slurm.probe("cluster", "attach", "--mpi").stderr


def test_a_dead_node_is_named_and_the_others_answer(slurm, job):
    """A connection that is refused makes srun abort the step at once, with the tasks of the others."""
    dead = slurm.slurmd("n4")
    os.kill(dead, signal.SIGKILL)
    jobs.wait_until(lambda: not os.path.exists(f"/proc/{dead}"), what="the end of slurmd")
    for _ in range(2):
        done, answer, tops = stacks(slurm, job, "--timeout", "10")
        assert done.returncode == 3, done.stderr
        assert "3 of 4 nodes answered" in done.stderr and "n4: unreachable" in done.stderr, done.stderr
        assert tops == {"load_batch": [5], "all_reduce": [0, 1, 2, 3, 4]}


def test_a_job_that_has_ended_is_told(slurm, job):
    assert "knows no running job" in slurm.probe("cluster", "attach", "--slurm", "999").stderr or \
        "Invalid job id" in slurm.probe("cluster", "attach", "--slurm", "999").stderr
    assert slurm.run("scancel", job.split("-")[1]).returncode == 0
    jobs.wait_until(lambda: slurm.probe("cluster", "refresh", job.split(":")[1]).returncode == 1, 60,
                    what="the end of the job")
