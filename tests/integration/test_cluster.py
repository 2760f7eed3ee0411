"""A job on several nodes as one target: attached, asked, selected, and each node or rank that does not answer named."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import cluster_kit
import jobs
import link_kit
import page_kit
import pytest
import serve_kit
from jobs import probe


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with cluster_kit.nodes(2, 2, tmp_path_factory.mktemp("cluster")) as job:
        cluster_kit.attach("four", job, "--roles", "tp=2,pp=*")
        yield job


def test_attach_keeps_nodes_ranks_and_roles(job):
    shown = json.loads(probe("cluster", "show", "four", "--json").stdout)
    assert [(row["rank"], row["node"], row["local"], row["roles"]) for row in shown] == [
        (rank, job.addresses[rank // 2], rank % 2, f"tp={rank % 2},pp={rank // 2}") for rank in range(4)]
    listed = [row for row in json.loads(probe("cluster", "list", "--json").stdout) if row["name"] == "four"]
    assert [(row["way"], row["nodes"], row["ranks"], row["world"]) for row in listed] == [("services", 2, 4, 4)]
    kept = os.path.join(os.environ["XDG_RUNTIME_DIR"], "probing-clusters", "four.cluster")
    assert os.stat(kept).st_mode & 0o777 == 0o600
    assert "token " not in open(kept).read()


def test_the_odd_rank_of_two_nodes_stands_first(job):
    classes, answer, _ = cluster_kit.stacks("four")
    tops = {top: ranks for top, ranks in classes}
    assert tops["load_batch"] == [3] and tops["all_reduce"] == [1, 2]
    assert classes[-1] == ("all_reduce", [1, 2])
    assert (answer["asked"], answer["answered"]) == (2, 2)
    text = probe("-t", "cluster:four", "backtrace", "--merge").stdout
    assert "1 thread of rank 3 (tp=1, pp=1)" in text and "2 threads of ranks 1-2\n" in text


def test_two_rounds_tell_who_stands_still(job):
    _, answer, _ = cluster_kit.stacks("four", "--count", "2", "--interval", "200ms", "--no-lines")
    still = {rank for one in answer["classes"] for rank in cluster_kit.ranks_in(one["still"])}
    assert still == {1, 2, 3}


@pytest.mark.parametrize("words, ranks", [
    (["--ranks", "0-1,3"], {0, 1, 3}), (["--ranks", "pp=1,tp=*"], {2, 3}), (["--ranks", "tp=1"], {1, 3}),
    (["--ranks", "2"], {2}),
])
def test_a_selection_asks_those_alone(job, words, ranks):
    done = probe("-t", "cluster:four", "eval", "rank", "--timeout", "30", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[rank {rank}] {rank}" for rank in sorted(ranks)]


def test_a_selection_that_fits_nothing_is_an_error(job):
    for words, said in ((["--ranks", "9"], "no rank"), (["--ranks", "ep=1"], "no rank"),
                        (["--ranks", "x"], "no selection"), (["--nodes", "n[1-2]"], "no node")):
        done = probe("-t", "cluster:four", "backtrace", *words)
        assert done.returncode == 1 and said in done.stderr, (words, done.stderr)
    assert "--ranks and --nodes go with -t cluster" in probe("-t", os.getpid(), "backtrace", "--ranks", "1").stderr


def test_equal_answers_stand_once_and_what_differs_beside_them(job):
    done = probe("-t", "cluster:four", "eval", "loss", "--timeout", "30")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[ranks 0, 2-3] 0.5", "[rank 1] nan"]
    done = probe("-t", "cluster:four", "eval", "1 / (rank - 2)", "--timeout", "30")
    assert done.returncode == 1
    assert "[rank 2] ZeroDivisionError" in done.stderr and "[rank 3] 1.0" in done.stdout


def test_commands_that_give_rows_are_json_of_each_rank(job):
    done = probe("-t", "cluster:four", "memory", "--json", "--timeout", "30")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [(one["rank"], one["node"]) for one in answers] == [(rank, job.addresses[rank // 2]) for rank in range(4)]
    assert all(one["output"][0]["rss_bytes"] > 0 for one in answers)


def test_what_is_no_command_for_a_cluster_says_so(job):
    done = probe("-t", "cluster:four", "repl")
    assert done.returncode == 2 and "does not support -t cluster" in done.stderr
    done = probe("-t", "cluster:nobody", "backtrace")
    assert done.returncode == 1 and "there is no cluster 'nobody'" in done.stderr


@contextmanager
def listener(answer):
    """An address at which a thread answers each connection in its own way; closed at the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def serve():
            while not ended.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(20)
                    try:
                        connection.recv(65536)
                        answer(connection, ended)
                    except OSError:
                        pass
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "127.0.0.1:%d" % server.getsockname()[1]
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def endless(connection, ended):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nV\x08\0\0\x002 9.9 nX")
    while not ended.is_set():
        connection.sendall(b"O\0\xff\0\0" + b"x" * 0xff00)


