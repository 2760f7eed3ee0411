"""backtrace: right stacks of processes in every state a person meets them in, on every interpreter."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import interpreters
import jobs
import pytest
import roots
from jobs import probe
from stack_kit import HELD, SUBINTERPRETER, backtrace, by_name, functions

EVERY = pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)

THREADS = """
import threading, time
class Worker:
    def wait(self, n):
        time.sleep(1000)
def spin():
    n = 0
    while True:
        n += 1
def numbers():
    yield Worker().wait(3)
threading.Thread(target=spin, name="spi)n (ner", daemon=True).start()
threading.Thread(target=lambda: [n for n in numbers()], name="sleeper", daemon=True).start()
time.sleep(0.1)
print("ready", flush=True)
time.sleep(1000)
"""


def settle(pid):
    """Until the main thread sleeps: a thread that spins makes it wait for the GIL first. What time.sleep calls depends
    on the version."""
    jobs.wait_for_call(pid, "select", "nanosleep", "clock_nanosleep", "pselect6")


def backtrace_while_it_spins(pid):
    """One taken while the spinning thread has the GIL: on a busy machine it may just be between two turns."""
    for _ in range(20):
        process = backtrace(pid)
        if process["threads"][0]["gil"] and process["threads"][0]["running"]:
            break
        time.sleep(0.02)
    return process


def check_threads(process, script):
    threads = by_name(process)
    assert set(threads) >= {"MainThread", "spi)n (ner", "sleeper"}
    first = process["threads"][0]
    assert first["name"] == "spi)n (ner", "the thread that holds the GIL comes first"
    assert first["gil"], "the thread that holds the GIL comes first"
    assert first["running"], "the thread that holds the GIL comes first"
    assert functions(first)[:2] == ["spin", "run"] and first["frames"][0]["line"] in (8, 9)
    assert functions(threads["MainThread"]) == ["<module>"]
    assert threads["MainThread"]["frames"][0]["line"] == 16 and threads["MainThread"]["read"] == "asleep"
    assert threads["MainThread"]["frames"][0]["file"] == script
    sleeper = functions(threads["sleeper"])
    assert sleeper[0] == "wait" and "numbers" in sleeper and "<lambda>" in sleeper and sleeper[-1] == "_bootstrap"
    assert [f["line"] for f in threads["sleeper"]["frames"] if f["file"] == script][:2] == [5, 11]
    assert threads["sleeper"]["syscall"] in ("select", "pselect6", "clock_nanosleep", "nanosleep")


@EVERY
def test_threads_functions_and_lines(interpreter):
    with jobs.python(THREADS, interpreter) as job:
        settle(job.pid)
        process = backtrace_while_it_spins(job.pid)
        check_threads(process, job.script)
        version = ".".join(map(str, interpreters.version_of(interpreter)))
        assert version.startswith(process["python"])
        texts = [probe("-t", job.pid, "backtrace").stdout for _ in range(5)]
        text = next((text for text in texts if 'spi)n (ner": running, holds the GIL' in text), None)
        assert text, texts
        assert "time.sleep(1000)" in text, "the source line is shown"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", [(name, program) for name in roots.INTERPRETERS
                                           for program in roots.INTERPRETERS[name]])
def test_a_process_in_a_container(name, program, tmp_path):
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    inside = roots.put(name, script) if roots.path(name) else None
    with roots.start(name, program, inside) as target:
        target.wait_for("ready")
        settle(target.pid)
        check_threads(backtrace_while_it_spins(target.pid), inside)
        assert "yield Worker().wait(3)" in probe("-t", target.pid,
                                                 "backtrace").stdout, "sources are read in its own root"


DEEP = """
import sys, threading, time
sys.setrecursionlimit(20000)
threading.stack_size(512 << 20)
def down(n):
    if n:
        down(n - 1)
    else:
        print("ready", flush=True)
        time.sleep(1000)
