"""debug: a client of the Debug Adapter Protocol stops the program at places and looks, on every interpreter; the
program is unharmed."""
import os
import socket
import time

import builds
import jobs
import pytest
from dap_kit import Client, Failed, debug_address, ends, line_of, script
from every_python import EVERY, program
from interpreters import INTERPRETERS, interpreter_id, version_of
from jobs import probe, rows
from prompt_kit import ASSIGNED, CHANGED, COUNTING, STEPPED, STEPS, listening, needs_nc

OLDEST_AND_NEWEST = pytest.mark.parametrize("python", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)
ALL = pytest.mark.parametrize("python", INTERPRETERS, ids=interpreter_id)


def source_of_main(client):
    """Where the running code of the program is, and how its lines are shifted, as a debugger learns it."""
    client.ask("pause", threadId=1)
    stop = client.stopped()
    frame = next(each for each in stop["frames"] if each["name"] == "train")
    return stop, frame["source"]


def state(job):
    """What a debugger would leave behind."""
    code = ("import sys, threading; print(sys.gettrace(), threading._trace_hook, [sys.monitoring.get_tool(n) for n "
            "in range(6)] "
            "if hasattr(sys, 'monitoring') else [])")
    return probe(job.pid, "eval", code).stdout


def is_clean(text):
    return text in ("None None []\n", "None None [None, None, None, None, None, None]\n")


def is_frozen(python):
    """Whether nothing tells where its standard library is, which then counts as the program's."""
    return python in builds.FREE_THREADED


@EVERY
def test_a_breakpoint_stops_and_a_local_is_assigned(python):
    with program(python, COUNTING) as job, Client(debug_address(job)) as client:
        stop, source = source_of_main(client)
        assert stop["reason"] == "pause" and stop["threadId"] == 1 and stop["allThreadsStopped"] is False
        shift = next(each for each in stop["frames"]
                     if each["name"] == "<module>")["line"] - line_of(COUNTING, "train(Model())")
        told = client.ask("setBreakpoints", source=source,
                          breakpoints=[{"line": line_of(COUNTING, "time.sleep") + shift, "condition": "step % 3 == 0"}])
        assert told["breakpoints"][0]["verified"], told
        client.go(stop)
        stop = client.stopped()
        assert (stop["reason"], stop["hitBreakpointIds"],
                stop["frames"][0]["name"]) == ("breakpoint", [told["breakpoints"][0]["id"]], "train")
        frame = stop["frames"][0]
        found, number = client.locals(frame)
        step = int(found["step"]["value"])
        assert step % 3 == 0 and found["stop"]["value"] == "False" and found["model"]["type"] == "Model"
        assert client.value("[step - n for n in (step,)]", frame) == "[0]"
        parts = client.ask("variables", variablesReference=found["model"]["variablesReference"])["variables"]
        assert [(each["name"], each["value"]) for each in parts] == [("hidden_size", "32"), ("weights", "[1.0, 2.0]")]
        client.go(stop)
        stop = client.stopped()
        found, number = client.locals(stop["frames"][0])
        assert int(found["step"]["value"]) == step + 3
        assert client.ask("setVariable", variablesReference=number, name="stop",
                          value="'ha' + 'nd'")["value"] == "'hand'"
        client.ask("disconnect")
        ends(job, "stopped by")
        assert "stopped by hand None True" in job.output, job.output