def test_dead_slow_and_lying_nodes_are_named_and_hold_up_nobody(job):
    """One that does not listen, one that is silent, one of another protocol, one without an end, one that has another's
    ranks."""
    free = socket.create_server(("127.0.0.1", 0))
    dead = "127.0.0.1:%d" % free.getsockname()[1]
    free.close()
    with listener(lambda connection, ended: ended.wait(20)) as silent, \
            listener(lambda connection, ended: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as foreign, \
            listener(endless) as without_end, \
            listener(
                lambda connection, ended: connection.sendall(
                    b"HTTP/1.1 200 OK\r\n\r\nV\x07\0\0\x009 7.0 n")) as other, \
            listener(
                lambda connection, ended: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nV\x07\0\0\x002 9.9 n")) as cut:
        port = job.addresses[0].split(":")[1]
        twice = f"localhost:{port}"  # the same node again: it tells of ranks that it has under its other name
        bad = [dead, silent, foreign, without_end, other, cut]
        done = cluster_kit.attach("bad", job, "--timeout", "3", expect=3,
                                  services=",".join([*bad, job.services, twice]))
        assert "2 of 9 nodes answered" in done.stderr or "3 of 9 nodes answered" in done.stderr, done.stderr
        classes, answer, errors = cluster_kit.stacks("bad", "--timeout", "3", expect=3)
        states = {node["node"]: node["state"] for node in answer["nodes"]}
    assert dict(classes)["load_batch"] == [3] and sorted(rank for _, ranks in classes for rank in ranks) == [0, 1, 2, 3]
    assert [states[node] for node in bad] == ["unreachable", "late", "refused", "refused", "other version",
                                              "unreachable"]
    assert sorted([states[job.addresses[0]], states[twice]]) == ["answered", "refused"]
    assert all(node in errors for node in bad)


@jobs.three_tries
def test_a_silent_node_costs_the_deadline_and_no_more(job):
    with listener(lambda connection, ended: ended.wait(20)) as silent:
        cluster_kit.attach("slow", job, "--timeout", "1", expect=3, services=f"{silent},{job.services}")
        begun = time.monotonic()
        _, answer, _ = cluster_kit.stacks("slow", "--timeout", "1", expect=3)
        took = time.monotonic() - begun
    assert answer["answered"] == 2
    jobs.in_time(took < 1.5, f"{took:.2f} s")


def test_a_rank_that_ended_is_named_and_a_refresh_forgets_it(tmp_path):
    with cluster_kit.nodes(2, 2, tmp_path) as small:
        cluster_kit.attach("ending", small)
        gone = cluster_kit.pid_of(small, 1)
        os.kill(gone, signal.SIGKILL)
        jobs.wait_until(lambda: not os.path.exists(f"/proc/{gone}")
                        or "State:\tZ" in open(f"/proc/{gone}/status").read())
        os.kill(cluster_kit.pid_of(small, 2), signal.SIGSTOP)  # a rank that is stopped still answers
        classes, _, errors = cluster_kit.stacks("ending", expect=3)
        assert "rank 1 is gone" in errors
        assert sorted(rank for _, ranks in classes for rank in ranks) == [0, 2, 3]
        done = probe("cluster", "refresh", "ending")
        assert done.returncode == 0, done.stderr
        assert "3 of 4 ranks" in done.stdout and "no node has rank 1" in done.stderr
        # A whole node that is gone is named too.
        small.nodes[1].process.kill()
        small.nodes[1].process.wait()
        jobs.wait_until(lambda: cluster_kit.stacks("ending", expect=3)[1]["answered"] == 1, 30,
                        what="the end of a node")
        assert small.addresses[1] in cluster_kit.stacks("ending", expect=3)[2]
        assert probe("cluster", "detach", "ending").returncode == 0
        assert "there is no cluster" in probe("cluster", "detach", "ending").stderr


def test_the_ranks_of_this_machine_need_no_service(tmp_path):
    """As torchrun starts them; what a rank starts itself inherits its environment and is not a rank."""
    code = ("import os, subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\nprint('ready', flush=True)\n"
            "time.sleep(600)")
    mark = f"CLUSTER_TEST=local{os.getpid()}"
    environment = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "CLUSTER_TEST": f"local{os.getpid()}"}
    with jobs.python(code, env={**environment, "RANK": "0"}, start_new_session=True) as first, \
            jobs.python(code, env={**environment, "RANK": "1"}, start_new_session=True) as second:
        try:
            done = probe("cluster", "attach", "here", "--here", "--match", mark)
            assert done.returncode == 0 and "2 of 2 ranks" in done.stdout, done.stderr
            shown = json.loads(probe("cluster", "show", "here", "--json").stdout)
            assert [row["pid"] for row in shown] == [first.pid, second.pid]
            done = probe("-t", "cluster:here", "backtrace", "--merge")
            assert done.returncode == 0 and "2 ranks, " in done.stdout, done.stderr
            if os.geteuid() == 0:  # a user who does not own the job
                other = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", str(jobs.PROGRAM), "cluster",
                                        "attach", "--here", "--match", mark],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                                       timeout=60, env={**os.environ, "XDG_RUNTIME_DIR": ""})
                assert other.returncode == 1 and not other.stdout, other.stdout
                assert "no node has a process with a rank" in other.stderr
        finally:
            for one in (first, second):
                os.killpg(one.pid, signal.SIGKILL)