threading.Thread(target=down, args=(9990,)).start()
"""


@EVERY
def test_ten_thousand_frames(interpreter):
    with jobs.python(DEEP, interpreter) as job:
        process = backtrace(job.pid)
        deep = max(process["threads"], key=lambda thread: len(thread.get("frames", ())))
        assert functions(deep)[:9991] == ["down"] * 9991 and not deep["truncated"]
        assert functions(deep)[-1] == "_bootstrap"
        assert len(probe("-t", job.pid, "backtrace").stdout.splitlines()) < 400, "the middle is left out for a person"


def test_a_thousand_threads():
    code = """
import threading, time
threading.stack_size(64 << 10)
for i in range(1000):
    threading.Thread(target=time.sleep, args=(1000,), name="worker-%d" % i, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""
    with jobs.python(code) as job:
        start = jobs.calm()
        names = set(by_name(backtrace(job.pid)))
        assert jobs.calm() - start < 5
        assert names >= {f"worker-{i}" for i in range(1000)}
        merged = probe("-t", job.pid, "backtrace", "--merge").stdout
        assert "1000 threads: " in merged and "2 different stacks" in merged


@EVERY
def test_a_stopped_process(interpreter):
    with jobs.python(THREADS, interpreter) as job:
        os.kill(job.pid, signal.SIGSTOP)
        jobs.wait_until(lambda: all(task.read_text().rsplit(")", 1)[1].split()[0] == "T"
                                    for task in Path(f"/proc/{job.pid}/task").glob("*/stat")),
                        what="the stop of all threads")
        process = backtrace(job.pid, "--no-stop")
        threads = by_name(process)
        assert f"stopped by a signal (kill -CONT {job.pid}" in process["verdict"]
        assert functions(threads["spi)n (ner"])[0] == "spin" and threads["spi)n (ner"]["state"] == "stopped by a signal"
        os.kill(job.pid, signal.SIGCONT)


@EVERY
def test_the_gil_held_in_c_for_ever(interpreter):
    with jobs.python(HELD, interpreter) as job:
        time.sleep(0.7)
        process = backtrace(job.pid)
        first = process["threads"][0]
        assert first["name"] == "holder" and first["gil"] and functions(first)[0] == "hold"
        assert "GIL" in process["verdict"] and "holder" in process["verdict"]
        seconds = re.search(r", for (\d+\.\d) s$", process["verdict"])
        if os.path.exists("/proc/self/sched"):  # not every kernel has it
            assert seconds and 0.1 <= float(seconds[1]) < 60, process["verdict"]


def test_the_gil_of_a_busy_thread_is_not_held_in_c():
    with jobs.python(THREADS) as job:
        settle(job.pid)
        assert backtrace_while_it_spins(job.pid)["verdict"] is None


@EVERY
def test_names_in_all_scripts(interpreter, tmp_path):
    folder = tmp_path / "größe-文件-😀"
    folder.mkdir()
    script = folder / "naïve_模块.py"
    script.write_text("""# coding: utf-8
import threading, time
def größe():
    def 计算():
        print("ready", flush=True)
        time.sleep(1000)
    计算()
threading.Thread(target=größe, name="поток-😀").start()
""", encoding="utf-8")
    with jobs.start(interpreter, script, ready="ready", env={"PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"}) as job:
        thread = by_name(backtrace(job.pid))["поток-😀"]
        assert functions(thread)[:2] == ["计算", "größe"]
        assert thread["frames"][0]["file"] == str(script)
        assert "time.sleep(1000)" in probe("-t", job.pid, "backtrace").stdout


@EVERY
def test_it_is_found_under_another_name_and_when_its_file_is_gone(interpreter, tmp_path):
    real = os.path.realpath(interpreter)
    copy = tmp_path / "trainer"
    shutil.copy(real, copy)
    home = os.path.dirname(os.path.dirname(real))
    with jobs.python(THREADS, copy, env={"PYTHONHOME": home, "LD_LIBRARY_PATH": f"{home}/lib"}) as job:
        copy.unlink()
        settle(job.pid)
        check_threads(backtrace_while_it_spins(job.pid), job.script)


@pytest.mark.alone
def test_no_stop_refuses_what_it_cannot_prove():
    with jobs.python(THREADS) as job:
        settle(job.pid)
        process = backtrace(job.pid, "--no-stop")
        first = process["threads"][0]
        assert first["read"] == "refused" and first["frames"] == [] and first["gil"]
        assert functions(by_name(process)["sleeper"])[0] == "wait"
        assert "--no-stop" in probe("-t", job.pid, "backtrace", "--no-stop").stdout


def test_a_process_without_python():
    with jobs.start("sleep", "1000") as job:
        jobs.wait_until(lambda: backtrace(job.pid)["threads"][0]["syscall"] in ("clock_nanosleep", "nanosleep"))
        assert backtrace(job.pid)["python"] is None
        assert "no Python" in probe("-t", job.pid, "backtrace").stdout


def test_a_process_that_ends_while_it_is_read():
    answers = []
    for i in range(40):
        process = subprocess.Popen([interpreters.INTERPRETERS[-1], "-c", "import json"], stdout=subprocess.DEVNULL)
        time.sleep(0.001 * i)
        done = probe("-t", process.pid, "backtrace")
        process.wait()
        assert done.returncode in (0, 1), done
        if done.returncode:
            assert done.stderr.count("\n") == 1 and done.stderr.startswith("probing: backtrace: "), done.stderr
        answers.append(done.returncode)
    assert 0 in answers


def test_another_users_process_is_refused_in_one_line():
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with jobs.python(THREADS) as job:
        done = probe("-t", job.pid, "backtrace", preexec_fn=lambda: os.setuid(65534))
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "may not be read" in done.stderr


@pytest.mark.parametrize("interpreter", [path for path in interpreters.INTERPRETERS
                                         if interpreters.version_of(path) >= (3, 8)],
                         ids=interpreters.interpreter_id)
def test_every_interpreter_of_a_process(interpreter):
    with jobs.python(SUBINTERPRETER, interpreter) as job:
        threads = backtrace(job.pid)["threads"]
        inside = [thread for thread in threads if thread.get("frames") and functions(thread)[0] == "inside"]
        assert len(inside) == 1 and inside[0]["interpreter"] > 0
        assert {thread["interpreter"] for thread in threads if thread["python"]} >= {0, inside[0]["interpreter"]}


LOCALS = """
import time
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    y: object
class Plain:
    def __init__(self):
        self.name, self.auth_token = "n", "hidden"
def work(first, *rest, api_key="hidden", **more):
    text, wide, emoji = "plain", "größe 文", "\\U0001f600"
    small, big, negative, zero = 7, 2 ** 100, -(2 ** 70), 0
    real, data, nothing, yes = 1.5, b"\\x00a'", None, True
    listed, nested = [1, [2, [3, [4]]]], {"a": {"password": "hidden", "b": (1,)}}
    numbers, point, plain, long = {5}, Point(1, [2]), Plain(), list(range(10000))
    shared = 3
    def inner():
        return shared
    me = None
    me = [me]
    me.append(me)
    print("ready", flush=True)
    time.sleep(1000)
work(1, 2, 3, extra="e")
"""


@EVERY
def test_locals(interpreter):
    if interpreters.version_of(interpreter) < (3, 7):
        code = LOCALS.replace("from dataclasses import dataclass\n@dataclass\n", "").replace(
            "    x: int\n    y: object\n", "    def __init__(self, x, y): self.x, self.y = x, y\n")
    else:
        code = LOCALS
    with jobs.python(code, interpreter) as job:
        done = probe("-t", job.pid, "backtrace", "--json", "--locals")
        frames = json.loads(done.stdout)[0]["threads"][0]["frames"]
        values = next(frame for frame in frames if frame["name"] == "work")["locals"]
        assert "hidden" not in done.stdout
        wanted = {"first": "1", "rest": "(2, 3)", "api_key": "<redacted>", "more": "{'extra': 'e'}", "text": "'plain'",
                  "wide": "'größe 文'", "emoji": "'\U0001f600'", "small": "7", "big": str(2 ** 100),
                  "negative": str(-(2 ** 70)),
                  "zero": "0", "real": "1.5", "data": "b'\\x00a\\x27'", "nothing": "None", "yes": "True",
                  "listed": "[1, [2, [3, [..]]]]", "nested": "{'a': {'password': <redacted>, 'b': (1,)}}",
                  "numbers": "{5}",
                  "point": "Point(x=1, y=[2])", "plain": "Plain(name='n', auth_token=<redacted>)", "shared": "3"}
        assert {name: values.get(name) for name in wanted} == wanted
        assert values["long"].endswith("10000 in all]") and len(values["me"]) < 100


RANK = """
import os, time
def compute():
    print("ready", flush=True)
    time.sleep(1000)
def collective():
    print("ready", flush=True)
    time.sleep(1000)
(compute if os.environ["RANK"] == "2" else collective)()
"""


def test_the_odd_rank_is_seen(tmp_path):
    script = tmp_path / "odd_rank_job.py"
    script.write_text(RANK)
    ranks = [jobs.start(jobs.sys.executable, script, ready="ready", env={"RANK": str(rank)}) for rank in range(4)]
    entered = []
    try:
        for rank in ranks:
            entered.append(rank.__enter__())
        merged = probe("-t", "odd_rank_job.py", "--all", "backtrace", "--merge").stdout
        blocks = merged.split("\n\n")
        assert "2 different stacks" in blocks[0]
        assert blocks[1].startswith("1 thread: rank 2 ") and "compute (" in blocks[1]
        assert blocks[2].startswith("3 threads: ") and all(f"rank {n} " in blocks[2] for n in (0, 1, 3))
        everything = json.loads(probe("-t", "odd_rank_job.py", "--all", "backtrace", "--json").stdout)
        assert sorted(process["label"] for process in everything) == [f"rank {n}" for n in range(4)]
    finally:
        for rank in ranks[:len(entered)]:
            rank.__exit__(None, None, None)


def test_ranks_that_are_not_in_a_collective_are_named(tmp_path):
    module = tmp_path / "torch/distributed/distributed_c10d.py"
    module.parent.mkdir(parents=True)
    module.write_text("import os, time\ndef all_reduce():\n    print('ready', flush=True)\n    time.sleep(1000)\n"
                      "def straggle():\n"
                      "    print('ready', flush=True)\n    time.sleep(1000)\n"
                      "(all_reduce if os.environ['RANK'] in '047' else straggle)()\n")
    # Only the function of the module that waits counts: those that straggle are in another file.
    other = tmp_path / "straggling_job.py"
    other.write_text(module.read_text())
    with ExitStack() as stack:
        started = [stack.enter_context(jobs.start(jobs.sys.executable, module if rank in (0, 4, 7) else other,
                                                  "absent-ranks-of-this-test",
                                                  ready="ready", env={"RANK": str(rank)}))
                   for rank in (0, 1, 4, 5, 6, 7)]
        for job in started:
            settle(job.pid)
        shown = {p["label"]: p for p in json.loads(probe("-t", "absent-ranks-of-this-test", "--all", "backtrace",
                                                         "--json").stdout)}
        assert shown["rank 4"]["threads"][0]["waits_for"]["absent_ranks"] == "1, 5-6"
        assert "absent_ranks" not in shown["rank 5"]["threads"][0]["waits_for"]
        merged = probe("-t", "absent-ranks-of-this-test", "--all", "backtrace", "--merge").stdout
        assert len(re.findall(r"rank \d: the main thread is waiting in a collective: all_reduce.*; not in it: "
                              r"ranks 1, 5-6\n", merged)) == 3, merged
        assert "not in it" not in probe("-t", started[0].pid, "backtrace").stdout


@jobs.three_tries
def test_repeating_shows_what_changed(tmp_path):
    code = """
import os, sys, threading, time
def until_told():
    while not os.path.exists(TOLD): time.sleep(0.01)
def first():
    print("ready", flush=True)
    until_told()
def second(): time.sleep(1000)
def both():
    goer = threading.Thread(target=until_told, name="goer")
    goer.start()
    first()
    threading.Thread(target=second, name="comer").start()
    goer.join()
    print("changed", flush=True)
    second()
threading.Thread(target=both, name="mover").start()
"""
    told = tmp_path / "told"
    told.unlink(missing_ok=True)
    with jobs.python(code.replace("TOLD", repr(str(told)))) as job:
        with subprocess.Popen([jobs.PROGRAM, "-t", str(job.pid), "backtrace", "--count", "2", "--interval", "3s"],
                              stdout=subprocess.PIPE, universal_newlines=True) as repeating:
            text = repeating.stdout.readline()
            told.touch()
            began = time.monotonic()
            jobs.wait_until(lambda: "changed" in job.output, what="the change")
            jobs.in_time(time.monotonic() - began < 2, "the program changed too late for the second look")
            text += repeating.stdout.read()
        once, again = text.split(f"process {job.pid}")[1:]
        assert "first (" in once and "MainThread" in once and "goer" in once and not re.search(", new$", once, re.M)
        assert "second (" in again and "MainThread" not in again and "1 thread as before" in again
        assert re.search(r'"comer": waiting in \S+, new\n', again) and not re.search(r'"mover": .*new', again)
        assert re.search(r'\nended: thread \d+ "goer"\n', again)


LOCKS = """
import sys, threading, time
case, kind = sys.argv[1].split("-")
make = getattr(threading, kind)
a, b = make(), make()
def one(x, y):
    with x:
        time.sleep(0.2)
        two(y)
def two(y):
    if case == "acquire":
        y.acquire()
    with y:
        time.sleep(1000)
def itself():
    with a:
        with a:
            pass
def left():
    with b:
        pass
    with a:
        pass
    time.sleep(0.2)
    a.acquire()
def hold():
    a.acquire()
    time.sleep(1000)
def keep():
    with a:
        time.sleep(1000)
def wait():
    time.sleep(0.1)
    with b:
        with a:
            pass
def start(function, name, *args):
    threading.Thread(target=function, args=args, name=name, daemon=True).start()
if case in ("circle", "acquire"):
    start(one, "first", a, b)
    start(one, "second", b, a)
elif case == "itself":
    start(itself, "self")
elif case == "waiting":
    start(keep, "keeper")
    start(wait, "waiter")
elif case == "left":
    start(left, "leaver")
    time.sleep(0.1)
    start(hold, "holder")
time.sleep(0.6)
print("ready", flush=True)
time.sleep(1000)
"""


@EVERY
def test_deadlocks_are_told_from_waiting(interpreter, tmp_path):
    script = tmp_path / "locks.py"
    script.write_text(LOCKS)
    cases = ["circle-Lock", "circle-RLock", "acquire-Lock", "itself-Lock", "waiting-Lock", "waiting-RLock", "left-Lock"]
    with ExitStack() as stack:
        # All at once: each needs most of a second until its threads wait as they should.
        started = [stack.enter_context(jobs.start(interpreter, script, case)) for case in cases]
        for job in started:
            jobs.wait_until(lambda: "ready" in job.output)
        verdicts = [backtrace(job.pid)["verdict"] or "" for job in started]
    for case, verdict in zip(cases, verdicts):
        kind = case.split("-")[1]
        if case.startswith(("circle", "acquire")):
            assert verdict.startswith("deadlock: "), case
            assert '"first" waits for a' in verdict, case
            assert '"second" holds (one:9)' in verdict, case
            assert f"{kind} that" in verdict
        elif case.startswith("itself") and interpreters.version_of(interpreter)[:2] != (3, 11):
            assert '"self" waits for a Lock that it holds itself (itself:1' in verdict
        else:
            assert verdict == "", case


def test_a_read_names_its_peer():
    code = "import os, sys\nprint('ready', flush=True)\nos.read(0, 1)\n"
    writer = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE)
    try:
        reader = subprocess.Popen([interpreters.INTERPRETERS[-1], "-c", code], stdin=writer.stdout,
                                  stdout=subprocess.PIPE)
        reader.stdout.readline()
        writer.stdout.close()
        jobs.wait_for_call(reader.pid, "read")
        verdict = backtrace(reader.pid)["verdict"]
        assert f"a pipe from process {writer.pid} (sleep) (descriptor 0)" in verdict
        reader.kill()
        reader.wait()
    finally:
        writer.kill()
        writer.wait()


