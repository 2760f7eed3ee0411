"""Spans: what a program was in, in threads, tasks and generators, read while it hangs and after it was killed."""
import json
import os
import signal
import subprocess

import interpreters
import jobs
import pytest
from spans_kit import HEAD, WITH_CONTEXTS, rows, run

ENDS = [pytest.param(path, id=interpreters.interpreter_id(path))
        for path in sorted({interpreters.INTERPRETERS[0], interpreters.INTERPRETERS[-1]})]


HUNG = HEAD + """
import threading, time
def load():
    with probing.span("load", phase="data", file="a.bin"):
        threading.Event().wait()
threading.Thread(target=load, daemon=True, name="loader").start()
with probing.span("train", phase="train", epoch=3):
    for i in range(3):
        with probing.span("step", i=i):
            if i == 2:
                print("hangs", flush=True)
                threading.Event().wait()
"""


@pytest.mark.parametrize("python", ENDS)
def test_what_a_hung_program_was_in_is_read_before_and_after_it_is_killed(python):
    sql = ("SELECT name, phase, attributes, thread_id, (SELECT p.name FROM python.trace_event p WHERE p.span_id = "
           "t.parent_id) AS parent "
           "FROM python.trace_event t WHERE ended IS NULL ORDER BY name")
    with subprocess.Popen([python, "-c", HUNG], stdout=subprocess.PIPE, universal_newlines=True) as job:
        try:
            assert job.stdout.readline() == "hangs\n"
            jobs.wait_until(lambda: len(rows(job.pid, sql)) == 3, what="the loader's span")
            live = rows(job.pid, sql)
            # What was recorded is copied for afterwards several times a second: until the copy has the last row.
            seen = lambda: [path for root in ("/dev/shm", "/tmp", "/var/tmp")
                            for path in jobs.Path(root).glob("probing-*/*-%d-*/arena" % job.pid)
                            if all(word in path.read_bytes() for word in (b'{"file":"a.bin"}', b'{"i":2}'))]
            jobs.wait_until(seen, what="the copy")
        finally:
            os.kill(job.pid, signal.SIGKILL)
    assert [(row["name"], row["phase"], row["parent"], json.loads(row["attributes"])) for row in live] == [
        ("load", "data", None, {"file": "a.bin"}), ("step", "train", "train", {"i": 2}),
        ("train", "train", None, {"epoch": 3})]
    assert live[1]["thread_id"] == live[2]["thread_id"] == job.pid != live[0]["thread_id"]
    assert rows(job.pid, sql) == live
    jobs.forget(job.pid)


GENERATORS = """
@probing.span("counts")
def counts(n):
    with probing.span("warm-up"):
        pass
    for i in range(n):
        try:
            given = yield i
        except KeyError:
            given = "caught"
        with probing.span("made %s" % given):
            pass
    return "end"
with probing.span("outer"):
    a, b = counts(2), counts(2)
    assert (next(a), next(b)) == (0, 0)
    with probing.span("between"):
        pass
    assert a.send("x") == 1 and b.throw(KeyError()) == 1
    with probing.span("after"):
        pass
try:
    a.send("y")
except StopIteration as end:
    assert end.value == "end"
with probing.span("alone"):     # outer has ended, and so has a; b is suspended
    pass
b.close()
with probing.span("alone too"):
    pass
"""


@pytest.mark.parametrize("python", ENDS)
def test_generators_that_take_turns_are_not_in_each_others_spans(python):
    found = run(python, GENERATORS)
    by_name = {row["name"]: row for row in found}
    counts = [row for row in found if row["name"] == "counts"]
    outer = by_name["outer"]["span_id"]
    assert [row["parent_id"] for row in counts] == [outer, outer] and not any(row["is_open"] for row in found)
    assert by_name["between"]["parent_id"] == by_name["after"]["parent_id"] == outer
    assert (by_name["made x"]["parent_id"],
            by_name["made y"]["parent_id"]) == (counts[0]["span_id"], counts[0]["span_id"])
    assert by_name["made caught"]["parent_id"] == counts[1]["span_id"]
    assert by_name["alone"]["parent_id"] is None and by_name["alone too"]["parent_id"] is None
    assert counts[1]["error"] == "GeneratorExit" and counts[0]["error"] is None


