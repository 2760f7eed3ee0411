"""diagnose: the right rank, line and cause of hangs in real gloo jobs of four ranks, and silence about healthy ones.

One process that has imported torch forks the ranks of all jobs: an import takes seconds. A fork shows the environment
of its parent, so each rank writes its own into a variable that the parent keeps for it.
"""
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import jobs
import terminal_kit

pytest.importorskip("torch")

WARM = """
    import ctypes, os, runpy, sys, time
    import torch, torch.distributed, torch.nn.parallel
    torch.set_num_threads(1)

    def show(values):
        fields = open("/proc/self/stat").read().rpartition(")")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        block = ctypes.string_at(begin, end - begin)
        at = block.index(b"ROOM_OF_RANKS=")
        room = block.index(b"\\0", at) - at
        text = b"\\0".join(f"{k}={v}".encode() for k, v in values.items()) + b"\\0_="
        ctypes.memmove(begin + at, text + b"x" * (room - len(text)), room)
        os.environ.update(values)

    print("warm", flush=True)
    for line in sys.stdin:
        path, port, world = line.split()
        if os.fork():
            continue
        ranks = []  # this is the launcher
        for rank in range(int(world)):
            pid = os.fork()
            if pid == 0:
                show({"RANK": str(rank), "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
                sys.argv = [path]
                runpy.run_path(path, run_name="__main__")
                os._exit(0)
            ranks.append(pid)
        print("ranks", os.getpid(), *ranks, flush=True)
        time.sleep(600)  # it does not wait for its ranks: one that has ended stays
        os._exit(0)
"""

COMMON = """
import os, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
first, second = threading.Lock(), threading.Lock()

def steps(fault, bad=2):
    x = torch.ones(4)
    for step in range(10**9):
        if step == 3 and rank == bad:
            fault()
        dist.all_reduce(x)  # the step
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def warm():
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WARM)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, universal_newlines=True,
                               env={**os.environ, "ROOM_OF_RANKS": "x" * 200, "OMP_NUM_THREADS": "1"})
    assert process.stdout.readline() == "warm\n"
    yield process
    process.kill()
    process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def launcher_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


@contextmanager
def job(warm, tmp_path, code, ranks=4):
    script = tmp_path / "train.py"
    script.write_text(COMMON + textwrap.dedent(code))
    warm.stdin.write(f"{script} {free_port()} {ranks}\n")
    warm.stdin.flush()
    launcher, *pids = map(int, warm.stdout.readline().split()[1:])
    try:
        yield pids, script.read_text().splitlines()
    finally:
        for pid in [*pids, launcher]:
            os.kill(pid, signal.SIGKILL)


def diagnosis(pid, *words):
    """The job's part of the answer, and the exit status."""
    done = jobs.probe("-t", pid, "diagnose", "--json", *words)
    assert done.returncode in (0, 10), done.stderr
    (answer,) = json.loads(done.stdout)["jobs"]
    return answer, done.returncode


def root(pid, seconds=40):
    """The verdict, once the fault is there: a rank needs a moment to get to it."""
    until = time.monotonic() + seconds * jobs.SLOW
    while True:
        answer, status = diagnosis(pid)
        if status == 10 or time.monotonic() > until:
            roots = [f for f in answer["findings"] if f["root"]]
            assert roots, answer
            return roots[0]