def test_a_connection_names_its_peer():
    import socket
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code = (f"import socket\ns = socket.create_connection(('127.0.0.1', {port}))\nprint('ready', "
                f"flush=True)\ns.recv(1)\n")
        with jobs.python(code) as job:
            jobs.wait_for_call(job.pid, "recvfrom")
            assert f"a connection to 127.0.0.1:{port}" in backtrace(job.pid)["verdict"]


@pytest.mark.parametrize("path, function, words", [
    ("torch/distributed/distributed_c10d.py", "all_reduce", "waiting in a collective: all_reduce"),
    ("torch/utils/data/dataloader.py", "_try_get_data", "waiting for a data-loader worker: _try_get_data")])
def test_waits_of_libraries_are_named(path, function, words, tmp_path):
    module = tmp_path / path
    module.parent.mkdir(parents=True)
    module.write_text(f"import time\ndef {function}():\n    print('ready', flush=True)\n    "
                      f"time.sleep(1000)\n{function}()\n")
    with jobs.start(interpreters.INTERPRETERS[-1], module, ready="ready") as job:
        settle(job.pid)
        assert words in backtrace(job.pid)["verdict"]


ASYNCIO = """
import asyncio
async def leaf(n):
    await asyncio.sleep(1000)
async def numbers():
    yield 1
    await leaf(2)
async def middle(n):
    await leaf(n)
async def consume():
    async for n in numbers():
        pass
async def parent(child):
    await child
async def main():
    tasks = [asyncio.ensure_future(middle(1)), asyncio.ensure_future(consume())]
    tasks.append(asyncio.ensure_future(parent(tasks[0])))
    await asyncio.sleep(0.1)
    print("ready", flush=True)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


def check_tasks(pid, file):
    """Which task awaits what, by the chains of functions of this file, innermost first."""
    jobs.wait_for_call(pid, "epoll_wait", "epoll_pwait")
    tasks = backtrace(pid)["threads"][0]["tasks"]
    chains = {tuple((f["name"], f["line"]) for f in task["frames"] if f["file"] == file): task for task in tasks}
    assert set(chains) == {(("main", 20),), (("leaf", 4), ("middle", 9)),
                           (("leaf", 4), ("numbers", 7), ("consume", 11)), (("parent", 14),)}
    awaited = chains[(("parent", 14),)]["waits_for"]
    # Tasks have names from 3.8 on; before that the type is named.
    assert awaited in (chains[(("leaf", 4), ("middle", 9))]["name"], "Task") and awaited


@pytest.mark.parametrize("interpreter", [path for path in interpreters.INTERPRETERS
                                         if interpreters.version_of(path) >= (3, 7)],
                         ids=interpreters.interpreter_id)
def test_tasks_and_what_they_await(interpreter):
    with jobs.python(ASYNCIO, interpreter) as job:
        check_tasks(job.pid, job.script)
        assert 'task "' in probe("-t", job.pid, "backtrace").stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", roots.INTERPRETERS["sid"])
def test_tasks_of_newer_versions(program, tmp_path):
    script = tmp_path / "tasks.py"
    script.write_text(ASYNCIO)
    inside = roots.put("sid", script) if roots.path("sid") else None
    with roots.start("sid", program, inside) as target:
        target.wait_for("ready")
        check_tasks(target.pid, inside)


TREE = """
import asyncio, sys, threading
def task(what, name):
    made = asyncio.ensure_future(what)
    hasattr(made, "set_name") and made.set_name(name)
    return made
