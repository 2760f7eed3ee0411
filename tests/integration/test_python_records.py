"""What a program says of itself: tables of its own, logs, spans; on every interpreter, while an agent comes and
goes."""
import json
import os
import subprocess
import sys
import time

import builds
import interpreters
import jobs
import pytest
from jobs import rows

PYTHON = [pytest.param(path, id=interpreters.interpreter_id(path)) for path in interpreters.INTERPRETERS]
SOURCES = str(jobs.TOP / "python")
HEAD = f"import sys; sys.path.insert(0, {SOURCES!r}); import probing\n"

SAYS = HEAD + """
import threading, time
t = probing.table("mine.steps", [("step", int), ("loss", float, "nats", "what is minimized"), ("note", str), ("ok", "bool"), ("raw", bytes), ("small", "int8")])
t.append(1, 0.5, "a", True, b"\\x00\\xff", -3)
t.append(2, note="\\u4e2d\\udc80", small=None)
def refused(*values, **named):
    try:
        t.append(*values, **named)
    except (TypeError, OverflowError) as error:
        return str(error)
said = [refused(1, 2, 3, 4, 5, 6, 7), refused("x"), refused(1.5), refused(nix=1), refused(1, step=2), refused(2 ** 70), refused(small=200)]
assert all(said), said
assert "column step" in said[1] and "column step" in said[2] and "column small" in said[6], said
for name, columns in (("1st", {"a": int}), ("pg_catalog.x", {"a": int}), ("ok", {"a b": int}), ("ok", {"a": int, "A": dict}), ("mine.steps", {"a": int})):
    if name == "mine.steps" and not probing.is_enabled():
        continue
    try:
        probing.table(name, columns)
        raise SystemExit("%s was taken" % name)
    except (TypeError, ValueError):
        pass
def many(k):
    for i in range(1000):
        t.append(100 + k, float(i))
threads = [threading.Thread(target=many, args=(k,)) for k in range(4)]
[each.start() for each in threads]; [each.join() for each in threads]
probing.log(epoch=1, loss=1, acc=0.5, name="x")
probing.log(epoch=2, loss=0.25, acc=None)
probing.step(7)
with probing.span("outer", phase="train", batch=3, ratio=0.5, text='q"', other=[1], none=None, yes=True) as outer:
    with probing.span("inner"):
        probing.event("hit", n=1)
    try:
        with probing.span("fails"):
            1 / 0
    except ZeroDivisionError:
        pass
    seen = []
    other = threading.Thread(target=lambda: seen.append(probing.span("thread").__enter__().__exit__(None, None, None)))
    other.start(); other.join()
probing.record_span("copy", 1000.5, 1002.0, bytes=3)
@probing.span("decorated", k=1)
def f(x):
    return x + 1
@probing.probe
def g(x):
    return x + 2
@probing.probe()
def h():
    yield 1
    yield 2
assert f(1) == 2 and g(1) == 3 and list(h()) == [1, 2] and f.__name__ == "f"
with probing.trace("epoch_spans"):
    pass
probing.set_role(tp=0, dp=1)
open_one = probing.span("never ends"); open_one.__enter__()
print("said", flush=True)
while True:
    time.sleep(0.05)
"""


def start(python, code, **env):
    return subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, universal_newlines=True,
                            env=dict(os.environ, **env))


