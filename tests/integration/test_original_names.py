"""Names of the tool that this one takes over from: its Python functions, environment variables and columns, each used
as its users did."""
import json
import os
import subprocess
import sys

import interpreters
import jobs
import pytest

SOURCES = str(jobs.TOP / "python")
HEAD = f"import sys; sys.path.insert(0, {SOURCES!r}); import probing\n"

SAYS = HEAD + """
import os, time
from probing.tracing import FORWARD, SPANS_SQL
assert probing.current_role() == "dp=4,pp=2,stage=7,tp=1", probing.current_role()  # of the environment
assert probing.set_role(tp=0, pp=1, dp=3) == "dp=3,pp=1,tp=0" == probing.current_role()
assert probing.set_role({"ep": 2}) == "ep=2" and probing.set_role("a=1,b=2") == "a=1,b=2" == probing.current_role()
probing.clear_role()
assert probing.current_role() == "dp=4,pp=2,stage=7,tp=1"

assert probing.phase() == "idle"
with probing.span("train.forward", phase=FORWARD, batch=1):
    assert probing.phase() == "forward"
    probing.event("hit", attributes=[{"n": 1}, ("m", 2)], k=3)
with probing.span(phase="backward"):
    assert probing.tracing.phase() == "backward"
with probing.span("rollout", kind="trajectory", source="manual"):
    pass
@probing.span
def bare(x):
    return x + 1
@probing.span()
def called(x):
    return x + 2
assert (bare(1), called(1), bare.__name__) == (2, 3, "bare")
probing.record_span("copy", duration_ns=2000000, attrs={"bytes": 3}, phase="forward")

assert probing.step(10) == 10 and probing.step() == 11
probing.step(micro_batches=3)
assert [probing.step() for _ in range(6)] == [None, None, 12, None, None, 13]

loss = probing.ExternalTable("losses", ["step", "loss", "note"], chunk_size=100, discard_threshold=1000, discard_strategy="BaseMemorySize")
loss.append([1, 0.5, "a"])
loss.append_many([[2, 0.25, "b"], [3, None, None]])
assert loss.names() == ["step", "loss", "note"]
assert probing.ExternalTable.get("losses") is probing.ExternalTable.get_or_create("losses", ["x"]) is loss
assert [values for _, values in loss.take(2)] == [[3, None, None], [2, 0.25, "b"]] and loss.take(1)[0][0] > 10 ** 15
probing.ExternalTable.drop("losses")
try:
    probing.ExternalTable.get("losses"); raise SystemExit("it is still there")
except ValueError:
    pass

assert probing.config.get("probing.compression") == "zstd"
probing.config.set("probing.compression", "gzip")
assert probing.config.get_str("probing.compression") == "gzip" and probing.config.contains_key("probing.redact") and not probing.config.contains_key("nix")
probing.config.set("probing.pprof.sample_freq", 50)  # Hz
assert float(probing.config.get("probing.sample_rate")) == 0.05
assert probing.config.len() == len(probing.config.keys()) > 5 and not probing.config.is_empty()
try:
    probing.config.set("probing.compression", "best"); raise SystemExit("it was taken")
except KeyError as error:
    assert "zstd" in str(error), error

def traced(a, b):
    c = a + b
    return c
probing.inspect.trace(traced, watch=["c"], depth=1)
traced(1, 2)
probing.inspect.untrace(traced)
traced(3, 4)
@probing.inspect.probe
def probed():
    return 1
assert probed() == 1

assert [row["name"] for row in probing.query(SPANS_SQL + " ORDER BY timestamp") if row["duration_ns"] == 2000000] == ["copy"]
good, bad = probing.query_outcome("SELECT 1 AS x"), probing.query_outcome("SELECT * FROM nix")
assert good and good.ok and good.rows == [{"x": 1}] and good.error is None
assert not bad and bad.rows is None and "nix" in bad.error
assert probing.load_extension("os.path.join") is os.path.join and probing.load_extension("os.getpid()") == os.getpid()
probing.enable_tracer(); probing.disable_tracer()
assert probing.is_enabled() and probing.VERSION == probing.__version__ != ""
assert probing.owns_training_phases() is False
assert probing.attach_training_phases("model", "optimizer") == "model" and probing.owns_training_phases(model="model")
assert probing.config.get("probing.torch.profiling") == "on"
print("said", flush=True)
sys.stdin.readline()
"""