@EVERY
def test_steps(python):
    """Into a function, a generator, a coroutine, a callback of C and out of an exception, with a local assigned in each
    that the program uses; over all of them; out."""
    lines = STEPS.splitlines()
    with program(python, STEPS) as job, Client(debug_address(job)) as client:
        client.stop_at(job.script, line_of(STEPS, "seen = []"))
        stop, seen = client.stopped(), []
        while not STEPPED <= set(seen) and len(seen) < 60:
            client.go(stop, "stepIn")
            stop = client.stopped()
            assert stop["frames"][0]["source"]["path"] == job.script, stop["frames"]
            seen.append(lines[stop["frames"][0]["line"] - 1].strip())
            if seen[-1] in ASSIGNED:
                name, _, value = ASSIGNED[seen[-1]].partition(" = ")
                client.ask("setVariable", variablesReference=client.locals(stop["frames"][0])[1], name=name,
                           value=value)
        assert STEPPED <= set(seen), seen
        while stop["reason"] != "breakpoint":
            client.go(stop)
            stop = client.stopped()
        assert client.value("changed") == CHANGED.strip()
        seen = []
        while "return seen" not in seen:
            client.go(stop, "next")
            stop = client.stopped()
            assert stop["frames"][0]["name"] == "work", (stop["frames"], seen)
            seen.append(lines[stop["frames"][0]["line"] - 1].strip())
        assert "seen.append(str(error))" in seen and "seen.append(end.value)" in seen
        client.stop_at(job.script, line_of(STEPS, "return turned"))
        client.go(stop)
        stop = client.stopped()
        client.go(stop, "stepOut")
        while stop["frames"][0]["name"] == "key":  # it is called twice
            stop = client.stopped()
            if stop["frames"][0]["name"] == "key":
                client.go(stop, "stepOut")
        assert stop["frames"][0]["name"] == "work"
        client.ask("disconnect")
        jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")
        assert job.alive() and job.output == "ready\n"


AWAITS = """
import asyncio
async def other():
    while True:
        await asyncio.sleep(0.001)
async def train():
    step = 0
    print("ready", flush=True)
    while True:
        step += 1
        await asyncio.sleep(0.001)
        after = step
async def main():
    asyncio.ensure_future(other())
    await train()
asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main())
"""


@OLDEST_AND_NEWEST
def test_next_stays_with_a_coroutine(tmp_path, python):
    with script(tmp_path, AWAITS, python) as (job, path), Client(debug_address(job)) as client:
        client.stop_at(path, line_of(AWAITS, "step += 1"))
        stop = client.stopped()
        client.stop_at(path)
        first, seen = int(client.value("step", stop["frames"][0])), []
        for _ in range(6):
            client.go(stop, "next")
            stop = client.stopped()
            seen.append((stop["frames"][0]["name"].rpartition(".")[2],
                         AWAITS.splitlines()[stop["frames"][0]["line"] - 1].strip()))
        assert {name for name, _ in seen} == {"train"} and ("train", "after = step") in seen, seen
        assert int(client.value("step", stop["frames"][0])) in (first + 1, first + 2)
        client.ask("disconnect")


FAILING = """
import threading, time
def inner(n):
    where = "inner"
    raise ValueError("lost %d" % n)
def worker(n):
    time.sleep(0.05)
    inner(n)
def caught():
    try:
        int("no")
    except ValueError:
        pass
print("ready", flush=True)
n = 0
while True:
    n += 1
    caught()
    thread = threading.Thread(target=worker, args=(n,))
    thread.start()
    thread.join()
"""


@EVERY
def test_exceptions(python, tmp_path):
    with program(python, FAILING) as job, Client(debug_address(job)) as client:
        client.ask("setExceptionBreakpoints", filters=["uncaught"])
        stop = client.stopped()
        info = client.ask("exceptionInfo", threadId=stop["threadId"])
        assert (stop["reason"], info["exceptionId"], info["breakMode"]) == ("exception", "ValueError", "unhandled")
        assert info["description"].startswith("lost ") and "in inner" in info["details"]["stackTrace"]
        assert [each["name"] for each in stop["frames"]][:2] == ["inner", "worker"] and stop["threadId"] != 1
        assert client.locals(stop["frames"][0])[0]["where"]["value"] == "'inner'"
        client.ask("setExceptionBreakpoints", filters=["raised"])
        client.go(stop)
        stops = set()
        for _ in range(6 if not is_frozen(python) else 20):
            stop = client.stopped()
            stops.add((stop["frames"][0]["name"], stop["text"]))
            client.go(stop)
        wanted = {("caught", "ValueError"), ("inner", "ValueError")}
        assert wanted <= stops and (stops == wanted or is_frozen(python)), stops
        client.ask("setExceptionBreakpoints", filters=[])
        client.ask("disconnect")
        first = int(probe(job.pid, "eval", "n").stdout)
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "n").stdout) > first + 1, what="the next thread")


