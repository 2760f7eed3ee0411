"""Stacks of CPythons that are built otherwise than most: free-threaded ones, old ones, and versions nobody knows."""
import os
import re
import shutil
import subprocess

import builds
import jobs
import pytest
import roots
import stack_kit
import surroundings
from jobs import probe
from stack_kit import backtrace, by_name, functions

SAMPLES = 1000000 if os.environ.get("PROBING_SOAK") else 1000
FREE_THREADED = pytest.mark.parametrize("tag", builds.FREE_THREADED)

# Two threads at once in code of which each has its own copy, with values of all kinds.
PARALLEL = """
import sys, threading, time
class Point:
    def __init__(self):
        self.x, self.y = 3, [1, (2, 3)]
def spin(until):
    n, text, big = 0, "gr\\u00f6\\u00dfe \\u6587\\U0001f600", 2 ** 100
    point, some, nested = Point(), {5}, {"a": {"b": None}}
    def inner(
            k):
        nonlocal n
        while n >= 0:
            n += k
    inner(
        1)
def numbers():
    yield spin(7)
threading.Thread(target=spin, args=(7,), name="first", daemon=True).start()
threading.Thread(target=lambda: list(numbers()), name="second", daemon=True).start()
time.sleep(0.3)
print("ready", flush=True)
time.sleep(1000)
"""


@FREE_THREADED
def test_threads_that_run_at_once(tag, tmp_path):
    script = tmp_path / "parallel.py"
    script.write_text(PARALLEL)
    with builds.start(tag, script) as job:
        process = backtrace(job.pid, "--locals")
        text = probe("-t", job.pid, "backtrace").stdout
    version = f"3.{tag[3:5]}."
    assert process["python"].startswith(version) and process["free_threaded"] and process["verified"]
    assert re.search(rf"^CPython {re.escape(version)}\d+, free-threaded, 3 Python threads", text, re.M), text
    assert not any(thread["gil"] for thread in process["threads"]), "nobody holds what is not there"
    threads = by_name(process)
    first, second = threads["first"]["frames"], threads["second"]["frames"]
    assert functions(threads["first"])[:3] == ["inner", "spin", "run"]
    assert functions(threads["second"])[:4] == ["inner", "spin", "numbers", "<lambda>"]
    for frames in (first, second):
        assert frames[0]["line"] in (12, 13) and frames[1]["line"] == 14
    assert [second[2]["line"], second[3]["line"]] == [17, 19]
    wanted = {"until": "7", "text": "'größe 文\U0001f600'", "big": str(2 ** 100), "point": "Point(x=3, y=[1, (2, 3)])",
              "some": "{5}", "nested": "{'a': {'b': None}}"}
    assert {name: first[1]["locals"].get(name) for name in wanted} == wanted
    assert functions(threads["MainThread"])[:2] == ["<module>", "run"]
    assert threads["MainThread"]["frames"][0]["line"] == 22


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return stack_kit.build("stack_driver.c", tmp_path_factory.mktemp("driver"))


@FREE_THREADED
def test_no_stack_that_never_was(driver, tag, tmp_path):
    tree = stack_kit.Tree()
    text = tree.text.replace("print('ready', flush=True)\nmain()\n",
                             "import _thread, time\n_thread.start_new_thread(main, ())\n"
                             "_thread.start_new_thread(main, ())\nprint('ready', flush=True)\ntime.sleep(1000)\n")
    assert "start_new_thread" in text
    script = tmp_path / "tree.py"
    script.write_text(text)
    with builds.start(tag, script) as job:
        jobs.wait_until(lambda: len(os.listdir(f"/proc/{job.pid}/task")) == 3)
        for tid in sorted(map(int, os.listdir(f"/proc/{job.pid}/task")))[1:]:
            done = subprocess.run([driver, str(job.pid), str(tid), str(SAMPLES), "as"], stdout=subprocess.PIPE,
                                  check=True, universal_newlines=True)
            *stacks, summary = done.stdout.splitlines()
            counts = [(int(line.partition(" ")[0]), line.partition(" ")[2]) for line in stacks]
            for _, stack in counts:
                why = tree.wrong(f"<module>:{tree.main_line} {stack}")
                assert why is None, (stack, why)
            assert sum(count for count, _ in counts) >= 0.99 * SAMPLES and len(counts) > 10, summary


