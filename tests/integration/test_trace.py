"""trace: calls of functions of a running program, as rows, on every interpreter."""
import json
import sys

import jobs
import pytest
from jobs import probe, rows
from every_python import EVERY, program

# work() calls each function a known number of times in a round; what it prints tells whether tracing changed anything.
CODE = """
import sys, threading, time
class Model:
    def forward(self, x, *rest, k=3, **more):
        y = x * 2
        return helper(y)
def helper(n):
    return n + 1
def generate(n):
    for i in range(n):
        yield i
def fail(n):
    raise ValueError(n)
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)
class Wait:
    def __await__(self):
        yield 1
async def inner():
    await Wait()
    return 5
async def outer():
    return await inner()
def key(n):
    return -n
class Loud:
    def __repr__(self):
        print("repr was called", flush=True)
        return "loud"
def work():
    found = [Model().forward(1.5, [1, 2], k="x", z=Loud()), list(generate(3)), fact(5), sorted([1, 2, 3], key=key)]
    try:
        fail(1)
    except ValueError as error:
        found.append(error.args)
    waiting = outer()
    try:
        while True:
            waiting.send(None)
    except StopIteration as end:
        found.append(end.value)
    return found
def main():
    first = work()
    print("ready", flush=True)
    while work() == first:
        time.sleep(0.002)
    print("changed", flush=True)
if len(sys.argv) < 9:
    main()
"""


def ended(job, name, also="true"):
    return rows(job, f"SELECT * FROM python.trace_event WHERE record_type = 'call' AND name LIKE '%{name}' AND ended "
                     f"IS NOT NULL AND {also}")


@EVERY
def test_calls_are_rows(python):
    names = ["Model.forward", "generate", "fail", "fact", "outer", "key"]
    with program(python, CODE) as job:
        done = probe(job.pid, "trace", *names, "--args", "--locals", "y", "--duration", "60s")
        assert done.returncode == 0, done.stderr
        jobs.wait_until(lambda: len(ended(job, "key")) > 6, what="calls")
        listed = probe(job.pid, "trace").stdout
        assert all(f"__main__:{name}: " in listed for name in names), listed
        assert "__main__:fact" in probe(job.pid, "trace", "--stop").stdout
        assert probe(job.pid, "trace").stdout == "nothing is traced\n"
        forward = ended(job, "Model.forward")[0]
        told = json.loads(forward["arguments"])
        assert told == {"self": "<__main__.Model>", "x": 1.5, "rest": [[1, 2]], "k": "x",
                        "more": {"z": "<__main__.Loud>"}}
        assert (forward["result"], json.loads(forward["locals"]), forward["error"]) == ("4.0", {"y": 3.0}, None)
        failed = ended(job, "fail")
        assert failed and all(each["error"] == "ValueError" and each["result"] is None for each in failed)
        # Each of 5 levels of recursion has the one above as its parent.
        calls = {each["span_id"]: each for each in ended(job, "fact")}
        deep = [each for each in calls.values() if json.loads(each["arguments"]) == {"n": 1}]
        assert deep and json.loads(calls[deep[0]["parent_id"]]["arguments"]) == {"n": 2} and deep[0]["result"] == "1"
        # One row for a generator and a coroutine, over all their yields.
        assert {each["result"] for each in ended(job, "generate")} == {"null"}
        assert {each["result"] for each in ended(job, "outer")} == {"5"}
        n = len(rows(job, "SELECT 1 AS n FROM python.trace_event"))
        assert job.alive() and "changed" not in job.output and "repr" not in job.output
        assert len(rows(job, "SELECT 1 AS n FROM python.trace_event")) == n
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive()


def test_depth_and_duration():
    with jobs.python(CODE) as job:
        assert probe(job.pid, "trace", "Model.forward", "--depth", "2", "--duration", "500ms").returncode == 0
        jobs.wait_until(lambda: len(ended(job, "helper")) > 1, what="calls of the function inside")
        assert {each["parent_id"] for each in ended(job, "helper")} <= {each["span_id"] for each in rows(
            job, "SELECT span_id FROM python.trace_event WHERE name LIKE '%forward'")}
        jobs.wait_until(lambda: probe(job.pid, "trace").stdout == "nothing is traced\n", what="the end")
        if "monitoring" in probe(job.pid, "eval", "import sys; print(dir(sys))").stdout:
            jobs.wait_until(lambda: probe(job.pid, "eval", "import sys; print([sys.monitoring.get_tool(n) for "
                                                           "n in (3, 4)])").stdout
                            == "[None, None]\n", what="the tool's end")