@OLDEST_AND_NEWEST
def test_log_points_hit_counts_and_functions(tmp_path, python):
    with script(tmp_path, COUNTING, python) as (job, path), Client(debug_address(job)) as client:
        at = line_of(COUNTING, "doubled = n * 2")
        client.stop_at(path, at, logMessage="n={n} {{}} {[n][0] + 1}", hitCondition="%10")
        texts = [client.wait("output") for _ in range(3)]
        values = [int(each["output"].split()[0][2:]) for each in texts]
        assert values[1] == values[0] + 10 and values[2] == values[0] + 20, texts
        assert texts[0]["output"] == "n=%d {} %d\n" % (values[0], values[0] + 1) and texts[0]["line"] == at
        client.stop_at(path, at, hitCondition=">= 5")
        client.stopped()
        told = client.stop_at(path, {"line": at, "condition": "n +"}, {"line": at, "hitCondition": "many"},
                              {"line": at, "logMessage": "{n"}, {"line": 9999})
        assert [each["verified"] for each in told] == [False] * 4 and all(each["message"] for each in told)
        client.ask("setFunctionBreakpoints", breakpoints=[{"name": "helper", "condition": "n % 2"}])
        stop = {"threadId": 1}
        client.go(stop)
        stop = client.stopped()
        assert stop["reason"] == "function breakpoint" and stop["frames"][0]["name"] == "helper"
        assert int(client.value("n", stop["frames"][0])) % 2 == 1
        # A condition that fails stops, and says why.
        client.ask("setFunctionBreakpoints", breakpoints=[])
        client.stop_at(path, at, condition="nothing.at.all")
        client.go(stop)
        stop = client.stopped()
        assert "NameError" in client.wait("output")["output"]
        client.ask("disconnect")
        jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")


LATER = """
import sys, threading, time
sys.path.insert(0, %r)
steps = 0
def beat():
    global steps
    while True:
        steps += 1
        time.sleep(0.001)
print("ready", flush=True)
threading.Thread(target=beat, daemon=True).start()
while True:
    time.sleep(0.01)
    if "go" in globals():
        import loaded_later
        loaded_later.work()
        break
while True:
    time.sleep(0.01)
"""


@ALL
def test_code_that_is_loaded_later_stops_and_other_threads_go_on(tmp_path, python):
    other = tmp_path / "loaded_later.py"
    other.write_text("def work():\n    import threading\n    thread = threading.Thread(target=inside)\n"
                     "    thread.start()\n    thread.join()\n"
                     "    print('joined', flush=True)\n\ndef inside():\n    value = 1\n    return value\n")
    with script(tmp_path, LATER % str(tmp_path), python) as (job, _), Client(debug_address(job)) as client:
        told = client.stop_at(other, 8)
        assert told[0]["verified"] is False and "loaded" in told[0]["message"]
        probe(job.pid, "eval", "go = 1")
        stop = client.stopped()
        assert stop["frames"][0]["name"] == "inside" and stop["frames"][0]["line"] == 9 and stop["threadId"] != 1
        changed = client.wait("breakpoint")["breakpoint"]
        assert changed["verified"] and changed["line"] == 9 and changed["id"] == told[0]["id"]
        names = {each["id"]: each["name"] for each in client.ask("threads")["threads"]}
        assert names[1] == "MainThread" and names[stop["threadId"]].startswith("Thread-") and len(names) == 3, names
        first = int(client.value("steps"))
        jobs.wait_until(lambda: int(client.value("steps")) > first, what="the other thread")
        assert "joined" not in job.output
        client.go(stop)
        ends(job, "joined")