OLDER = """
import sys, _thread
class Point:
    def __init__(self):
        self.x, self.name = 3, "gr\\u00f6\\u00dfe"
def spin():
    n = 0
    while True:
        n += 1
def numbers(point):
    yield wait(point, [1, 2.5, None, True, {"a": (1,)}], {5}, 2 ** 100)
def wait(point, lots, some, big):
    wide = "\\u6587\\U0001f600"
    lock = _thread.allocate_lock()
    lock.acquire()
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    # so far down that a line table of signed bytes would go wrong
""" + "\n" * 180 + """    lock.acquire()
_thread.start_new_thread(spin, ())
for x in numbers(Point()):
    pass
"""


@pytest.mark.skipif(not os.environ.get("PROBING_SOAK"), reason="two wheels of 53 MB: make soak")
@pytest.mark.parametrize("tag", builds.OLD)
def test_versions_of_long_ago(tag, tmp_path):
    script, starter = tmp_path / "older.py", tmp_path / "starter.so"
    script.write_text(OLDER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", starter, stack_kit.TARGETS / "python_starter.c", "-ldl"],
                   check=True)
    with builds.start_by_hand(tag, script, starter) as job:
        jobs.wait_for_call(job.pid, "futex")
        process = backtrace(job.pid, "--locals")
        text = probe("-t", job.pid, "backtrace").stdout
    assert process["python"].startswith(f"3.{tag[3]}.") and not process["verified"]
    assert "not verified" in text.splitlines()[1]
    spin = next(thread for thread in process["threads"] if thread["name"] != "MainThread")
    assert functions(spin) == ["spin"] and spin["frames"][0]["line"] in (8, 9)
    frames = by_name(process)["MainThread"]["frames"]
    line = OLDER.splitlines().index("    lock.acquire()", 20) + 1
    assert [(frame["name"], frame["line"])
            for frame in frames] == [("wait", line), ("numbers", 11), ("<module>", line + 2)]
    values = frames[0]["locals"]
    assert values["point"] in ("Point(x=3, name='größe')", "Point(name='größe', x=3)")
    assert (values["lots"], values["some"], values["big"], values["wide"]) == (
        "[1, 2.5, None, True, {'a': (1,)}]", "{5}", str(2 ** 100), "'文\U0001f600'")


UNKNOWN = """
import sys, time; sys.hexversion = 0x031002f0
def work():
    print("ready", flush=True)
    time.sleep(1000)
work()
"""


@pytest.mark.timeout(300)
def test_a_version_nobody_knows_is_refused_and_can_be_forced(tmp_path):
    # The newest one there is, with the number of the next where its runtime and its sys tell their own.
    newest = (roots.path("sid") / "usr/bin/python3.15").read_bytes()
    at = [found.end() for found in re.finditer(b"xdebugpy(?=..\x0f\x03\\0{4})", newest, re.S)]
    assert len(at) == 1
    program, script = tmp_path / f"python-next-{os.getpid()}", tmp_path / f"unknown-{os.getpid()}.py"
    program.write_bytes(newest[:at[0]] + b"\xf0\x02\x10\x03" + newest[at[0] + 4:])
    script.write_text(UNKNOWN)
    with roots.start("sid", roots.put("sid", program), roots.put("sid", script)) as target:
        target.wait_for("ready")
        for words in (["backtrace"], ["flamegraph", "--idle", "--duration", "0.2s", "-o", tmp_path / "x.folded"]):
            refused = probe("-t", target.pid, *words)
            assert refused.returncode == 1 and refused.stderr.count("\n") == 1, refused.stderr
            assert "CPython 3.16" in refused.stderr and "--force" in refused.stderr
            forced = probe("-t", target.pid, *words, "--force")
            assert forced.returncode == 0 and "not verified" in forced.stdout + forced.stderr, forced
        process = backtrace(target.pid, "--force")
        text = probe("-t", target.pid, "backtrace", "--force").stdout
    for name in (program, script):
        (roots.ROOTS / "sid/tmp" / name.name).unlink()
    assert process["python"] == "3.16.2" and not process["verified"] and "not verified" in text.splitlines()[1]
    assert [(frame["name"], frame["line"])
            for frame in process["threads"][0]["frames"]] == [("work", 5), ("<module>", 6)]
    assert "work" in (tmp_path / "x.folded").read_text()


def test_a_version_of_before_is_refused_in_one_line():
    old = next((path for path in ("/usr/bin/python2.7",
                                  *map(str, (surroundings.user_home() / ".pyenv/versions").glob("2.7*/bin/python2.7")))
                if shutil.which(path)), None)
    if not old:
        pytest.skip("there is no Python 2.7")
    with jobs.start(old, "-c", "import sys, time; print('ready'); sys.stdout.flush(); time.sleep(1000)",
                    ready="ready") as job:
        done = probe("-t", job.pid, "backtrace")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "CPython 2.7" in done.stderr
    assert "--force" not in done.stderr