def test_ranks_of_several_jobs_are_named_and_not_mixed(tmp_path):
    """Two jobs on one node: the selection must name one; and a restarted rank is reported."""
    job, usual = cluster_kit.Job(tmp_path, 2), cluster_kit.rank_environment
    job.token.write_text("0" * 64)
    job.token.chmod(0o600)
    cluster_kit.rank_environment = lambda job, rank, local: {**usual(job, rank % 2, local),
                                                             "TORCHELASTIC_RUN_ID": "first" if rank < 2 else "second"}
    try:
        with cluster_kit.node(job, range(4)):
            words = ("cluster", "attach", "jobs", "--services", job.services, "--token-file", job.token)
            done = probe(*words)
            assert done.returncode == 1, done.stdout
            assert ("TORCHELASTIC_RUN_ID=first (2 processes), TORCHELASTIC_RUN_ID=second (2 processes); take one "
                    "with --match") in done.stderr, done.stderr
            done = probe(*words, "--match", "TORCHELASTIC_RUN_ID=second")
            assert done.returncode == 0 and "2 of 2 ranks" in done.stdout, done.stderr
            kept = Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters", "jobs.cluster")
            lines = kept.read_text().splitlines()
            at = next(i for i, line in enumerate(lines) if line.startswith("rank 1 "))
            # as if another process had been rank 1
            lines[at] = " ".join([*lines[at].split()[:5], "7", *lines[at].split()[6:]])
            kept.write_text("\n".join([*lines, ""]))
            done = probe("cluster", "refresh", "jobs")
            assert done.returncode == 0 and "note: rank 1 was restarted" in done.stderr, done.stderr
            probe("cluster", "detach", "jobs")
    finally:
        cluster_kit.rank_environment = usual


def test_attach_says_what_keeps_a_rank_from_being_probed(tmp_path):
    with cluster_kit.nodes(1, 2, tmp_path) as job:
        traced = cluster_kit.pid_of(job, 1)
        inside = open(f"/proc/{traced}/status").read().split("NSpid:")[1].split("\n")[0].split()[-1]
        code = (f"import ctypes, time\nassert ctypes.CDLL(None).ptrace(0x4206, {inside}, 0, 0) == 0\nprint('ready', "
                f"flush=True)\ntime.sleep(600)")
        with jobs.start("nsenter", f"--target={traced}", "--pid", "--mount", sys.executable, "-c", code, ready="ready"):
            done = cluster_kit.attach("doctor", job)
            assert "note: rank 1 cannot be injected into: " in done.stderr and "traced by" in done.stderr, done.stderr
        probe("cluster", "detach", "doctor")