def test_threads_that_run_are_paused(tmp_path):
    with script(tmp_path, LATER % str(tmp_path)) as (job, path), Client(debug_address(job)) as client:
        number = next(each["id"] for each in client.ask("threads")["threads"] if each["id"] != 1)
        client.ask("pause", threadId=number)
        stop = client.stopped()
        assert stop["threadId"] == number and stop["frames"][0]["name"] == "beat"
        first = int(client.value("steps"))
        time.sleep(0.05)
        assert int(client.value("steps")) == first
        with pytest.raises(Failed, match="the thread runs"):
            client.ask("stackTrace", threadId=1)
        client.go(stop, "next")
        stop = client.stopped()
        assert stop["reason"] == "step" and stop["frames"][0]["name"] == "beat"
        client.ask("disconnect")
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "steps").stdout) > first + 5, what="the thread")


VALUES = """
import time
try:
    import torch
except ImportError:
    torch = None
class Loud:
    def __repr__(self):
        print("loud")
        raise RuntimeError("no repr")
class Slots:
    __slots__ = ("a", "b")
    def __init__(self): self.a = 1
def train():
    big, table = list(range(100000)), {"key %d" % n: n for n in range(5000)}
    loud, slots, text, point = Loud(), Slots(), "x" * 10000, {1, 2}
    nested = [[[[1]]]]
    tensor = torch.zeros(3, 4) if torch else None
    print("ready", flush=True)
    while True:
        time.sleep(0.005)
train()
"""


def test_values_are_told_in_pages_and_tensors_by_their_shape(tmp_path):
    import sys

    with script(tmp_path, VALUES, sys.executable) as (job, path), Client(debug_address(job)) as client:
        client.stop_at(path, line_of(VALUES, "time.sleep"))
        stop = client.stopped()
        found, number = client.locals(stop["frames"][0])
        assert found["big"]["indexedVariables"] == 100000
        assert found["big"]["value"].endswith("... 99988 more]")
        assert len(found["big"]["value"]) < 100
        part = client.ask("variables", variablesReference=found["big"]["variablesReference"], filter="indexed",
                          start=99990, count=5)["variables"]
        assert [(each["name"], each["value"], each["evaluateName"])
                for each in part][:2] == [("[99990]", "99990", "big[99990]"), ("[99991]", "99991", "big[99991]")]
        assert len(part) == 5
        part = client.ask("variables", variablesReference=found["table"]["variablesReference"], filter="indexed",
                          start=4999, count=100)["variables"]
        assert [(each["name"], each["value"], each["evaluateName"])
                for each in part] == [("['key 4999']", "4999", "table['key 4999']")]
        assert found["loud"]["value"] == "<Loud whose repr raises RuntimeError>"
        assert client.wait("output")["output"] == "loud"
        assert [each["name"] for each in client.ask("variables",
                                                    variablesReference=found["slots"]["variablesReference"])[
                                                        "variables"]] == ["a"]
        assert len(found["text"]["value"]) < 500 and found["nested"]["value"] == "[[<list of 1>]]"
        assert len(client.value("text", stop["frames"][0], "clipboard")) == 10002
        if found["tensor"]["type"] != "NoneType":
            assert found["tensor"]["value"] == "<Tensor shape=(3, 4) dtype=float32 device=cpu>"
        client.ask("setVariable", variablesReference=found["table"]["variablesReference"], name="['key 7']",
                   value="'seven'")
        client.ask("setVariable", variablesReference=found["slots"]["variablesReference"], name="a", value="[1, 2]")
        client.ask("setExpression", expression="big[5]", value="-5", frameId=stop["frames"][0]["id"])
        assert client.value("table['key 7'], slots.a, big[5]", stop["frames"][0]) == "('seven', [1, 2], -5)"
        words = client.ask("completions", text="x = slots.", column=11, frameId=stop["frames"][0]["id"])["targets"]
        assert {"a", "b"} <= {each["label"] for each in words} and words[0]["start"] == 10
        with pytest.raises(Failed, match="ZeroDivisionError"):
            client.value("1 / 0", stop["frames"][0])
        client.go(stop)
        client.stopped()
        with pytest.raises(Failed, match="went on"):
            client.ask("variables", variablesReference=found["table"]["variablesReference"])
        assert job.output == "ready\n"