# What stands at `# here` is the line of the culprit.
HANGS = {
    "sleep": ("blocked_call", "sleep", """
        def save():
            time.sleep(1000)  # here
        steps(save)"""),
    "lock": ("lock_held", "lock", """
        def write():
            with first:
                time.sleep(1000)  # here
        def save():
            threading.Thread(target=write, name="writer", daemon=True).start()
            time.sleep(0.2)
            with first:
                pass
        steps(save)"""),
    "two_locks": ("deadlock", "lock", """
        def write():
            with second:
                time.sleep(0.3)
                with first:
                    pass
        def save():
            threading.Thread(target=write, daemon=True).start()
            with first:
                time.sleep(0.3)
                with second:  # here
                    pass
        steps(save)"""),
    "barrier": ("mismatch", "operation", """
        steps(lambda: dist.barrier())  # here"""),
    "thread_join": ("blocked_call", "sleep", """
        def wait():
            time.sleep(1000)  # here
        def save():
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join()
        steps(save)"""),
    "skipped_async": ("blocked_call", "sleep", """
        def save():
            time.sleep(1000)  # here
        for step in range(10**9):
            if step == 3 and rank == 2:
                save()
            work = dist.all_reduce(torch.ones(4), async_op=True)
            while not work.is_completed():
                time.sleep(0.01)"""),
    "other_async": ("mismatch", "operation", """
        for step in range(10**9):
            if step == 3 and rank == 2:
                work = dist.broadcast(torch.ones(4), src=0, async_op=True)
            else:
                work = dist.all_reduce(torch.ones(4), async_op=True)
            while not work.is_completed(): time.sleep(0.01)  # here"""),
    "pipe": ("blocked_call", "pipe", """
        ends = os.pipe()
        def read():
            os.read(ends[0], 1)  # here
        steps(read)"""),
    "loop": ("loop", "python", """
        def search():
            while True: pass  # here
        steps(search)"""),
    "stopped": ("stopped", "stopped", """
        def stop():
            os.kill(os.getpid(), signal.SIGSTOP)  # here
        steps(stop)"""),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_named_with_its_rank_and_line(warm, tmp_path, name):
    kind, cause, code = HANGS[name]
    with job(warm, tmp_path, code) as (pids, lines):
        found = root(pids[0])
    assert (found["kind"], found["cause"], found["rank"]) == (kind, cause, 2), found
    assert "# here" in lines[found["place"]["line"] - 1], found
    assert Path(found["place"]["file"]).name == "train.py"


def test_a_killed_rank_is_named(warm, tmp_path):
    with job(warm, tmp_path, "steps(lambda: os.kill(os.getpid(), signal.SIGKILL))") as (pids, _):
        jobs.wait_until(lambda: state(pids[2]) == "Z", what="the end of rank 2")
        found = root(pids[0])
    assert (found["kind"], found["cause"], found["rank"]) == ("rank_gone", "killed", 2)


@pytest.mark.parametrize("code", ["steps(None, bad=None)", "steps(lambda: time.sleep(3))",
                                  "time.sleep(1000) if rank == 9 else steps(None, bad=None)"])
def test_nothing_is_found_where_nothing_is_wrong(warm, tmp_path, code):
    with job(warm, tmp_path, code) as (pids, _):
        for _ in range(3):
            answer, status = diagnosis(pids[0])
            assert status == 0, answer


def test_a_pool_whose_worker_is_stopped_is_named(warm, tmp_path):
    code = f"""
        import concurrent.futures
        def save():
            pool = concurrent.futures.ProcessPoolExecutor(1)
            worker = pool.submit(os.getpid).result()
            open("{tmp_path}/worker", "w").write(str(worker))
            os.kill(worker, signal.SIGSTOP)
            pool.submit(os.getpid).result()
        steps(save)"""
    with job(warm, tmp_path, code) as (pids, _):
        try:
            found = root(pids[0])
        finally:
            os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
    assert (found["kind"], found["rank"]) == ("worker_stopped", 2), found


# Rank 0 is idle or has a child work for it, and the others wait for longer than a wait needs to count.
WORKS = "['sh', '-c', 'while kill -0 $PPID 2>/dev/null; do :; done']"  # it ends with its parent
PATIENCE = ["listener.accept()", f"subprocess.run({WORKS})", f"subprocess.run({WORKS}, capture_output=True)"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", PATIENCE)
def test_who_waits_for_clients_or_for_a_child_at_work_is_not_accused(warm, tmp_path, call):
    code = f"""
        import socket
        listener = socket.create_server(("127.0.0.1", 0))
        dist.barrier()
        if rank == 0:
            {call}
        dist.broadcast(torch.ones(4), src=0)"""
    with job(warm, tmp_path, code) as (pids, _):
        def remarks():
            answer, status = diagnosis(pids[0])
            assert status == 0, answer
            return answer["findings"]
        jobs.wait_until(remarks, 240, "a remark: all others wait for rank 0")


# An end of waits as a rule sees it: rank 0 waits, and the others for it, for ten minutes.
END = """SELECT 'blocked' AS how, 3 AS blocked, '1-3' AS blocked_ranks, 600.0 AS waiting, false AS moved,
 false AS leaving, false AS waiters_moved, false AS waiter_leaving, NULL AS waiter_wait, false AS own_end,
 false AS serves, false AS writes, 'S' AS state, true AS child, NULL AS waiter, NULL AS waiter_thread,
 NULL AS waiter_place, NULL AS waiter_source, NULL AS wait_text, '{call}' AS call, '{wait}' AS wait,
 '/usr/lib/python3/{file}' AS inside_file, {moves} AS child_moves"""


@pytest.mark.parametrize("wait, call, file, moves, sure", [
    ("child", "wait4", "subprocess.py", True, "remark"), ("pipe", "read", "subprocess.py", True, "remark"),
    ("poll", "poll", "subprocess.py", True, "remark"), ("poll", "poll", "subprocess.py", False, "likely"),
    ("poll", "poll", "socket.py", True, "likely"), ("child", "wait4", "subprocess.py", False, "likely")])
def test_a_child_at_work_may_take_its_time(wait, call, file, moves, sure):
    rules = jobs.probe("diagnose", "--explain", "blocked_call").stdout
    rule, _, _ = rules.partition("\n\n-- kind: ")  # the first of them
    ends = END.format(wait=wait, call=call, file=file, moves=moves)
    (found,) = json.loads(jobs.probe("query", "--format", "json", f"WITH ends AS ({ends})\n{rule}").stdout)
    assert (found["sure"], found["waited"]) == (sure, 600)


def test_the_answer_stands_alone(warm, tmp_path):
    with job(warm, tmp_path, HANGS["two_locks"][2]) as (pids, _):
        root(pids[0])
        done = jobs.probe("-t", pids[0], "diagnose")
    text = done.stdout.splitlines()
    assert done.returncode == 10
    assert text[0].startswith("2 threads of rank 2 are deadlocked")
    assert "this keeps ranks 0-1, 3 waiting" in " ".join(text), "the rank itself is none of those that it keeps"
    assert len(text) <= 24 and max(map(len, text)) <= 80, done.stdout
    assert any("with second:  # here" in line for line in text), done.stdout
    assert any(line.startswith("Certain: ") for line in text)
    assert any(line.startswith("Next: ") for line in text)


def settings(pid):
    shown = json.loads(jobs.probe("-t", pid, "config", "--json").stdout)
    return {row["name"]: row["value"] for row in shown}


def probed():
    return {row["pid"] for row in json.loads(jobs.probe("list", "--json").stdout) if row["state"] == "probed"}


def test_what_is_not_checked_names_the_command_and_watch_leaves_all_as_it_was(warm, tmp_path):
    with job(warm, tmp_path, "steps(None, bad=None)", ranks=2) as (pids, _):
        told = jobs.probe("-t", pids[0], "diagnose").stdout.split("\n")
        at = next(i for i, line in enumerate(told) if "nothing is recorded in 2 of 2 ranks" in line)
        assert told[at + 1].split()[-3:] == ["diagnose", "--watch", "30s"], told
        assert jobs.probe("-t", pids[0], "config", "probing.torch.profiling=on").returncode == 0
        done = jobs.probe("-t", pids[1], "diagnose", "--watch", "2s", "--since", "1m", "--json")
        assert done.returncode == 0 and "skipped" not in done.stderr, done.stderr
        (answer,) = json.loads(done.stdout)["jobs"]
        assert {"slow ranks", "the line of a leak"}.isdisjoint(row["what"] for row in answer["not_checked"]), answer
        assert probed().intersection(pids) == {pids[0]}, "where no agent was none is"
        after = settings(pids[0])
        assert (after["probing.torch.profiling"], after["probing.memory.sampling"]) == ("on", "off")
        (answer, _) = diagnosis(pids[0], "--no-inject")
        assert answer["not_checked"][0]["what"] == "slow ranks, leaks, losses", "an agent counts for nothing then"
    assert jobs.probe("diagnose", "--watch", "2s").returncode == 2


def test_alone_on_a_terminal_it_names_the_jobs_and_what_is_wrong(warm, tmp_path):
    with job(warm, tmp_path, HANGS["stopped"][2]) as (pids, _):
        root(pids[0])
        shown = terminal_kit.at_terminal([str(jobs.PROGRAM)]).decode()
        shown = " ".join(terminal_kit.OWN.sub("", shown).split())
    assert "Rank 2 is stopped by a signal, and keeps ranks 0-1, 3 waiting." in shown, shown
    assert "diagnose the evidence, and what to do next" in shown
    assert "usage: probing -t TARGET COMMAND" in jobs.probe().stdout, "a program that reads it gets the help"


def test_other_commands_say_what_diagnose_says(warm, tmp_path):
    def said(text):
        return re.sub(r"\d+ s ", "N s ", " ".join(text.split()))

    def now():
        lines = json.loads(jobs.probe("-t", launcher_of(pids[0]), "--all", "now", "--json").stdout)
        return {int(line["rank"]): line["verdict"] for line in lines}

    with job(warm, tmp_path, HANGS["sleep"][2]) as (pids, _):
        says = said(root(pids[0])["says"])
        report = tmp_path / "report.html"
        assert jobs.probe("-t", pids[0], "report", "-o", report).returncode == 0
        jobs.wait_until(lambda: said(now()[2] or "") == says, what=says)
        waiting = [now()[rank] for rank in (0, 1, 3)]
        stacks = {pid: jobs.probe("-t", pid, "backtrace").stdout for pid in (pids[0], pids[2])}
        data = json.loads(jobs.probe("-t", pids[0], "backtrace", "--json").stdout)
    assert set(waiting) == {"It waits for rank 2, which holds up the job."}
    for pid, text in stacks.items():
        assert said(text).startswith(f"{says} evidence: probing -t {pid} diagnose process {pid}"), text
    assert "holds up" not in json.dumps(data), "data has what was read, and judges nothing"
    assert says in said(report.read_text())


def test_now_that_goes_on_names_the_culprit_and_nobody_of_a_job_that_works(warm, tmp_path):
    def verdicts(pid, until):
        """Of one round after the other, until one of them will do."""
        command = [jobs.PROGRAM, "-t", launcher_of(pid), "--all", "now", "--watch", "--interval", "300ms",
                   "--format", "csv"]
        shown = subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True)
        rounds = [{}]  # each begins with the names of the columns
        for row in csv.DictReader(line for line in shown.stdout if line.strip()):
            if row["pid"] == "pid":
                rounds.append({})
            else:
                rounds[-1][row["rank"]] = row["verdict"]
            if len(rounds) > 1 and until(rounds[:-1]):
                break
        shown.kill()
        shown.wait()
        return rounds[:-1]

    with job(warm, tmp_path, HANGS["lock"][2]) as (pids, _):
        last = verdicts(pids[0], lambda rounds: rounds[-1].get("2") or len(rounds) > 200)[-1]
    assert last["2"].startswith("Rank 2 holds up the job: it waits for a lock"), last
    with job(warm, tmp_path, "steps(None, bad=None)") as (pids, _):
        quiet = verdicts(pids[0], lambda rounds: len(rounds) > 10)
    assert not any(verdict for lines in quiet for verdict in lines.values()), quiet


def test_a_process_without_rank_that_waits_is_no_fault():
    with jobs.python("import time; print('ready', flush=True); time.sleep(1000)") as idle:
        answer, status = diagnosis(idle.pid)
    assert status == 0 and answer["ranks"][0]["pid"] == idle.pid


def test_a_process_alone_is_judged_too():
    """Rules are not run where none can find anything: here one can."""
    code = """import asyncio
async def main():
    print('ready', flush=True)
    await asyncio.get_running_loop().create_future()
asyncio.run(main())"""
    with jobs.python(code) as waits:
        assert root(waits.pid)["kind"] == "future_unset"


def test_rules_are_listed_and_explained():
    listed = jobs.probe("diagnose", "--rules").stdout
    assert "deadlock" in listed and "whether threads wait in a circle" in listed
    shown = jobs.probe("diagnose", "--explain", "deadlock").stdout
    assert shown.startswith("-- kind: deadlock") and "FROM ends" in shown
    assert jobs.probe("diagnose", "--explain", "nonsense").returncode == 2


def test_a_rule_of_the_user_counts_and_a_broken_one_is_named(tmp_path):
    (tmp_path / "asleep.sql").write_text("-- kind: asleep\n-- sure: likely\n-- says: {Who} sleeps in {call}.\n"
                                         "SELECT *, still AS since FROM ends WHERE wait = 'sleep'\n")
    (tmp_path / "broken.sql").write_text("-- kind: broken\n-- says: no\nSELECT * FROM nowhere\n")
    environment = {**os.environ, "PROBING_DIAGNOSE_RULES": str(tmp_path)}
    with jobs.python("import time; print('ready', flush=True); time.sleep(1000)") as idle:
        jobs.wait_for_call(idle.pid, "clock_nanosleep")
        done = jobs.probe("-t", idle.pid, "diagnose", env=environment)
    assert done.returncode == 10, done.stdout + done.stderr
    assert done.stdout.startswith(f"Process {idle.pid} sleeps in clock_nanosleep.")
    assert "the rule broken.sql is skipped" in done.stderr
