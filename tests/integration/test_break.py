"""break: breakpoints and log points in a running program, on every interpreter, with a real nc."""
import re
import time

import jobs
import pytest
from interpreters import INTERPRETERS, version_of
from jobs import probe
from prompt_kit import COUNTING, Nc, address, goes_on, needs_nc
from every_python import EVERY, program
from jobs import rows

pytestmark = needs_nc
MONITORED = [path for path in INTERPRETERS if version_of(path) >= (3, 12)]
TRACED = [path for path in INTERPRETERS if version_of(path) < (3, 12)]


def place(job, function, lines):
    """FILE:LINE of a line of a function, whatever the interpreter calls the file."""
    done = probe(job.pid, "eval", "'%s:%d' % (" + function + ".__code__.co_filename, " + function
                 + f".__code__.co_firstlineno + {lines})")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().strip("'")


def at_line(text):
    return int(re.search(r":(\d+)", text).group(1))


def hits(job, also="true"):
    return rows(job, f"SELECT * FROM python.break_hits WHERE {also} ORDER BY timestamp")


@EVERY
def test_a_thread_is_held_and_its_locals_are_assigned(python):
    with program(python, COUNTING) as job:
        at = place(job, "train", 5)  # total += helper(step)
        done = probe(job.pid, "break", at, "if", "step > 5 and [n for n in (1,) if n < step]")
        assert done.stderr.startswith("1  stops at " + at + " train if step > 5"), done.stderr
        with Nc(address(done)) as nc:
            nc.wait("(train) ")
            assert nc.ask("total == step * (step - 1)", "(train) ") == "True\n"
            # The step goes into the function and out of it, beside the breakpoint.
            first, second = nc.ask("step", "(helper) "), nc.ask("next", "(helper) ")
            assert [at_line(text) for text in (first, second)] == [at_line(place(job, "helper", n)) for n in (1, 2)]
            assert nc.ask("doubled == n * 2", "(helper) ") == "True\n"
            before = int(nc.ask("!n", "(helper) "))
            nc.send("continue\n")
            assert "waits for the next hit" in nc.wait("(train) ")
            assert int(nc.ask("!step", "(train) ")) == before + 1
            assert "1 hit" not in probe(job.pid, "break").stdout and "2 hits" in probe(job.pid, "break").stdout
            nc.send("stop = 'hand'\n")
            nc.wait("(train) ")
            assert "2 hits" in probe(job.pid, "break", "--stop").stdout
            nc.end()
        jobs.wait_until(lambda: "stopped by hand None True\n" in job.output, what="the program's end")
        assert job.output == "ready\nstopped by hand None True\n"


@EVERY
def test_log_points(python):
    with program(python, COUNTING) as job:
        done = probe(job.pid, "break", place(job, "helper", 1) + " if n % 2", "--log", "n={n} {{{n*2:>6}}} {str(n)!r}")
        assert done.returncode == 0, done.stderr
        assert probe(job.pid, "break", place(job, "helper", 2), "--log", "{missing}").returncode == 0
        jobs.wait_until(lambda: len(hits(job, "id = 1")) > 10, what="hits")
        listed = probe(job.pid, "break").stdout
        assert re.search(r"1  logs .* helper if n % 2: \d+ hits\n", listed) and "with an error" in listed, listed
        assert len(probe(job.pid, "break", "--stop").stdout.splitlines()) == 2
        assert "no breakpoints" in probe(job.pid, "break").stdout
        found = hits(job, "id = 1")
        numbers = [int(re.fullmatch(r"n=(\d+) \{ *(\d+)\} '\d+'", row["message"]).group(1)) for row in found]
        assert numbers == list(range(numbers[0], numbers[-1] + 1, 2)) and not any(row["stopped"] for row in found)
        assert {row["error"] for row in hits(job, "id = 2")} == {"NameError: name 'missing' is not defined"}
        n = len(hits(job))
        time.sleep(0.1)
        assert len(hits(job)) == n
        assert probe(job.pid, "detach").returncode == 0 and job.alive()