@pytest.mark.parametrize("what, said", [
    ("", "line"), ("probing-cluster 2\nend\n", "line 1"), ("probing-cluster 1\nname x\nnode a\nend\n", "line 3"),
    ("probing-cluster 1\nname x\nway services\nnode a b -\nrank 0 1 0 5 0 -\nend\n", "line 5"),
    ("probing-cluster 1\nname x\n", "line 2"),
])
def test_a_file_that_is_none_is_refused(tmp_path, what, said):
    folder = tmp_path / "probing-clusters"
    folder.mkdir(mode=0o700)
    (folder / "x.cluster").write_text(what)
    done = probe("-t", "cluster:x", "backtrace", env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_folder_of_somebody_else_is_not_read(tmp_path):
    folder = tmp_path / "probing-clusters"
    folder.mkdir()
    folder.chmod(0o755)
    done = probe("cluster", "list", env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 1 and "not yours alone" in done.stderr


def test_the_answering_end_takes_any_bytes():
    for question in (b"", b"\n", b"what\n", b"A" * 200000, bytes(range(256)) * 4):
        done = subprocess.run([str(jobs.PROGRAM), "cluster", "answer"], input=question, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)
        assert done.returncode in (0, 1), done.stderr
        assert not done.stdout or b"no question of probing" in done.stdout


def pods_file(path, job, nodes):
    """The pods of a job as an API server lists them: {name: (phase, the process of its node)}."""
    items = []
    for name, (phase, process) in nodes.items():
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() if process else []
        items.append({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase},
                      "metadata": {"namespace": "train", "name": name, "labels": {"job": "llm", "role": "worker"},
                                   "annotations": {"test/pid": children[0]} if children else {}},
                      "spec": {"containers": [{"name": "main"}, {"name": "sidecar"}]}})
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": items}))


def test_pods_are_asked_by_kubectl_and_those_that_are_gone_are_named(tmp_path):
    """kubectl_recorded.py answers as kubectl does with what an API server said."""
    small, recorded = cluster_kit.Job(tmp_path, 4), tmp_path / "pods.json"
    launcher = tmp_path / "kubectl"  # words of a launcher have no quotes, and our folder may have a space
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("kubectl_recorded.py")}" '
                        f'{recorded} "$@"\n')
    launcher.chmod(0o755)
    with cluster_kit.node(small, [0, 1], serve=False) as first, cluster_kit.node(small, [2, 3], serve=False) as second:
        pods = {"worker-0": ("Running", first), "worker-1": ("Running", second), "worker-9": ("Pending", None)}
        pods_file(recorded, small, pods)
        words = ["cluster", "attach", "pods", "--kubernetes", "job=llm,role=worker", "--launcher", launcher, "--match",
                 small.mark, "--timeout", "20"]
        done = probe(*words)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "cluster pods: 2 nodes by kubernetes, 4 of 4 ranks" in done.stdout, (done.stdout, done.stderr)
        classes, answer, _ = cluster_kit.stacks("pods", "--timeout", "20")
        assert [node["node"] for node in answer["nodes"]] == ["worker-0", "worker-1"]
        assert dict(classes)["load_batch"] == [3]
        pods_file(recorded, small, {**pods, "worker-1": ("Running", None)})  # its kubelet does not answer
        _, answer, errors = cluster_kit.stacks("pods", "--timeout", "20", expect=3)
        assert answer["answered"] == 1 and "worker-1: unreachable: Error from server: error dialing backend" in errors
        del pods["worker-1"]
        pods_file(recorded, small, pods)
        assert 'worker-1: unreachable: Error from server (NotFound): pods "worker-1" not found' in cluster_kit.stacks(
            "pods", "--timeout", "20", expect=3)[2]
        done = probe("cluster", "refresh", "pods", "--timeout", "20")
        assert "1 node by kubernetes, 2 of 4 ranks" in done.stdout, done.stderr
        assert "no node has ranks 2-3" in done.stderr, done.stderr
        done = probe(*words, "--program", "/no/such/probing")
        assert done.returncode == 1, done.stderr
        assert "worker-0: refused: /no/such/probing cannot be started there" in done.stderr, done.stderr
        assert "no pod that runs has the labels job=other" in probe("cluster", "attach", "--kubernetes", "job=other",
                                                                    "--launcher", launcher).stderr


@contextmanager
def slow_way(address, delays):
    """An address where each connection waits before it goes on to that one."""
    host, port = address.split(":")

    def pump(one, other):
        with suppress(OSError):
            while more := one.recv(65536):
                other.sendall(more)
            other.shutdown(socket.SHUT_WR)

    def serve(server):
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                time.sleep(delays[0])
                service = socket.create_connection((host, int(port)))
                for pair in ((client, service), (service, client)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield "127.0.0.1:%d" % server.getsockname()[1]


def test_the_time_that_is_given_is_the_time_that_is_waited(tmp_path):
    """Also where it is what other commands wait unasked."""
    delays = [0]
    with cluster_kit.nodes(1, 1, tmp_path) as one, slow_way(one.addresses[0], delays) as address:
        cluster_kit.attach("slow", one, services=address)
        delays[0] = 2.6
        assert cluster_kit.stacks("slow", expect=3)[1]["answered"] == 0, "2 s unless told"
        assert cluster_kit.stacks("slow", "--timeout", "10")[1]["answered"] == 1
        probe("cluster", "detach", "slow")


@page_kit.browser_only
def test_the_page_shows_the_stacks_of_all_ranks_as_one_tree(job, tmp_path):
    runtime = tmp_path / "runtime"
    (runtime / "probing-clusters").mkdir(parents=True, mode=0o700)
    shutil.copy(Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters/four.cluster"), runtime / "probing-clusters")
    with serve_kit.service(runtime) as served:
        found = page_kit.browse(served, tmp_path, ["open", "#/activity?target=cluster:four"],
                                ["find", "[role=treeitem]:has-text('load_batch')"], ["text", ".note"],
                                ["text", "[role=tree]"], ["click", "[role=treeitem]:has-text('load_batch')"],
                                ["see", "1 of 4: rank 3"], ["outside"])
    assert found[2].startswith("Below train: ") and "rank 3 in load_batch" in found[2], found
    assert "ranks 1, 2" in found[3] and "rank 3" in found[3] and not found[6], found


@jobs.three_tries
def test_a_node_whose_link_is_down_costs_the_others_nothing_and_comes_back(tmp_path_factory):
    """No error comes from there: the node just does not answer."""
    with link_kit.nodes(3, tmp_path_factory.mktemp("links")) as job:
        done = job.probe("cluster", "attach", "linked", *job.words)
        assert done.returncode == 0 and "3 nodes by services, 3 of 3 ranks" in done.stdout, done.stderr
        job.cut(1)
        done = job.probe("-t", "cluster:linked", "backtrace", "--json", "--timeout", "1500ms")
        answer = json.loads(done.stdout)
        assert done.returncode == 3 and "2 of 3 nodes answered" in done.stderr, done.stderr
        assert f"{job.addresses[1]}: unreachable" in done.stderr
        assert sorted(rank for one in answer["classes"]
                      for rank in cluster_kit.ranks_in(one["ranks"])) == [0, 2]
        others = [node["ms"] for node in answer["nodes"] if node["node"] != job.addresses[1]]
        refreshed = job.probe("cluster", "refresh", "linked", "--timeout", "1500ms")
        assert refreshed.returncode == 3 and "2 of 3 ranks" in refreshed.stdout, refreshed.stderr
        job.mend(1)
        jobs.wait_until(lambda: job.probe("cluster", "refresh", "linked").returncode == 0, 30,
                        what="the return of the node")
        done = job.probe("-t", "cluster:linked", "backtrace", "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["answered"] == 3, done.stderr
        job.probe("cluster", "detach", "linked")
        jobs.in_time(max(others) < 700 and answer["ms"] < 1700, str(answer["nodes"]))
