"""probing.probe in a program's own code: what it watches, how deep, and what it refuses."""
import interpreters
import jobs
import pytest
from spans_kit import HEAD

EACH = [pytest.param(path, id=interpreters.interpreter_id(path))
        for path in sorted({interpreters.INTERPRETERS[0], interpreters.INTERPRETERS[-1],
                            *interpreters.INTERPRETERS[-3:]})]

WATCHED = HEAD + """
def lowest(n):
    loss = -n
    return loss
def inner(n):
    loss = n * 2
    loss += 1
    return loss + 0 * lowest(n)
@probing.probe(watch=["loss"], depth=2)
def train(n):
    loss = 1.0
    for i in range(2):
        loss = loss / 2
    return inner(n) + loss
assert [train(n) for n in range(2)] == [1.25, 3.25]
def block():
    x = 1
    with probing.probe("block", watch=["x"]):
        x = 2
        x = 3
    x = 4
block()
@probing.probe("plain", phase="train")
def plain():
    return 5
@probing.probe()
async def waits():
    return 6
import inspect
assert plain() == 5 and inspect.iscoroutinefunction(waits)
def refused(kind, *args, **named):
    try:
        probing.probe(*args, **named)(plain)
    except kind:
        return
    raise SystemExit("not refused: %r %r" % (args, named))
refused(TypeError, wtach=["loss"])
refused(TypeError, batch=3)
refused(TypeError, watch=5)
refused(ValueError, depth=0)
refused(ValueError, watch=["nosuch"])
print("ready", flush=True)
import time; time.sleep(100)
"""


@pytest.mark.parametrize("python", EACH)
def test_a_probe_watches_its_variables_so_deep_and_refuses_what_it_does_not_know(python):
    with jobs.python(WATCHED, interpreter=python, env={"PROBING": "1"}) as job:
        changes = [(row["function"], row["new"]) for row in jobs.rows(
            job, "SELECT function, new FROM python.variables ORDER BY timestamp")]
        calls = [(row["record_type"], row["name"]) for row in jobs.rows(
            job, "SELECT record_type, name FROM python.trace_event ORDER BY timestamp")]
    once = [("train", "1.0"), ("train", "0.5"), ("train", "0.25")]
    assert changes == [*once, ("inner", "0"), ("inner", "1"), *once, ("inner", "2"), ("inner", "3"), ("block", "1"),
                       ("block", "2"), ("block", "3")]
    one = [("span", "train"), ("call", "train"), ("call", "inner")]
    assert calls == [*one, *one, ("span", "block"), ("span", "plain")]