def rows(pid, sql):
    done = jobs.probe("-t", pid, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("python", [pytest.param(path, id=interpreters.interpreter_id(path))
                                    for path in interpreters.INTERPRETERS[::len(
    interpreters.INTERPRETERS) - 1 or 1]])
def test_every_name_does_what_it_did(python):
    env = dict(os.environ, TP_RANK="1", PROBING_PP_RANK="2", DATA_PARALLEL_RANK="4", PROBING_ROLE_STAGE="7",
               PROBING_SPAN_LOCATION="1", PYTHONPATH="")
    with subprocess.Popen([python, "-c", SAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
                          env=env) as job:
        try:
            assert job.stdout.readline() == "said\n"
            spans = {row["name"]: row for row in rows(job.pid, "SELECT name, phase, location, attributes, "
                                                               "event_attributes, time, epoch_ns(timestamp) AS t, "
                                                               "arguments, locals, record_type FROM "
                                                               "python.trace_event")}
            assert spans["backward"]["phase"] == "backward" and spans["rollout"]["phase"] == "trajectory"
            assert {"bare", "called", "probed"} <= set(spans) and "<string>:" in spans["train.forward"]["location"]
            assert json.loads(spans["hit"]["event_attributes"]) == {"n": 1, "m": 2, "k": 3}
            assert spans["rollout"]["event_attributes"] is None
            assert all(row["time"] == row["t"] for row in spans.values())
            calls = [row for row in spans.values() if row["record_type"] == "call"]
            assert len(calls) == 1 and json.loads(calls[0]["locals"]) == {"c": 3}
            assert rows(job.pid, "SELECT step, loss FROM python.losses ORDER BY "
                                 "step LIMIT 1") == [{"step": 1, "loss": 0.5}]
            # Tables and columns by their names: there, whether something was recorded or not.
            assert rows(job.pid, "SELECT micro_step, func, name, value FROM python.variables") == []
            assert rows(job.pid, "SELECT function_name, filename, lineno, variable_name, value, value_type FROM "
                                 "python.trace_variables") == []
            assert rows(job.pid, "SELECT ip, file, func, lineno, depth, frame_type FROM "
                                 "python.backtrace")[0]["frame_type"] == "Python"
        finally:
            job.kill()
    jobs.forget(job.pid)


def test_watched_variables_have_both_sets_of_names():
    code = ("import time\ndef train():\n    loss = 1.0\n    while True:\n        loss = loss * 0.5\n"
            "        time.sleep(0.01)\nprint('ready', flush=True)\ntrain()\n")
    with jobs.python(code, interpreter=interpreters.INTERPRETERS[-1]) as job:
        assert jobs.probe("-t", job.pid, "watch", "loss@train", "--duration", "30s").returncode == 0
        jobs.wait_until(lambda: rows(job.pid, "SELECT 1 FROM python.variables WHERE name LIKE 'loss%'"),
                        what="a change")
        row = rows(job.pid, "SELECT func = function AS same, value = new AS too FROM python.variables LIMIT 1")[0]
        assert row == {"same": True, "too": True}
        row = rows(job.pid, "SELECT function_name, variable_name, lineno, value_type FROM python.trace_variables WHERE "
                            "lineno > 0 LIMIT 1")[0]
        assert "train" in row["function_name"]
        assert row["variable_name"].startswith("loss")
        assert row["value_type"] == "float"


def test_without_a_library_they_do_nothing():
    code = HEAD + """
@probing.span
def f(): return 1
assert f() == 1 and probing.phase() == "idle" and probing.set_role(tp=1) == "tp=1"
with probing.span(phase="forward"): probing.event("a", attributes={"b": 1})
probing.record_span("copy", duration_ns=5); probing.step(3)
probing.ExternalTable("t", ["a"]).append([1])
print("said")
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, env=dict(os.environ, PROBING_LIBRARY="/dev/null"), timeout=60)
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr
