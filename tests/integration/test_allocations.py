"""memory_allocations: sampled allocations of Python and torch, against what the program itself counts."""
import sys
import time

import builds
import jobs
import pytest
from jobs import probe, rows
from interpreters import INTERPRETERS, version_of
from every_python import PYTHONS, name_of, program

WITH_A_GIL = [python for python in PYTHONS if python not in builds.FREE_THREADED]

# Told by eval what to do next: the sizes and the numbers are known.
CODE = """
import sys, time
kept, steps = [], []
def fill():
    for i in range(1000):
        kept.append(bytearray(40000))
def churn():
    for i in range(2000):
        block = bytearray(40000)
def clear():
    del kept[:]
print("ready", flush=True)
while True:
    while not steps:
        time.sleep(0.01)
    {"fill": fill, "churn": churn, "clear": clear}[steps[0]]()
    steps.pop(0)
"""
BY_FUNCTION = ("SELECT function_name, lineno, sum(gross_bytes)::BIGINT AS sum, sum(allocated_bytes)::BIGINT AS alive, "
               "count(*) AS n FROM memory_allocations WHERE kind = 'python' AND bytes BETWEEN 40000 AND 40100 "
               "GROUP BY ALL")


def do(job, *steps):
    for step in steps:
        assert probe(job.pid, "eval", f"steps.append('{step}')").returncode == 0
        jobs.wait_until(lambda: probe(job.pid, "eval", "len(steps)").stdout == "0\n", 60, step)


def describe(job):
    return next(line for line in probe(job.pid, "probes").stdout.splitlines() if "memory_allocations" in line)


def turn_on(job, interval="64KB"):
    done = probe(job.pid, "config", f"probing.memory.sampling=on,interval={interval}")
    assert done.returncode == 0, done.stderr
    jobs.wait_until(lambda: "one in" in describe(job), 20, "the sampling")


def by_function(job):
    return {row["function_name"]: row for row in rows(job, BY_FUNCTION)}


@pytest.mark.parametrize("python", WITH_A_GIL, ids=name_of)
def test_sums_lines_and_what_is_alive_are_right(python):
    with program(python, CODE) as job:
        turn_on(job)
        do(job, "fill", "churn")
        found, first = by_function(job), int(probe(job.pid, "eval", "fill.__code__.co_firstlineno").stdout)
        # A block is chosen with the probability 0.46: five standard deviations are 17% of 1000 blocks, 12% of 2000.
        assert 33e6 < found["fill"]["sum"] < 47e6, found
        assert found["fill"]["alive"] == found["fill"]["sum"], found
        assert found["fill"]["lineno"] == first + 2, found
        assert 70e6 < found["churn"]["sum"] < 90e6 and found["churn"]["lineno"] == first + 5, found
        assert (found["churn"]["alive"] or 0) < 300000, "the last one is the only one that is there"
        do(job, "clear")
        assert by_function(job)["fill"]["alive"] == 0
        assert probe(job.pid, "config", "probing.memory.sampling=off").returncode == 0
        before = by_function(job)["churn"]["n"]
        do(job, "churn")
        assert by_function(job)["churn"]["n"] == before
        turn_on(job)
        do(job, "churn")
        assert by_function(job)["churn"]["n"] > before
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive()


def test_a_build_without_a_gil_is_refused():
    with program(builds.FREE_THREADED[-1], CODE) as job:
        assert probe(job.pid, "config", "probing.memory.sampling=on").returncode == 0
        jobs.wait_until(lambda: "without a GIL" in describe(job), 20, "the reason")
        assert probe(job.pid, "detach").returncode == 0 and job.alive()