def check_said(pid):
    first = rows(pid, "SELECT step, loss, note, ok, small FROM mine.steps WHERE step < 100 ORDER BY step")
    assert first == [{"step": 1, "loss": 0.5, "note": "a", "ok": True, "small": -3},
                     {"step": 2, "loss": None, "note": "中\\udc80", "ok": None, "small": None}]
    assert rows(pid, "SELECT step, count(*) AS n, sum(loss) AS s FROM mine.steps WHERE step >= 100 GROUP BY step "
                     "ORDER BY step") == [
        {"step": 100 + k, "n": 1000, "s": 499500.0} for k in range(4)]
    assert rows(pid, "SELECT epoch, loss, acc, name FROM training_logs ORDER BY epoch") == [
        {"epoch": 1, "loss": 1.0, "acc": 0.5, "name": "x"}, {"epoch": 2, "loss": 0.25, "acc": None, "name": None}]
    spans = {row["name"]: row for row in rows(pid, "SELECT *, epoch_ns(ended) - epoch_ns(timestamp) AS took FROM "
                                                   "python.trace_event")}
    assert spans["inner"]["parent_id"] == spans["outer"]["span_id"] == spans["hit"]["trace_id"] == spans["outer"][
        "trace_id"]
    assert spans["hit"]["record_type"] == "event" and spans["hit"]["span_id"] == spans["inner"]["span_id"]
    assert json.loads(spans["outer"]["attributes"]) == {"batch": 3, "ratio": 0.5, "text": 'q"', "other": "[1]",
                                                        "none": None, "yes": True}
    assert spans["outer"]["phase"] == spans["inner"]["phase"] == "train" and spans["inner"]["step"] == 7
    assert spans["fails"]["error"] == "ZeroDivisionError" and spans["inner"]["error"] is None
    assert spans["thread"]["parent_id"] is None and spans["thread"]["thread_id"] != spans["outer"]["thread_id"] == pid
    assert spans["copy"]["duration_ms"] == 1500 and spans["copy"]["timestamp"].startswith("1970-01-01 00:16:40.")
    assert spans["never ends"]["ended"] is None and spans["never ends"]["duration_ms"] is None
    assert spans["outer"]["took"] > 0 and spans["outer"]["duration_ms"] > spans["inner"]["duration_ms"]
    assert {"decorated", "g", "h", "epoch_spans", "role"} <= set(spans) and "<string>:" in spans["g"]["location"]
    assert len(rows(pid, "SELECT * FROM epoch_spans WHERE span_id IN (SELECT span_id FROM python.trace_event)")) == 1


@pytest.mark.parametrize("python", PYTHON)
def test_a_program_tells_of_itself(python):
    with start(python, SAYS) as job:
        try:
            assert job.stdout.readline() == "said\n"
            check_said(job.pid)
            time.sleep(0.5)  # what is in memory is copied for afterwards several times a second
        finally:
            job.kill()
    # It is dead: what it was in is still there.
    assert rows(job.pid, "SELECT name FROM python.trace_event WHERE record_type = 'span' AND "
                         "ended IS NULL") == [{"name": "never ends"}]
    jobs.forget(job.pid)


FINER = HEAD + """
import time
with probing.trace("memory_usage"):
    kept = []
    for _ in range(50):
        kept.append(bytearray(1 << 20))
        time.sleep(0.01)
print("over", flush=True)
sys.stdin.readline()
"""