@EVERY
def test_stops_where_a_variable_changes(python):
    with program(python, COUNTING) as job:
        with Nc(address(probe(job.pid, "break", "--on-change", "step@train", "if", "step % 3 == 0"))) as nc:
            nc.wait("(train) ")
            first = int(nc.ask("!step", "(train) "))
            nc.send("continue\n")
            nc.wait("(train) ")
            assert int(nc.ask("!step", "(train) ")) == first + 3 and first % 3 == 0
            nc.send("stop = 7\n")
            nc.wait("(train) ")
            assert f"step@train: {first + 2} -> {first + 3}" in [row["message"] for row in hits(job)]
            assert probe(job.pid, "break", "--stop", "step@train").returncode == 0
            nc.end()
        jobs.wait_until(lambda: "stopped by 7 None True\n" in job.output, what="the program's end")


LATER = """
import sys, time
sys.path.insert(0, %r)
print("ready", flush=True)
go = False
while not go:
    time.sleep(0.002)
import loaded_later
while True:
    loaded_later.work(go)
    time.sleep(0.002)
"""


@pytest.mark.parametrize("python", sorted({INTERPRETERS[0], *TRACED[-1:], *MONITORED[-1:]}, key=version_of),
                         ids=lambda path: "%d.%d" % version_of(path)[:2])
def test_a_file_that_is_loaded_later(python, tmp_path):
    (tmp_path / "loaded_later.py").write_text("def work(n):\n\n    value = n + 1\n    return value\n")
    with jobs.python(LATER % str(tmp_path), interpreter=python) as job:
        done = probe(job.pid, "break", "loaded_later.py:2", "--log", "n={n}")
        assert "loaded_later.py:2 once it is loaded" in done.stderr + done.stdout, done
        assert probe(job.pid, "eval", "go = 5").returncode == 0
        jobs.wait_until(lambda: len(hits(job)) > 3, what="hits")
        assert {(row["message"], row["line"], row["function"]) for row in hits(job)} == {("n=5", 3, "work")}
        assert str(tmp_path / "loaded_later.py:3 work") in probe(job.pid, "break").stdout
        assert probe(job.pid, "break", "--stop").returncode == 0
        # Nothing is searched for any more, and nothing of it stays.
        assert probe(job.pid, "break", "never.py:1").returncode == 0
        assert probe(job.pid, "break", "--stop").returncode == 0
        tools = "import sys; [sys.monitoring.get_tool(n) for n in range(6)]" if python in MONITORED else "[None] * 6"
        assert probe(job.pid, "eval", tools).stdout == "[None, None, None, None, None, None]\n"
        assert job.output == "ready\n"


def test_without_a_client_it_goes_on_without_the_breakpoint():
    with jobs.python(COUNTING) as job:
        assert probe(job.pid, "break", place(job, "helper", 1), "--limit", "300ms").returncode == 0
        jobs.wait_until(lambda: "no breakpoints" in probe(job.pid, "break").stdout, what="the end of the breakpoint")
        goes_on(job)
        assert len(hits(job, "stopped")) == 1


def test_detach_lets_go():
    with jobs.python(COUNTING) as job:
        with Nc(address(probe(job.pid, "break", place(job, "helper", 1)))) as nc:
            nc.wait("(helper) ")
            assert probe(job.pid, "detach").returncode == 0
            nc.end()
        goes_on(job)
        assert "no breakpoints" in probe(job.pid, "break").stdout


@pytest.mark.parametrize("words, text", [
    (("{file}:9999",), "has no code at line 9999"), (("{file}",), "a place is FILE:LINE"),
    (("{file}:12", "if", "1 +"), "is no expression"), (("{file}:12", "--log", "{a"), "is not closed"),
    (("--on-change", "x"), "VARIABLE@FUNCTION"),
    (("--on-change", "f()@train"), "nothing that calls"), (("--stop",), "there are no breakpoints")])
