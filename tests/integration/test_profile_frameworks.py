"""Profiles of programs whose frames are not made by plain calls: greenlets, which swap whole stacks within a thread,
and torch.compile, which runs functions by an evaluator of its own and makes new ones where it breaks a graph."""
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from profile_kit import read_folded

# Two chains that hand over to each other in the midst of their calls. A stack is possible only within one chain.
GREENLETS = """
import greenlet
def inner_a(other):
    for _ in range(20): pass
    other().switch()
def outer_a(other):
    while True: inner_a(other)
def inner_b(n, other):
    if n: return inner_b(n - 1, other)
    for _ in range(20): pass
    other().switch()
def outer_b(other):
    while True: inner_b(30, other)
a = greenlet.greenlet(lambda: outer_a(lambda: b))
b = greenlet.greenlet(lambda: outer_b(lambda: a))
print("ready", flush=True)
a.switch()
"""
# The way of gevent: a hub, greenlets that wait in it, one that computes.
GEVENT = """
import gevent
def fetch():
    while True: gevent.sleep(0.001)
def compute():
    while True:
        for _ in range(20000): pass
        gevent.sleep(0)
print("ready", flush=True)
gevent.joinall([gevent.spawn(fetch), gevent.spawn(fetch), gevent.spawn(compute)])
"""
COMPILED = """
import torch
torch.set_num_threads(1)
def helper(x):
    for _ in range(50): x = torch.nn.functional.gelu(x @ x) * 0.01
    return x
def step(x):
    x = helper(x)
    torch._dynamo.graph_break()
    return helper(x + 1).sum()
compiled = torch.compile(step, backend="eager")
x = torch.randn(64, 64)
def train():
    while True: compiled(x)
compiled(x)
print("ready", flush=True)
train()
"""


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inside = interpreters.create()
def outer():
    interpreters.run_string(inside, "def inner():\\n    while True: pass\\nprint('ready', flush=True)\\ninner()\\n")
outer()
"""


def installed(module):
    return importlib.util.find_spec(module) is not None


def stacks_of(pid, out, *options, duration=2):
    done = probe("-t", pid, "flamegraph", "-o", out, "--duration", duration, "--rate", 1000, *options)
    assert done.returncode == 0, done.stderr
    return [([name for name, _ in stack], n)
            for stack, n in read_folded(Path(out).read_text(), strict="--native" not in options)], done.stdout


@pytest.mark.skipif(not installed("greenlet"), reason="greenlet is not installed")
@pytest.mark.parametrize("prefix", [[], ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]],
                         ids=["root", "ordinary"])
def test_a_stack_is_of_one_greenlet(prefix, tmp_path):
    with jobs.start(*prefix, sys.executable, "-c", GREENLETS, ready="ready") as job:
        done = subprocess.run([*prefix, str(jobs.PROGRAM), "-t", str(job.pid), "flamegraph", "-o",
                               str(tmp_path / "a.folded"), "--rate", "1000",
                               "--duration", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=60)
        assert done.returncode == 0, done.stderr
    possible = re.compile(
        r"(<module>;)?<lambda>;(outer_a(;inner_a(;<lambda>)?)?|outer_b(;inner_b){0,31}(;<lambda>)?)|"
        r"(<module>;)?<lambda>|<module>")
    found, wrong = {"inner_a": 0, "inner_b": 0}, []
    for stack, n in read_folded((tmp_path / "a.folded").read_text()):
        names = [name.rsplit(".", 1)[-1] for name, _ in stack]
        if not possible.fullmatch(";".join(names)):
            wrong.append((names, n))
        for name in found:
            found[name] += n if name in names else 0
    assert not wrong, wrong[:5]
    assert min(found.values()) > 100, (found, done.stdout)


@pytest.mark.skipif(not installed("gevent"), reason="gevent is not installed")
def test_gevent_shows_the_greenlet_that_runs(tmp_path):
    with jobs.python(GEVENT) as job:
        stacks, said = stacks_of(job.pid, tmp_path / "a.folded")
    counts = {name: sum(n for names, n in stacks if name in names) for name in ("compute", "fetch")}
    assert counts["compute"] > 500, (counts, said)
    assert not any("compute" in names and "fetch" in names for names, _ in stacks), (counts, said)


@pytest.mark.skipif(not installed("torch"), reason="torch is not installed (make test and make soak install it)")
@jobs.three_tries
def test_compiled_functions_are_seen_under_their_callers(tmp_path):
    with jobs.python(COMPILED, env={"TORCHDYNAMO_VERBOSE": "0"}, ready_seconds=90) as job:
        stacks, said = stacks_of(job.pid, tmp_path / "a.folded")
        native, _ = stacks_of(job.pid, tmp_path / "b.folded", "--native", duration=1)
    total = sum(n for _, n in stacks)
    under = sum(n for names, n in stacks if names[:2] == ["<module>", "train"])
    jobs.in_time(total > 500, f"{total} samples in 2 s: {said}")
    assert under > 0.95 * total, (total, under, said)
    resumed = sum(n for names, n in stacks if any(name.startswith("torch_dynamo_resume_in_step") for name in names))
    graphs = sum(n for names, n in stacks if "step" in names)
    assert graphs > 0.2 * total and resumed > 0.1 * total, (total, graphs, resumed, stacks[:5])
    assert any("train" in names and any("gelu" in name for name in names) for names, _ in native), native[:3]


@pytest.mark.parametrize("interpreter", INTERPRETERS[-2:], ids=interpreter_id)
def test_a_thread_in_a_subinterpreter_is_counted_once(interpreter, tmp_path):
    with jobs.python(SUBINTERPRETER, interpreter=interpreter) as job:
        stacks, said = stacks_of(job.pid, tmp_path / "a.folded", duration=1)
    inner = sum(n for names, n in stacks if "inner" in names)
    assert inner > 300 and sum(n for _, n in stacks) < 1.05 * inner, (stacks, said)