def test_memory_is_recorded_in_finer_steps_inside_of_a_block():
    with subprocess.Popen([interpreters.INTERPRETERS[-1], "-c", FINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as job:
        assert job.stdout.readline() == "over\n"
        inside = ("FROM memory_usage m, python.trace_event s WHERE s.name = 'memory_usage' AND m.timestamp BETWEEN "
                  "s.timestamp AND s.ended")
        found = rows(job.pid, f"SELECT count(*) AS n, max(memory_mb) - min(memory_mb) AS grew {inside}")[0]
        assert found["n"] >= 10 and found["grew"] > 20, found  # 50 on a quiet machine
        before = rows(job.pid, "SELECT count(*) AS n FROM memory_usage")[0]["n"]
        time.sleep(1)
        assert rows(job.pid, "SELECT count(*) AS n FROM memory_usage")[0]["n"] - before < 10
        job.stdin.close()
    jobs.forget(job.pid)


COMES_AND_GOES = HEAD + """
import threading
t = probing.table("steps", {"i": int, "text": str, "x": float, "y": float})
stop, counts = [], [0] * 8
def record(k):
    i = 0
    while not stop:
        with probing.span("s"):
            t.append(i, "abc", 0.5, None)
        probing.log(loss=0.5)
        i += 1
    counts[k] = i
threads = [threading.Thread(target=record, args=(k,)) for k in range(8)]
[each.start() for each in threads]
print("up", flush=True)
sys.stdin.readline()
stop.append(1)
[each.join() for each in threads]
print("recorded", sum(counts), flush=True)
"""


def taken(job):
    """What the program has: descriptors, mappings, memory of its own in KB."""
    folder = jobs.Path(f"/proc/{job.pid}")
    kb = next(int(line.split()[1]) for line in (folder / "smaps_rollup").read_text().splitlines()
              if line.startswith("Private_Dirty:"))
    return len(list((folder / "fd").iterdir())), len((folder / "maps").read_text().splitlines()), kb


def test_threads_record_while_agents_come_and_go():
    """Detached 50 times under 8 threads that record without a pause: the program goes on, records again for the next
    agent, and has no more than it had."""
    python = interpreters.INTERPRETERS[-1]
    with subprocess.Popen([python, "-c", COMES_AND_GOES], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as job:
        assert job.stdout.readline() == "up\n"

        def run(*commands):
            for command in commands:
                done = subprocess.run([jobs.PROGRAM, "-t", str(job.pid), command], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, timeout=30)
                assert done.returncode == 0, done.stdout
        for _ in range(10):
            run("detach", "inject")
        run("detach")
        fds, maps, kb = taken(job)  # what is kept once is there by now
        for _ in range(40):
            run("inject", "detach")
        now = taken(job)
        assert now[0] == fds and now[1] - maps < 40 and now[2] - kb < 4096, (now, fds, maps, kb)
        run("inject")
        jobs.wait_until(lambda: rows(job.pid, "SELECT name FROM probing.tables WHERE name = 'steps' AND rows > 0"),
                        what="a row for the last agent")
        bad = rows(job.pid, "SELECT count(*) AS n FROM steps WHERE text <> 'abc' OR x <> 0.5 OR y IS NOT NULL "
                            "OR i IS NULL")
        assert bad == [{"n": 0}]
        out, _ = job.communicate("\n", timeout=60)
        assert out.startswith("recorded ") and job.returncode == 0
    jobs.forget(job.pid)


def test_tasks_of_asyncio_have_spans_of_their_own():
    python = next(path for path in reversed(interpreters.INTERPRETERS) if interpreters.version_of(path) >= (3, 7))
    code = HEAD + """
import asyncio
@probing.span("task")
async def task():
    await asyncio.sleep(0.01)
    with probing.span("in task"):
        await asyncio.sleep(0.01)
async def main():
    with probing.span("main"):
        await asyncio.gather(*[task() for _ in range(10)])
asyncio.run(main())
print("said", flush=True); sys.stdin.readline()
"""
    with subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as job:
        assert job.stdout.readline() == "said\n"
        found = rows(job.pid, "SELECT name, span_id, parent_id FROM python.trace_event")
        job.communicate("\n", timeout=30)
    main = next(row["span_id"] for row in found if row["name"] == "main")
    tasks = {row["span_id"] for row in found if row["name"] == "task" and row["parent_id"] == main}
    assert len(tasks) == 10 and {row["parent_id"] for row in found if row["name"] == "in task"} == tasks


@pytest.mark.parametrize("tag", builds.FREE_THREADED)
def test_without_a_gil(tag, tmp_path):
    """The module does not turn the GIL on, and threads that really run at once record whole rows."""
    script = tmp_path / "records.py"
    script.write_text(HEAD + """
import threading, time
t = probing.table("steps", {"i": int, "text": str})
def record(k):
    for i in range(5000):
        with probing.span("s", i=i) as outer:
            t.append(i, "abc")
            with probing.span("inner"):
                probing.event("e")
        if i % 10 == 0:
            probing.log(**{"step": i, "loss": 0.5, "of_%d" % k: float(i)})
            probing.register("live_%d" % k, function=lambda: [{"k": k}])
        probing.step(i)
threads = [threading.Thread(target=record, args=(k,)) for k in range(8)]
[each.start() for each in threads]; [each.join() for each in threads]
probing.table("gil", {"on": bool}).append(sys._is_gil_enabled())
print("ready", flush=True)
while True:
    time.sleep(0.05)
""")
    with builds.start(tag, script) as job:
        assert rows(job.pid, 'SELECT "on" FROM gil') == [{"on": False}]
        assert rows(job.pid, "SELECT count(*) AS n FROM steps WHERE text = 'abc'")[0]["n"] == 40000
        assert rows(job.pid, "SELECT count(*) AS n FROM python.trace_event WHERE record_type = 'span' AND "
                             "duration_ms IS NULL") == [{"n": 0}]
        # Each inner span and each event is in a span of its own thread, as far as that one's row is still there.
        assert rows(job.pid, "SELECT count(*) AS n FROM python.trace_event a JOIN python.trace_event b ON a.name = "
                             "'inner' AND b.span_id = a.parent_id "
                             "WHERE a.thread_id <> b.thread_id OR b.name <> 's' OR b.record_type <> 'span'") == [
                                 {"n": 0}]
        assert rows(job.pid, "SELECT " + ", ".join("count(of_%d) AS n%d" % (k, k) for k in range(8))
                    + ", count(loss) AS n FROM training_logs") == [
            dict({"n%d" % k: 500 for k in range(8)}, n=4000)]
        assert rows(job.pid, "SELECT a.k AS a, b.k AS b FROM live_0 a, live_7 b") == [{"a": 0, "b": 7}]


def test_a_query_of_oneself_needs_no_agent(tmp_path):
    code = HEAD + "print(probing.query('SELECT 6 * 7 AS x')[0]['x']); print(probing.is_enabled())"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert done.stdout == "42\nFalse\n"


@pytest.mark.parametrize("env", [{"PROBING": "0"}, {"PROBING_LIBRARY": "/dev/null"}])
def test_nothing_is_recorded_and_nothing_fails(env):
    """Told not to record, or without its library: the program runs as it is, with one line at most."""
    code = SAYS.replace("while True:", "sys.exit(0)\nwhile True:")
    if "PROBING_LIBRARY" in env:
        code = (HEAD + "t = probing.table('a', {'b': int}); t.append(1); probing.log(x=1)\n@probing.span('x')\n"
                       "def f(): return 1\n"
                "assert f() == 1\nwith probing.span('a', b=1): probing.event('c')\nprint('said')")
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, env=dict(os.environ, **env), timeout=60)
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr
    assert done.stderr == ""


REGISTERS = HEAD + """
import time
class Job:
    def __init__(self, n):
        self.n, self.name = n, "job %d" % n
@probing.register("queue", namespace="loader")
def queue():
    return [{"n": 1, "x": 0.5, "text": "a\\tb\\n\\\\", "none": None}, {"n": 2, "x": 1, "text": "\\u4e2d", "later": True}]
probing.register("jobs", "table", None, lambda: [Job(1), Job(2)])
probing.register("empty", columns={"a": int, "b": str}, function=lambda: [])
probing.register("odd", function=lambda: {"raw": b"\\0\\xff", "text": "a\\0b"})
@probing.register("broken", namespace="loader")
def broken():
    raise ValueError("no queue")
@probing.register("exits", namespace="loader")
def exits():
    raise SystemExit(3)
@probing.register("interrupted", namespace="loader")
def interrupted():
    raise KeyboardInterrupt
class Mute(Exception):
    def __str__(self):
        raise SystemExit(4)
@probing.register("mute", namespace="loader")
def mute():
    raise Mute(5)
@probing.register("hangs", namespace="loader")
def hangs():
    while True:
        time.sleep(0.01)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_function_gives_rows_at_the_moment_of_a_query():
    with jobs.python(REGISTERS, interpreter=interpreters.INTERPRETERS[-1]) as job:
        assert rows(job.pid, "SELECT * FROM loader.queue ORDER BY n") == [
            {"n": 1, "x": 0.5, "text": "a\tb\n\\", "none": None, "later": None},
            {"n": 2, "x": 1.0, "text": "中", "none": None, "later": True}]
        assert rows(job.pid, "SELECT name FROM jobs WHERE n = 2") == [{"name": "job 2"}]
        assert rows(job.pid, "SELECT count(*) AS n FROM empty") == [{"n": 0}]
        done = jobs.probe("-t", job.pid, "query", "SELECT * FROM loader.broken")
        assert done.returncode == 1
        assert "table loader.broken: the function __main__.broken raised ValueError: no queue" in done.stderr
        # What ends a thread or the program elsewhere ends one function here, and the tables after it have their rows.
        for name, why in (("exits", "SystemExit: 3"), ("interrupted", "KeyboardInterrupt\n"), ("mute", "Mute: 5")):
            done = jobs.probe("-t", job.pid, "query", f"SELECT * FROM loader.{name}")
            assert done.returncode == 1, done.stderr
            assert f"table loader.{name}: the function __main__.{name} raised {why}" in done.stderr, done.stderr
            assert rows(job.pid, f"SELECT n AS {name} FROM loader.queue WHERE n = 2") == [{name: 2}]
        done = jobs.probe("-t", job.pid, "query", "--timeout", "1", "SELECT * FROM loader.hangs")
        assert done.returncode == 1, done.stderr
        assert "table loader.hangs: the function __main__.hangs did not return in time" in done.stderr, done.stderr
        # Names with the beginning of a comment or a string in them, each kind of string, and comments: what follows
        # them is still read.
        for column in ('"a--b"', '"it\'s"', '"a/*b"', '"a""--b"', "'x' /* '\"--/* */ */", "$$it's --$$", "$t$ $$ ' $t$",
                       "e'it\\'s --'", "'it''s --'", "1 -- 'it\n"):
            given = column if not column.startswith('"') else f"1 AS {column}"
            assert rows(job.pid, f"SELECT {given}, n FROM jobs WHERE n = 2")[0]["n"] == 2, column
        # And a name in a string or comment calls no function.
        for unused in ("'loader.hangs'", "$$loader.hangs$$", "e'\\'loader.hangs'", "1 /* /* */ loader.hangs */"):
            began = jobs.calm()
            assert rows(job.pid, f"SELECT {unused}, n FROM jobs WHERE n = 2")[0]["n"] == 2, unused
            assert jobs.calm() - began < 4 * jobs.SLOW, unused
        # One that fails and is not wanted, though it is named, is no failed query; and the next agent knows them all.
        assert rows(job.pid, "SELECT 'broken' AS x, count(*) AS n FROM empty") == [{"x": "broken", "n": 0}]
        assert rows(job.pid, "SELECT hex(raw) AS raw, text FROM odd") == [{"raw": "00FF", "text": "a\0b"}]
        for command in ("detach", "inject"):
            assert jobs.probe("-t", job.pid, command).returncode == 0
        jobs.wait_until(lambda: rows(job.pid, "SELECT name FROM probing.tables WHERE name = 'probing.registered' "
                                              "AND rows = 9"), what="the tables to be known")
        assert rows(job.pid, "SELECT name FROM jobs WHERE n = 2") == [{"name": "job 2"}]
        assert rows(job.pid, "SELECT name FROM probing.registered WHERE name = 'jobs'") == [{"name": "jobs"}]
        assert jobs.probe("-t", job.pid, "eval", "1 + 1").stdout == "2\n"


WAITS = HEAD + """
import threading, time
go = threading.Event()
@probing.register("waits", namespace="loader")
def waits():
    go.wait()
    return [{"n": 1}]
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_function_that_waits_for_ever_leaves_room_for_other_code():
    with jobs.python(WAITS, interpreter=interpreters.INTERPRETERS[-1]) as job:
        ask = lambda: jobs.probe("-t", job.pid, "query", "--timeout", "300ms", "SELECT * FROM loader.waits")
        says = [ask().stderr for _ in range(10)]
        assert all("runs for 4 queries already, and has not returned" in text for text in says[4:]), says
        assert jobs.probe("-t", job.pid, "eval", "1+1").stdout == "2\n"
        assert jobs.probe("-t", job.pid, "eval", "go.set()").returncode == 0
        jobs.wait_until(lambda: ask().returncode == 0, what="the function to be called again")



COUNTED = HEAD + """
import time
calls = {"queue": 0, "other": 0, "one": 0}
@probing.register("queue", namespace="loader")
def queue():
    calls["queue"] += 1
    return [{"n": 1}, {"n": 2}]
@probing.register("queue", namespace="other")
def other():
    calls["other"] += 1
    return [{"n": 3}]
@probing.register("one", namespace="single")
def one():
    calls["one"] += 1
    return [{"n": 9}]
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_function_is_called_where_duckdb_reads_its_table_and_nowhere_else():
    with jobs.python(COUNTED, interpreter=interpreters.INTERPRETERS[-1]) as job:
        def called(sql):
            """What the query gives, and which functions it called."""
            assert jobs.probe("-t", job.pid, "eval", "calls.update(queue=0, other=0, one=0)").returncode == 0
            done = jobs.probe("-t", job.pid, "query", "--format", "csv", sql)
            calls = json.loads(jobs.probe("-t", job.pid, "eval",
                                          "__import__('json').dumps(calls)").stdout.strip().strip("'"))
            return done.stdout.split("\n")[1:-1] if done.returncode == 0 else done.stderr, {
                name for name, n in calls.items() if n}

        assert called("SELECT n FROM loader.queue ORDER BY n") == (["1", "2"], {"queue"})
        assert called('SELECT n FROM "Loader"."QUEUE" ORDER BY n') == (["1", "2"], {"queue"})
        assert called("SELECT sum(n) FROM (FROM loader.queue UNION ALL FROM other.queue)") == (["6"], {
            "queue", "other"})
        assert called("SELECT count(*) FROM loader.queue a JOIN loader.queue b USING (n)") == (["2"], {"queue"})
        # Statements whose tree does not show the name, and texts that are statements.
        assert called("SELECT sum(n) FROM query('FROM single.one')") == (["9"], {"one"})
        assert called("PIVOT single.one ON n USING count(*)") == (["1"], {"one"})
        assert "not the only table of that name" in called("SELECT sum(n) FROM query('FROM other.queue')")[0]
        assert "n,BIGINT" in called("DESCRIBE loader.queue")[0][0]
        assert "queue" in called("SUMMARIZE loader.queue")[1]
        assert "queue" in called("EXPLAIN ANALYZE SELECT * FROM loader.queue")[1]
        # Names that are none of the table.
        for sql, rows_wanted in (("WITH queue AS (SELECT 7 AS n) SELECT n FROM queue", ["7"]),
                                 ('SELECT 1 AS "loader.queue"', ["1"]),
                                 ("SELECT n AS queue FROM (SELECT 5 AS n) AS queue", ["5"]),
                                 ("SELECT 'loader.queue' AS x", ["loader.queue"]),
                                 ("SELECT $$FROM loader.queue$$ AS x", ["FROM loader.queue"]),
                                 ('SELECT 1 AS "a--b" -- FROM loader.queue', ["1"]),
                                 ("SELECT 1 /* /* */ FROM loader.queue */ AS x", ["1"]),
                                 ("SELECT e'\\'FROM loader.queue' AS x", ["'FROM loader.queue"])):
            assert called(sql) == (rows_wanted, set()), sql
        for sql in ("SELECT * FROM queue", "SELECT * FROM nowhere.queue", 'SELECT * FROM "loader.queue"'):
            refused, functions = called(sql)
            assert "there is no table" in refused and not functions, sql


def test_a_column_that_costs_is_read_where_duckdb_sees_its_name():
    with jobs.python() as job:
        for sql in ('SELECT "a--b", locals FROM (SELECT 1 AS "a--b", * FROM python.backtrace)',
                    "SELECT Locals FROM python.backtrace", "FROM python.backtrace SELECT $$it's --$$, locals",
                    "SELECT locals FROM query('SELECT locals FROM python.backtrace')"):
            assert any("loss" in (list(row.values())[-1] or "") for row in rows(job.pid, sql)), sql
        for sql in ("SELECT * FROM python.backtrace", "SELECT * FROM python.backtrace -- locals",
                    "SELECT *, 'no locals' FROM python.backtrace"):
            assert {row["locals"] for row in rows(job.pid, sql)} == {None}, sql