def test_refused(words, text):
    with jobs.python(COUNTING) as job:
        done = probe(job.pid, "break", *[word.format(file=job.script) if "{file}" in word else word for word in words])
        assert done.returncode == 1 and text in done.stderr, done.stderr
        assert "no breakpoints" in probe(job.pid, "break").stdout


# A tool of the program's own counts the lines of work, by sys.monitoring or by a trace function, while we come and go.
COUNTED = """
import sys, threading, time
lines, rounds = [0], [0]
def work():
    a = 1
    b = a + 1
    return b
def count(code, line):
    lines[0] += code is work.__code__
def trace(frame, event, argument):
    if frame.f_code is work.__code__ and event == "line":
        lines[0] += 1
    return trace
if hasattr(sys, "monitoring"):
    sys.monitoring.use_tool_id(1, "coverage")
    sys.monitoring.register_callback(1, sys.monitoring.events.LINE, count)
    sys.monitoring.set_events(1, sys.monitoring.events.LINE)
else:
    sys.settrace(trace)
def worker():
    while True:
        work_in_thread()
        time.sleep(0.002)
def work_in_thread():
    c = 5
    return c
threading.Thread(target=worker, daemon=True).start()
def main():
    while True:
        rounds[0] += 1
        if work() != 2 or lines[0] != 3 * rounds[0]:
            print("wrong", lines, rounds, flush=True)
        time.sleep(0.002)
print("ready", flush=True)
main()
"""


@pytest.mark.parametrize("python", MONITORED[-1:] + TRACED[-1:], ids=lambda path: "%d.%d" % version_of(path)[:2])
def test_other_tools_go_on(python):
    with jobs.python(COUNTED, interpreter=python) as job:
        done = probe(job.pid, "break", place(job, "work", 2), "--log", "b={a}")
        if python in TRACED:
            assert done.returncode == 1 and "trace function of its own" in done.stderr, done.stderr
            assert probe(job.pid, "trace", "work").returncode == 1 and probe(job.pid, "watch", "b@work").returncode == 1
        else:
            assert done.returncode == 0, done.stderr
            assert probe(job.pid, "trace", "work", "--args").returncode == 0
            assert probe(job.pid, "watch", "b@work").returncode == 0
            jobs.wait_until(lambda: len(hits(job)) > 3 and rows(job, "SELECT 1 AS n FROM python.variables"),
                            what="hits")
            for command in ("break", "trace", "watch"):
                assert probe(job.pid, command, "--stop").returncode == 0
            tools = probe(job.pid, "eval", "import sys; [sys.monitoring.get_tool(n) for n in (1, 3, 4)]")
            assert tools.stdout == "['coverage', None, None]\n"
        first = int(probe(job.pid, "eval", "rounds[0]").stdout)
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "rounds[0]").stdout) > first + 5, what="rounds")
        assert job.output == "ready\n"


@pytest.mark.skipif(not MONITORED, reason="no CPython 3.12 or later is here")
def test_a_thread_that_is_not_the_main_one():
    with jobs.python(COUNTED, interpreter=MONITORED[-1]) as job:
        with Nc(address(probe(job.pid, "break", place(job, "work_in_thread", 2)))) as nc:
            nc.wait("(work_in_thread) ")
            first = int(probe(job.pid, "eval", "rounds[0]").stdout)
            jobs.wait_until(lambda: int(probe(job.pid, "eval", "rounds[0]").stdout) > first,
                            what="rounds of the main thread")
            assert nc.ask("!c", "(work_in_thread) ") == "5\n"
            assert "time.sleep" in nc.ask("return", "(worker) ")
            assert probe(job.pid, "break", "--stop").returncode == 0
            nc.end()
        assert job.output == "ready\n"