def test_the_query_of_the_manual_names_who_holds_memory():
    with program(sys.executable, CODE) as job:
        turn_on(job)
        do(job, "fill", "churn")
        gross = {row["function_name"]: row["sum"] for row in by_function(job).values()}
        assert gross["churn"] > gross["fill"], "in all, what is freed at once takes more"
        top = rows(job, """SELECT function_name, sum(allocated_bytes) as total_alloc FROM memory_allocations
                           WHERE timestamp > now() - interval '1 hour' GROUP BY function_name ORDER BY total_alloc DESC""")
        assert top[0]["function_name"] == "fill" and 33e6 < top[0]["total_alloc"] < 47e6, top
        assert next(row for row in top if row["function_name"] == "churn")["total_alloc"] < 300000, top
        wrong = probe(job.pid, "probes", "start", "memory_allocations", "interval=1")
        assert wrong.returncode != 0 and "interval is a size from 4 KB to 1024 MB" in wrong.stderr


ALLOCATOR = """
import ctypes
def allocators():
    words = (ctypes.c_void_p * 5)()
    found = []
    for domain in (0, 1, 2):
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(words))
        found.append(list(words))
    return found
""" + CODE


def test_the_allocator_is_as_it_was_after_a_stop_and_a_detach():
    with program(sys.executable, ALLOCATOR) as job:
        asked = lambda: probe(job.pid, "eval", "allocators()").stdout
        before = asked()
        for end in (("probes", "stop", "memory_allocations"), ("detach",), ("detach",)):
            turn_on(job)
            now = eval(asked())
            assert now[0] == eval(before)[0], "the domain that is used without the GIL is left alone"
            assert now[1] != eval(before)[1] and now[2] != eval(before)[2]
            assert probe(job.pid, *end).returncode == 0
            jobs.wait_until(lambda: asked() == before, 20, "the allocator as it was")
            do(job, "churn")


def test_beside_tracemalloc_in_every_order():
    with program(sys.executable, "import tracemalloc\n" + CODE) as job:
        trace = lambda what: probe(job.pid, "eval", f"tracemalloc.{what}()")
        churned = lambda: by_function(job).get("churn", {"n": 0})["n"]

        def grows():
            before = churned()
            do(job, "churn")
            return churned() > before

        trace("start")
        turn_on(job)
        assert grows()
        trace("stop")  # which puts back what it found: our functions are gone, until we notice
        jobs.wait_until(grows, 30, "samples again")
        trace("start")
        assert grows()
        assert probe(job.pid, "config", "probing.memory.sampling=off").returncode == 0
        do(job, "churn")
        turn_on(job)  # ours are still there, behind tracemalloc's: put in twice they would call each other for ever
        assert grows()
        trace("stop")
        assert grows()
        assert probe(job.pid, "detach").returncode == 0
        assert trace("start").returncode == 0 and trace("stop").returncode == 0
        do(job, "fill", "churn", "clear")
        assert job.alive()


HAMMER = """
import gc, os, sys, threading, time, weakref
sys.setswitchinterval(1e-5)
rounds, ends = [0] * 4, []
class Node:
    pass
def work(i):
    while True:
        a, b = Node(), Node()
        a.other, b.other, a.data = b, a, [bytes(5000) for _ in range(20)]
        weakref.ref(a, lambda _: [0] * 3000)
        text = "\u00e4" * 3000 + str(rounds[i])
        {}.update({str(k): bytearray(k * 50) for k in range(60)})
        assert len(text.encode()) > 6000
        rounds[i] += 1
def fork():
    while True:
        pid = os.fork()
        if pid == 0:
            [bytearray(100000) for _ in range(50)]
            os._exit(7)
        ends.append(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
        time.sleep(0.01)
for i in range(4):
    threading.Thread(target=work, args=(i,), daemon=True).start()
threading.Thread(target=fork, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.05)
    gc.collect()
"""


def test_comes_and_goes_under_threads_that_allocate_collect_and_fork():
    with program(sys.executable, HAMMER) as job:
        until, times = time.monotonic() + 3, 0
        while time.monotonic() < until or times < 6:
            turn_on(job, "4KB")
            end = ("detach",) if times % 3 == 2 else ("config", "probing.memory.sampling=off")
            if times % 2:
                time.sleep(0.1)
            assert probe(job.pid, *end).returncode == 0
            times += 1
        before = probe(job.pid, "eval", "(min(rounds), len(ends))").stdout
        jobs.wait_until(lambda: all(a > b
                                    for a, b in zip(eval(probe(job.pid, "eval", "(min(rounds), len(ends))").stdout),
                                                    eval(before))), 30, "all threads")
        assert probe(job.pid, "eval", "set(ends)").stdout == "{7}\n" and job.alive()


