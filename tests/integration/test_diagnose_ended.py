"""diagnose of ranks that have ended: which was the first, of what, and at which line; silence about a good end. And of
event loops that nothing can wake."""
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jobs

# Each rank ends as the last words of its command line say, when its standard input ends.
PROGRAM = textwrap.dedent("""
    import os, sys, threading, time

    def parse(text):
        return int(text)  # fails

    def lose_peer():
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:23920")

    def wait():
        sys.stdin.read()

    how = sys.argv[1]
    if how == "stay":
        time.sleep(3600)
    wait()
    if how == "raise":
        parse("no number")
    if how == "late":
        time.sleep(0.5)
        lose_peer()
    sys.exit(7 if how == "exit" else 0)
""")


number = itertools.count()


class Ranks:
    """Probed processes with a rank each, which end in the ways that are given."""

    def __init__(self, folder, ways, kept_log=True):
        script, self.all = folder / "train.py", []
        script.write_text(PROGRAM)
        port = f"{os.getpid()}{next(number)}"  # nothing listens there: it tells jobs apart
        for rank, how in enumerate(ways):
            log = (folder / f"log.{rank}").open("w") if kept_log else subprocess.DEVNULL
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(ways)), "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": port}
            self.all.append(subprocess.Popen([sys.executable, str(script), how], stdin=subprocess.PIPE, stderr=log,
                                             env=environment))
        for process in self.all:
            assert jobs.probe("-t", process.pid, "inject").returncode == 0

    def end(self, first=()):
        """Ends those first, then the others; those that stay are left."""
        for rank in [*first, *(n for n in range(len(self.all)) if n not in first)]:
            self.all[rank].stdin.close()
            if "stay" not in self.all[rank].args:
                self.all[rank].wait(60 * jobs.SLOW)

    def stop(self):
        for process in self.all:
            process.kill()
            process.wait()
            process.stdin.close()

    def ask(self, rank):
        done = jobs.probe("-t", self.all[rank].pid, "diagnose", "--json", timeout=120)
        assert done.returncode in (0, 3, 10), done.stderr
        answer = json.loads(done.stdout)["jobs"]
        pids = {process.pid for process in self.all}
        mine = [job for job in answer if pids & {r["pid"] for r in job["ranks"]}]
        return [f for job in mine for f in job["findings"] if f["root"]]


@pytest.fixture
def ranks(tmp_path):
    started = []

    def start(ways, **more):
        started.append(Ranks(tmp_path, ways, **more))
        return started[-1]
    yield start
    for each in started:
        each.stop()


def test_an_exception_is_the_root_and_its_peers_are_not(ranks):
    """All have ended. The rank that raised is named with its line; those that lost it are consequences."""
    job = ranks(["late", "raise", "late"])
    job.end(first=[1])
    found = job.ask(0)
    assert [(f["kind"], f["cause"], f["rank"]) for f in found] == [("rank_gone", "exception", 1)], found
    assert found[0]["place"]["function"] == "parse" and "fails" in found[0]["place"]["source"], found
    assert "invalid literal" in found[0]["says"], found


RECORDED = textwrap.dedent("""
    import sys
    from torch.distributed.elastic.multiprocessing.errors import record

    def parse(text):
        return int(text)  # fails

    @record
    def main():
        print("ready", flush=True)
        sys.stdin.read()
        parse("no number")

    main()
""")