def test_code_that_runs_for_ever_is_interrupted(tmp_path):
    with script(tmp_path, COUNTING) as (job, path), Client(debug_address(job)) as client:
        client.stop_at(path, line_of(COUNTING, "time.sleep"))
        stop = client.stopped()
        frame = stop["frames"][0]
        assert client.value("print('to me', step > 0)", frame) == ""
        assert client.wait("output")["output"] == "to me True\n"
        first = client.send("evaluate", expression="while True: pass", frameId=frame["id"], context="repl")
        assert len(client.ask("threads")["threads"]) == 1, "the client is served meanwhile"
        client.ask("cancel", requestId=first)
        with pytest.raises(Failed, match="interrupted"):
            client.result(first)
        first = client.send("evaluate", expression="while True: pass", frameId=frame["id"], context="watch")
        with pytest.raises(Failed, match="longer than"):
            client.result(first)
        first = client.send("evaluate", expression="while True: pass", frameId=frame["id"], context="repl")
        client.stop_at(path)
        client.go(stop)
        with pytest.raises(Failed):
            client.result(first)
        first = client.send("evaluate", expression="while True: pass", context="repl")
        client.socket.close()
        jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")
        first = int(probe(job.pid, "eval", "step").stdout)
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "step").stdout) > first, what="the next step")
        assert job.output == "ready\n"


@needs_nc
@OLDEST_AND_NEWEST
@pytest.mark.parametrize("how", ["closes", "silent", "detach", "stop", "half"])
def test_a_client_that_vanishes_lets_all_go(tmp_path, python, how):
    with script(tmp_path, COUNTING, python) as (job, path):
        address = debug_address(job, *(["--limit", "1500ms"] if how == "silent" else []))
        with Client(address) as client:
            client.stop_at(path, line_of(COUNTING, "time.sleep"))
            stop = client.stopped()
            assert client.value("step", stop["frames"][0])
            before = probe(job.pid, "eval", "step").stdout
            time.sleep(0.1)
            assert probe(job.pid, "eval", "step").stdout == before, "it stands"
            if how == "closes":
                client.socket.close()
            elif how == "half":
                client.socket.shutdown(socket.SHUT_WR)
            elif how in ("detach", "stop"):
                assert probe(job.pid, *(["detach"] if how == "detach" else ["debug", "--stop"])).returncode == 0
            jobs.wait_until(lambda: int(probe(job.pid, "eval", "step").stdout) > int(before) + 5, what="the program")
            jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")
            if how == "silent":
                with listening(job) as nc:
                    nc.wait(">>> ")
                    assert "without a word" in nc.ask("notes()")
            if how == "stop":
                assert "not listening" in probe(job.pid, "debug", "--stop").stderr
                with pytest.raises(OSError):
                    Client(address)


def test_a_client_that_does_not_read_holds_nothing(tmp_path):
    """A log point in a fast loop, and the client reads no messages."""
    code = "print('ready', flush=True)\nn = 0\nwhile True:\n    n += 1\n"
    with script(tmp_path, code) as (job, path), Client(debug_address(job)) as client:
        client.stop_at(path, 4, logMessage="n={n} " + "x" * 1000)
        first = int(probe(job.pid, "eval", "n").stdout)
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "n").stdout) > first + 20000, what="the loop")
        # It is given up after ten seconds; those who read before are told what was left out.
        while "left out" not in client.wait("output")["output"]:
            pass
        client.ask("disconnect")


FORKS = """
import os, time
def work(n):
    return n + 1
def train():
    print("ready", flush=True)
    while True:
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            total = sum(work(n) for n in range(100))
            import sys
            clean = sys.gettrace() is None
            if hasattr(sys, "monitoring"):  # a child that was forked before the first breakpoint has the tool's name alone
                clean = clean and not any(sys.monitoring.get_tool(n) and sys.monitoring.get_events(n) for n in range(6))
            os._exit(0 if total == 5050 and clean else 1)
        if os.waitpid(child, 0)[1]:
            print("a child failed", flush=True)
train()
"""