def test_what_has_a_gil_of_its_own_is_left_alone():
    newer = [path for path in INTERPRETERS if version_of(path) >= (3, 13)]
    if not newer:
        pytest.skip("needs CPython 3.13")
    code = """
import _interpreters, threading, time
def other():
    while True:
        made = _interpreters.create("isolated")
        _interpreters.run_string(made, "for i in range(300):\\n    x = [bytearray(20000) for _ in range(20)]")
        _interpreters.destroy(made)
        rounds.append(1)
rounds, kept = [], []
for _ in range(2):
    threading.Thread(target=other, daemon=True).start()
print("ready", flush=True)
while True:
    kept = [bytes(3000) for _ in range(200)]
    time.sleep(0.001)
"""
    with program(newer[-1], code) as job:
        for _ in range(4):
            turn_on(job, "4KB")
            before = int(probe(job.pid, "eval", "len(rounds)").stdout)
            jobs.wait_until(lambda: int(probe(job.pid, "eval", "len(rounds)").stdout) > before + 3, 60, "rounds")
            assert probe(job.pid, "config", "probing.memory.sampling=off").returncode == 0
        assert rows(job, "SELECT count(*) AS n FROM memory_allocations WHERE function_name IS NOT NULL")[0]["n"] > 0
        assert job.alive()


TENSORS = """
import sys, time
import torch
torch.set_num_threads(1)
kept, steps = [], []
data = torch.zeros(100, 100000)
weight = torch.ones(100, 100, requires_grad=True)
def fill():
    for i in range(1000):
        kept.append(torch.zeros(100, 100))
def chain():
    for i in range(1000):
        x = (weight * 2).relu().exp()
        y = x.view(-1).detach()
def views():
    for i in range(1000):
        row = data[i % 100]
        part = row[:10].t()
        other = weight.detach()
def clear():
    del kept[:]
print("ready", flush=True)
while True:
    while not steps:
        time.sleep(0.01)
    {"fill": fill, "chain": chain, "views": views, "clear": clear}[steps[0]]()
    steps.pop(0)
"""


def test_tensors_are_counted_once_and_views_are_not():
    with jobs.python(TENSORS, ready_seconds=90) as job:
        turn_on(job)
        do(job, "fill", "clear")
        jobs.wait_until(lambda: do(job, "fill", "clear") or rows(job, BY_FUNCTION.replace("'python'", "'tensor'")), 20,
                        "torch is found")
        assert probe(job.pid, "config", "probing.memory.sampling=off").returncode == 0
        time.sleep(0.05)
        since = rows(job, "SELECT now()::VARCHAR AS now")[0]["now"]
        turn_on(job)
        do(job, "fill", "chain", "views")
        sql = BY_FUNCTION.replace("'python'", "'tensor'").replace("WHERE", f"WHERE timestamp > '{since}' AND")
        sql = sql.replace("lineno, ", "any_value(device) AS device, ")
        found = {row["function_name"]: row for row in rows(job, sql)}
        assert 33e6 < found["fill"]["sum"] < 47e6, found
        assert found["fill"]["alive"] == found["fill"]["sum"], found
        assert found["fill"]["device"] == "cpu", found
        assert 106e6 < found["chain"]["sum"] < 134e6, ("three new ones each, of which two are kept by the backward, "
                                                       "and two aliases")
        assert found.get("views", {"sum": 0})["sum"] == 0, "none is new"
        do(job, "clear")
        assert {row["function_name"]: row for row in rows(job, sql)}["fill"]["alive"] == 0
        assert probe(job.pid, "detach").returncode == 0
        do(job, "fill", "chain", "views", "clear")
        assert job.alive()