async def leaf():
    await asyncio.sleep(1000)
async def waits(for_it):
    await for_it
async def group():
    if sys.version_info < (3, 11): return await leaf()
    async with asyncio.TaskGroup() as made:
        made.create_task(leaf(), name="in group")
async def main(names):
    below = task(leaf(), names[0])
    above = [task(waits(below), names[1]), task(group(), names[2])]
    alone = task(leaf(), names[3])
    await asyncio.sleep(0.1)
    print(names[0], flush=True)
    await asyncio.gather(*above)
run = lambda names: asyncio.new_event_loop().run_until_complete(main(names))
threading.Thread(target=run, args=(["b below", "b waits", "b group", "b alone"],), name="second", daemon=True).start()
run(["a below", "a waits", "a group", "a alone"])
"""


def check_tree(pid, version):
    """Who waits for whom, by names; each task once, below the thread of its own loop."""
    groups = 2 if version >= (3, 11) else 0
    jobs.wait_until(lambda: len(re.findall(r"\.py:\d+\)(,|$)", tree_of(pid), re.M)) == 10 + groups, what="tasks")
    lines = [re.match("([ │├└─]*)(.*?): ", line).groups() for line in tree_of(pid).splitlines() if ".py:" in line]
    for letter in "ab":
        depths = {name: len(indent) // 4 for indent, name in lines if name.startswith(letter)}
        wanted = {f"{letter} below": 2, f"{letter} waits": 1, f"{letter} group": 1, f"{letter} alone": 0}
        assert depths == wanted
    assert [len(indent) for indent, name in lines if name == "in group"] == [8] * groups
    for thread in backtrace(pid)["threads"][:2]:
        named = {task["id"]: task for task in thread["tasks"]}
        found = {(task["name"], named[task["awaited_by"]]["name"]) for task in named.values()
                 if task["awaited_by"]}
        letter = "b" if thread["name"] == "second" else "a"
        assert found >= {(f"{letter} below", f"{letter} waits")}
        assert not any(task["name"][:2] == ("a " if letter == "b" else "b ") for task in named.values())


def tree_of(pid):
    return probe("-t", pid, "backtrace", "--tasks").stdout


@pytest.mark.parametrize("interpreter", [path for path in interpreters.INTERPRETERS
                                         if interpreters.version_of(path) >= (3, 8)],
                         ids=interpreters.interpreter_id)
def test_tasks_are_a_tree_below_their_loops(interpreter):
    with jobs.python(TREE, interpreter, ready="a below") as job:
        check_tree(job.pid, interpreters.version_of(interpreter))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", roots.INTERPRETERS["sid"])
def test_tasks_of_newer_versions_are_a_tree(program, tmp_path):
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    inside = roots.put("sid", script) if roots.path("sid") else None
    with roots.start("sid", program, inside) as target:
        target.wait_for("a below")
        check_tree(target.pid, (3, 14))


def test_a_process_given_by_its_pid_is_named_by_its_rank():
    with jobs.python(env={"RANK": "3"}) as job:
        assert f"process {job.pid} (rank 3): " in jobs.probe("-t", job.pid, "backtrace").stdout
        assert '"rank 3"' in jobs.probe("-t", job.pid, "backtrace", "--json").stdout