@ALL
def test_a_forked_child_is_not_debugged(tmp_path, python):
    with script(tmp_path, FORKS, python) as (job, path), Client(debug_address(job)) as client:
        client.stop_at(path, line_of(FORKS, "return n + 1"), line_of(FORKS, "child = os.fork()"))
        for _ in range(5):
            stop = client.stopped()
            assert stop["frames"][0]["name"] == "train"
            client.go(stop, "next" if _ % 2 else "continue")
            if _ % 2:
                client.go(client.stopped())
        client.ask("disconnect")
        assert "failed" not in job.output


def test_what_is_refused(tmp_path):
    with script(tmp_path, COUNTING) as (job, path):
        address = debug_address(job, "127.0.0.1:0", "--token", "secret")
        with Client(address, attach=False) as client:
            client.ask("initialize", adapterID="x")
            with pytest.raises(Failed, match="attach first"):
                client.ask("evaluate", expression="1")
            with pytest.raises(Failed, match="token"):
                client.ask("attach", token="wrong")
            with pytest.raises(EOFError):
                client.ask("initialize")
        with Client(address, token="secret") as client:
            with Client(address, attach=False) as other:
                other.ask("initialize")
                with pytest.raises(Failed, match="another client"):
                    other.ask("attach", token="secret")
            with pytest.raises(Failed, match="does not know"):
                client.ask("gotoTargets")
            assert client.value("rate") == "0.1"
        with socket.create_connection(address, 10) as plain:
            plain.sendall(b"hello\n")
            assert b"Debug Adapter Protocol" in plain.recv(1000)
        done = probe(job.pid, "debug", "0.0.0.0:0")
        assert done.returncode == 2 and "--token" in done.stderr
        done = probe(job.pid, "debug", "--debugpy")
        assert done.returncode == 1 and "debugpy cannot be imported" in done.stderr
        assert job.output == "ready\n"


@pytest.mark.parametrize("python", sorted({INTERPRETERS[0],
                                           *[path for path in INTERPRETERS if version_of(path) < (3, 12)][-1:],
                                           INTERPRETERS[-1]}, key=version_of),
                         ids=interpreter_id)
def test_traces_watches_and_log_points_go_on_beside_it(tmp_path, python):
    """Before 3.12 there is one trace function, and all of them stand on it."""
    with script(tmp_path, COUNTING, python) as (job, path):
        at = line_of(COUNTING, "doubled = n * 2")
        assert probe(job.pid, "break", f"{path}:{at}", "--log", "n={n}").returncode == 0
        with Client(debug_address(job)) as client:
            client.stop_at(path, line_of(COUNTING, "total += helper(step)"))
            stop = client.stopped()
            assert probe(job.pid, "trace", "helper").returncode == 0
            assert probe(job.pid, "watch", "doubled@helper").returncode == 0
            step = int(client.value("step", stop["frames"][0]))
            for _ in range(3):  # over the call of helper, and to the breakpoint again
                client.go(stop, "next")
                stop = client.stopped()
                assert (stop["reason"], stop["frames"][0]["line"]) == ("step", line_of(COUNTING, "time.sleep"))
                client.go(stop)
                stop = client.stopped()
                assert stop["reason"] == "breakpoint"
            client.ask("disconnect")
        for table, column, value in (("break_hits", "message", f"n={step + 2}"),
                                     ("variables", "new", str(2 * step + 4))):
            jobs.wait_until(lambda: rows(job, f"SELECT {column} AS it FROM python.{table} WHERE {column} = '{value}'"),
                            what=table)
        jobs.wait_until(lambda: rows(job, "SELECT count(*) AS n FROM python.trace_event WHERE name "
                                          "LIKE '%helper%'")[0]["n"] > 3, what="calls")
        for command in ("break", "trace", "watch"):
            assert probe(job.pid, command, "--stop").returncode == 0
        jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")