def test_the_exception_that_a_child_of_torchrun_leaves_is_read(tmp_path):
    """Its errors go to a terminal or a pipe; the file that torchrun names for it is there."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(RECORDED)
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"), "RANK": "0",
                   "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{os.getpid()}{next(number)}"}
    rank = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, env=environment)
    with rank:
        assert rank.stdout.readline() == b"ready\n"
        assert jobs.probe("-t", rank.pid, "inject").returncode == 0
        rank.stdin.close()
    done = jobs.probe("-t", rank.pid, "diagnose", "--json", timeout=120)
    found = [f for job in json.loads(done.stdout)["jobs"] for f in job["findings"] if f["root"]]
    told = [(f["kind"], f["cause"], f["place"]["function"]) for f in found]
    assert told == [("rank_gone", "exception", "parse")], found
    assert "invalid literal" in found[0]["says"], found


def test_a_status_is_kept_without_a_log(ranks):
    job = ranks(["stay", "stay", "exit"], kept_log=False)
    job.end(first=[2])
    found = job.ask(0)
    assert [(f["kind"], f["cause"], f["rank"]) for f in found] == [("rank_gone", "exit", 2)], found
    assert "exit status 7" in found[0]["says"], found


def check_what_has_its_pid(folder):
    """Runs in a pid namespace of its own: pids go back there, and nobody else starts processes."""
    job = Ranks(folder, ["stay", "stay", "exit"])
    job.end(first=[2])
    pid = job.all[2].pid
    found = [f["kind"] for f in job.ask(2)]
    assert found == ["rank_gone"], found
    for _ in range(200):  # threads take pids too
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError as error:
            sys.exit(f"no pid can be chosen: {error.strerror}")
        idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        if idle.pid == pid:
            break
        idle.kill()
        idle.wait()
    assert idle.pid == pid, "no process got that pid"
    found = [[f["kind"] for f in job.ask(rank)] for rank in (2, 0)]
    assert found == [[], ["rank_gone"]], found
    print("right")


@pytest.mark.timeout(600)
def test_a_process_is_not_blamed_for_the_one_that_had_its_pid_before(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a pid namespace takes root")
    (tmp_path / "run").mkdir(mode=0o700)
    check = "import pathlib as p, sys, test_diagnose_ended as t; t.check_what_has_its_pid(p.Path(sys.argv[1]))"
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
                           "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh",  # no runs of others there
                           sys.executable, "-c", check, tmp_path], cwd=Path(__file__).parent,
                          env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")}, capture_output=True, text=True,
                          timeout=500 * jobs.SLOW)
    if "no pid can be chosen" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout == "right\n", done.stderr


def test_a_killed_rank_is_told_from_those_that_lost_it(ranks):
    job = ranks(["late", "stay", "late"])
    os.kill(job.all[1].pid, signal.SIGKILL)
    job.all[1].wait()
    job.end()
    found = job.ask(2)
    assert [(f["kind"], f["cause"], f["rank"]) for f in found] == [("rank_gone", "killed", 1)], found


def test_a_rank_whose_interpreter_ends_is_no_puzzle_without_an_agent(tmp_path):
    """It has printed its exception, and its exit functions last: others call that a hang."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("import os,", "import atexit, os,") + "\n")
    body = script.read_text().replace('if how == "stay":', 'atexit.register(time.sleep, 3600)\nif how == "stay":')
    script.write_text(body)
    logs, all_of = [tmp_path / "log.0", tmp_path / "log.1"], []
    for rank, how in enumerate(["stay", "raise"]):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": f"{os.getpid()}{next(number)}" if rank == 0 else environment["MASTER_PORT"]}
        with logs[rank].open("w") as log:
            all_of.append(subprocess.Popen([sys.executable, str(script), how], stdin=subprocess.PIPE, stderr=log,
                                           env=environment))
    try:
        all_of[1].stdin.close()
        jobs.wait_until(lambda: "ValueError" in logs[1].read_text(), 60, "the exception")
        found = []

        def is_named():
            done = jobs.probe("-t", all_of[0].pid, "diagnose", "--json", timeout=120)
            found[:] = [f for job in json.loads(done.stdout)["jobs"] for f in job["findings"] if f["root"]]
            return bool(found)
        jobs.wait_until(is_named, 60, "a finding")  # a process that has just started is left alone
        assert [(f["kind"], f["cause"], f["rank"]) for f in found] == [("rank_gone", "exception", 1)], found
        assert found[0]["place"]["function"] == "parse", found
    finally:
        for process in all_of:
            process.kill()
            process.wait()
            process.stdin.close()


WAITS = """
    import asyncio, socket, sys

    async def answer():
        return await asyncio.get_running_loop().create_future()

    async def serve():
        extra = asyncio.create_task(asyncio.sleep(3600)) if sys.argv[1] == "timer" else None
        if sys.argv[1] == "server":
            await asyncio.start_server(print, "127.0.0.1", 0)
        await answer()

    asyncio.run(serve())
"""


@pytest.mark.parametrize("has", ["nothing", "timer", "server"])
def test_an_event_loop_that_nothing_can_wake_is_named(has):
    """A timer or a socket may yet set the future: then it is an idle server, and nobody's fault."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WAITS), has])
    try:
        def is_asleep():
            with open(f"/proc/{process.pid}/syscall") as file:
                return file.read().split()[0] in {str(jobs.CALLS["epoll_wait"]), str(jobs.CALLS["epoll_pwait"])}
        jobs.wait_until(is_asleep, 60, "its event loop")
        done = jobs.probe("-t", process.pid, "diagnose", "--json", timeout=120)
        found = [f for job in json.loads(done.stdout)["jobs"] for f in job["findings"] if f["root"]]
        if has != "nothing":
            assert found == []
        else:
            assert [(f["kind"], f["cause"]) for f in found] == [("future_unset", "asyncio")], done.stdout
            assert found[0]["place"]["function"] == "answer"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ways", [["well", "well"], ["stay", "well", "stay"]])
def test_a_good_end_is_no_finding(ranks, ways):
    job = ranks(ways)
    job.end(first=[1])
    assert job.ask(0) == []