TASKS = """
import asyncio, threading
from contextvars import copy_context
@probing.span("pages")
async def pages(n):
    for i in range(n):
        await asyncio.sleep(0)
        with probing.span("page"):
            await asyncio.sleep(0)
        yield i
async def read(k):
    with probing.span("read %d" % k):
        async for each in pages(3):
            with probing.span("use"):
                await asyncio.sleep(0)
async def main():
    with probing.span("main"):
        await asyncio.gather(*[read(k) for k in range(4)])
        await asyncio.get_running_loop().run_in_executor(None, copy_context().run, thread, "in executor")
def thread(name):
    with probing.span(name):
        pass
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
loop.run_until_complete(main())
with probing.span("main thread"):
    other = threading.Thread(target=copy_context().run, args=(thread, "with its context"))
    other.start(); other.join()
"""


def test_tasks_threads_and_asynchronous_generators_have_the_spans_around_them():
    found = run(WITH_CONTEXTS[-1], TASKS)
    names = {row["span_id"]: row["name"] for row in found}
    parents = sorted((row["name"], names.get(row["parent_id"])) for row in found)
    reads = ["read %d" % k for k in range(4)]
    assert [pair for pair in parents if pair[0].startswith("read")] == [(each, "main") for each in reads]
    assert [pair for pair in parents if pair[0] == "pages"] == [("pages", each) for each in reads]
    assert [pair for pair in parents if pair[0] == "page"] == [("page", "pages")] * 12
    assert [pair for pair in parents if pair[0] == "use"] == [("use", each) for each in reads for _ in range(3)]
    assert ("in executor", "main") in parents
    assert ("with its context", "main thread") in parents
    assert ("main thread", None) in parents
    assert not any(row["is_open"] for row in found)


WAYS = """
import contextlib
with probing.span("plain") as opened:
    assert opened.id() > 0
with contextlib.ExitStack() as stack:
    assert stack.enter_context(probing.span("on a stack")).id() > opened.id()
by_hand = probing.span("by hand")
assert by_hand.__enter__() is by_hand and by_hand.__exit__(None, None, None) is False
unbound = probing.span("unbound")
assert type(unbound).__enter__(unbound) is unbound and type(unbound).__exit__(unbound, KeyError, KeyError("x"), None) is False
try:
    with probing.span("fails"):
        {}["x"]
    raise SystemExit("swallowed")
except KeyError:
    pass
@probing.span("decorated")
def decorated(n, k=0):
    return n + k
assert decorated(3, k=4) == 7
@probing.span
def bare():
    return 5
assert bare() == 5
def refused(kind, function, *args):
    try:
        function(*args)
    except kind:
        return
    raise SystemExit("%r was not refused" % (args,))
def again():
    with by_hand:
        with by_hand:
            pass
refused(RuntimeError, again)
for wrong in (5, None, b"x"):
    refused(TypeError, probing.span, wrong)
for method in (type(unbound).__enter__, type(unbound).__exit__):
    refused(TypeError, method, 5)
    refused(TypeError, method)
for _ in range(20000):                      # references: what is taken is given back
    with probing.span("counted"):
        pass
counts = [sys.getrefcount(each) for each in (type(unbound), None, "counted", type(unbound).__enter__)]
for _ in range(20000):
    with probing.span("counted"):
        pass
assert all(b - a < 1000 for a, b in zip(counts, [sys.getrefcount(each) for each in (type(unbound), None, "counted", type(unbound).__enter__)])), counts
"""


@pytest.mark.parametrize("python", [pytest.param(path, id=interpreters.interpreter_id(path))
                                    for path in interpreters.INTERPRETERS])
def test_a_span_is_entered_and_left_in_every_way(python):
    found = [row for row in run(python, WAYS) if row["name"] != "counted"]
    assert [(row["name"], row["parent_id"], row["is_open"]) for row in found] == [(name, None, False) for name in (
        "plain", "on a stack", "by hand", "unbound", "fails", "decorated", "bare", "by hand")]
    assert [row["error"] for row in found] == [None, None, None, "KeyError", "KeyError", None, None, "RuntimeError"]