@pytest.mark.parametrize("words, text", [
    (("nothing",), "__main__ has no nothing"), (("no.such:thing",), "has not imported the module no.such"),
    (("Model",), "a class: name a method"), (("time:sleep",), "no function that is written in Python")])
def test_refused(words, text):
    with jobs.python(CODE) as job:
        done = probe(job.pid, "trace", *words)
        assert done.returncode == 1 and text in done.stderr, done.stderr


def test_detach_ends_it():
    with jobs.python(CODE) as job:
        assert probe(job.pid, "trace", "fact", "--duration", "60s").returncode == 0
        assert probe(job.pid, "detach").returncode == 0
        assert probe(job.pid, "trace").stdout == "nothing is traced\n"
        assert probe(job.pid, "trace", "fact", "--duration", "60s").returncode == 0
        jobs.wait_until(lambda: len(ended(job, "fact")) > 4, what="calls under the next agent")
        assert job.alive() and "changed" not in job.output


def test_what_there_is_as_rows(tmp_path):
    """Of trace, watch and break, for programs; one table also of several processes."""
    script = tmp_path / "job.py"
    script.write_text("import sys, time\ndef work(n):\n    total = n\n    time.sleep(0.001)\n    return total\n"
                      "print('ready', flush=True)\nwhile True:\n    work(3)\n")

    def listed(command, *target):
        done = probe(*target, command, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with jobs.start(sys.executable, script,
                    ready="ready") as job, jobs.start(sys.executable, script, ready="ready") as other:
        everyone = "-t", str(script), "--all"
        assert probe(*everyone, "trace", "work", "--duration", "60s").returncode == 0
        jobs.wait_until(lambda: all(each["calls"] > 0 for each in listed("trace", *everyone)), what="a call of each")
        found = listed("trace", *everyone)
        assert {each["target"] for each in found} == {f"pid {job.pid}", f"pid {other.pid}"} and len(found) == 2, found
        assert all((each["function"], each["errors"]) == ("__main__:work", 0) and each["mean_ms"] >= 1
                   for each in found), found
        assert probe(job.pid, "watch", "total@work").returncode == 0
        (found,) = listed("watch", job.pid)
        assert (found["variable"], found["file"], found["line"]) == ("total@work", str(script), 2), found
        assert found["changes"] >= 0, found
        assert probe(job.pid, "break", f"{script}:4", "--log", "{n}").returncode == 0
        (found,) = listed("break", job.pid)
        assert (found["number"], found["action"], found["condition"], found["errors"]) == (1, "log", None, 0), found
        done = probe(job.pid, "trace", "work", "--json")
        assert done.returncode == 2 and "to the list" in done.stderr
        assert probe(job.pid, "trace", "--stop").returncode == 0 and listed("trace", job.pid) == []


LISTED = f"""
import time
for i in range(200):
    exec(f"def f{{i:03}}_{'a' * 120}(): pass")
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def test_a_long_list_is_whole():
    """Longer than 16 KB, as a table and as rows."""
    names = [f"__main__.f{i:03}_{'a' * 120}" for i in range(200)]
    with jobs.python(LISTED) as job:
        for at in range(0, len(names), 25):
            assert probe(job.pid, "trace", *names[at:at + 25]).returncode == 0
        assert sorted("__main__." + line.split(":")[1] for line in probe(job.pid, "trace").stdout.splitlines()) == names
        assert len(json.loads(probe(job.pid, "trace", "--json").stdout)) == len(names)


BUSY = """
def small():
    return 1
def work():
    for _ in range(20000):
        small()
print("ready", flush=True)
while True:
    work()
"""


def test_before_3_12_a_cost_that_is_high_has_to_be_wanted():
    with jobs.python(BUSY) as job:
        if sys.version_info >= (3, 12):  # only the functions that are traced are slower
            assert probe(job.pid, "trace", "work").stdout.startswith("tracing __main__:work")
            return
        refused = probe(job.pid, "trace", "work")
        assert refused.returncode == 1 and "not traced: it takes" in refused.stderr and "--yes" in refused.stderr
        assert probe(job.pid, "trace").stdout == "nothing is traced\n"
        taken = probe(job.pid, "trace", "work", "--yes")
        assert taken.returncode == 0 and "% of the time of this program" in taken.stdout, taken.stderr
        assert "work" in probe(job.pid, "trace").stdout