@pytest.mark.skipif(version_of(INTERPRETERS[0]) >= (3, 12), reason="an interpreter before 3.12 is not here")
def test_a_trace_function_of_the_program_stays(tmp_path):
    code = "import sys\ndef trace(frame, event, argument): return trace\nsys.settrace(trace)\n" + COUNTING
    with script(tmp_path, code, INTERPRETERS[0]) as (job, path), Client(debug_address(job)) as client:
        assert "trace function of its own" in client.wait("output")["output"]
        client.stop_at(path, line_of(code, "time.sleep"))
        client.ask("pause", threadId=1)
        stop = client.stopped()
        with pytest.raises(Failed, match="trace function"):
            client.go(stop, "next")
        client.go(stop)
        client.ask("disconnect")
        assert probe(job.pid, "eval", "train.__code__.co_name").stdout == "'train'\n"


def test_signal_handlers_of_the_program_run_while_it_stands(tmp_path):
    code = ("import signal\nclass Stop(Exception): pass\ndef handle(*_): raise Stop\n"
            "signal.signal(signal.SIGUSR1, handle)\n") + COUNTING.replace(
        "train(Model())", "try: train(Model())\nexcept Stop: print('stopped by a signal', flush=True)")
    for python in (INTERPRETERS[0], INTERPRETERS[-1]):
        with script(tmp_path, code, python) as (job, path), Client(debug_address(job)) as client:
            client.stop_at(path, line_of(code, "time.sleep"))
            client.stopped()
            os.kill(job.pid, 10)
            ends(job, "stopped by a signal")


def test_50_rounds(tmp_path):
    """Attach, stop, leave in every way, under load."""
    with script(tmp_path, COUNTING) as (job, path):
        address = debug_address(job)
        for n in range(50):
            with Client(address) as client:
                client.stop_at(path, line_of(COUNTING, "doubled = n * 2"))
                stop = client.stopped()
                if n % 3 == 0:
                    client.go(stop, "stepIn")
                if n % 3 == 1:
                    client.ask("disconnect")
        jobs.wait_until(lambda: is_clean(state(job)), what="the end of all hooks")
        assert job.output == "ready\n" and job.alive()


@EVERY
def test_an_exception_is_read_by_its_type(python):
    """With the filters for exceptions no code of a class of the program runs: not its __getattribute__, not that of its
    metaclass, not __str__."""
    code = """
import time
ran = []
class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__name__", "__module__", "__qualname__", "__mro__"): ran.append(name)
        return type.__getattribute__(cls, name)
class E(Exception, metaclass=Meta):
    def __getattribute__(self, name):
        ran.append(name)
        if name == "__traceback__": raise SystemExit(6)
        return object.__getattribute__(self, name)
    def __str__(self): ran.append("str")
def fail():
    raise E("x")
def work():
    try: fail()
    except E: pass
rounds = 0
print("ready", flush=True)
while not go_on_for_ever:
    work()
    rounds += 1
    time.sleep(0.005)
""".replace("rounds = 0", "rounds, go_on_for_ever = 0, []")
    with program(python, code) as job:
        with Client(debug_address(job)) as client:
            client.ask("setExceptionBreakpoints", filters=["uncaught"])
            jobs.wait_until(lambda: int(probe(job.pid, "eval", "rounds").stdout) > 50, what="the rounds")
            client.ask("setExceptionBreakpoints", filters=["raised"])
            stopped = client.stopped()
            assert stopped["reason"] == "exception" and stopped["text"].endswith("E")
            found = client.ask("exceptionInfo", threadId=stopped["threadId"])
            assert found["exceptionId"].endswith("E") and found["description"].startswith("x")
            client.ask("setExceptionBreakpoints", filters=[])
        assert probe(job.pid, "eval", "ran").stdout == "[]\n"
        assert job.output == "ready\n"
