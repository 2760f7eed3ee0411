"""Programs that replace the functions of Python's raw allocator: tracemalloc, functions of C, functions of Python
(ctypes).

The raw allocator is used without the GIL too, and what the program puts there runs in our threads: what waits for the
GIL there, or needs a thread state, must never be called by a thread that has neither."""
import subprocess
import time

import builds
import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from every_python import PYTHONS, evaluate, name_of, program, version_of_any

WITH_A_GIL = pytest.mark.parametrize("python", [python for python in PYTHONS if python not in builds.FREE_THREADED],
                                     ids=name_of)
# Whose ctypes can be imported, and that can load what this machine's compiler makes.
OF_THIS_MACHINE = pytest.mark.parametrize(
    "python", [python for python in PYTHONS if python not in builds.FREE_THREADED
               and not name_of(python).endswith("-root")], ids=name_of)

START_AND_STOP = """
import threading, time, tracemalloc
rounds = wrong = 0
def work():
    global rounds, wrong
    while True:
        tracemalloc.start(5)
        kept = [bytes(100) for i in range(5000)]
        wrong += tracemalloc.get_traced_memory()[0] < 5000 * 100
        tracemalloc.stop()
        kept = [object() for i in range(5000)]
        rounds += 1
"""
IN_MAIN = START_AND_STOP + "print('ready', flush=True)\nwork()\n"
# The main thread never runs Python code again.
IN_ANOTHER = START_AND_STOP + ("threading.Thread(target=work).start()\nprint('ready', flush=True)\n"
                               "threading.Event().wait()\n")


def command_for(job, seconds):
    """Evals one after the other, with memory sampling turned on and off between them."""
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until or n < 12:
        evaluate(job, f"{n} + 1", expect=f"{n + 1}\n")
        if n % 8 == 4:
            on = "on" if n % 16 == 4 else "off"
            assert probe(job.pid, "config", f"probing.memory.sampling={on}").returncode == 0
        n += 1


@WITH_A_GIL
def test_tracemalloc_is_started_and_stopped_beside_commands(python):
    with program(python, IN_MAIN) as job:
        command_for(job, 2.5)
        jobs.wait_until(lambda: evaluate(job, "rounds > 5").stdout == "True\n", 20, "some rounds")
        evaluate(job, "wrong", expect="0\n")


@WITH_A_GIL
def test_tracemalloc_in_a_thread_while_the_main_thread_waits(python):
    with program(python, IN_ANOTHER) as job:
        # Up to 3.11 only the main thread can let us in, or a moment at which no thread runs Python code.
        refused = lambda: "raw memory allocator" in probe(job.pid, "eval", "--timeout", "1", "1").stderr
        if version_of_any(python) >= (3, 12) or not refused():
            command_for(job, 1.5)
        assert job.alive()


@WITH_A_GIL
def test_commands_work_where_all_threads_wait_under_tracemalloc(python):
    code = """
import threading, tracemalloc
threading.Thread(target=int).start()
tracemalloc.start()
print('ready', flush=True)
threading.Event().wait()
"""
    with program(python, code) as job:
        evaluate(job, "tracemalloc.is_tracing()", expect="True\n")


# Puts functions into the raw allocator that count calls by threads without the GIL.
HOOKS = r"""
#include <stddef.h>
struct allocator { void *ctx, *(*malloc)(void *, size_t), *(*calloc)(void *, size_t, size_t), *(*realloc)(void *, void *, size_t); void (*free)(void *, void *); };
extern void PyMem_GetAllocator(int, struct allocator *), PyMem_SetAllocator(int, struct allocator *);
extern int PyGILState_Check(void);
static struct allocator before;
static int calls, without;
static void look(void) { __atomic_add_fetch(&calls, 1, 5); if (!PyGILState_Check()) __atomic_add_fetch(&without, 1, 5); }
static void *m(void *c, size_t n) { look(); return before.malloc(c, n); }
static void *z(void *c, size_t k, size_t n) { look(); return before.calloc(c, k, n); }
static void *r(void *c, void *b, size_t n) { look(); return before.realloc(c, b, n); }
static void f(void *c, void *b) { look(); before.free(c, b); }
void begin(void) { PyMem_GetAllocator(0, &before); struct allocator ours = {before.ctx, m, z, r, f}; PyMem_SetAllocator(0, &ours); }
void counts(int *ret) { ret[0] = calls; ret[1] = without; }
"""
IN_C = """
import ctypes, time
hooks = ctypes.PyDLL(%r)
def counts():
    found = (ctypes.c_int * 2)()
    hooks.counts(found)
    return list(found)
def make():
    return [ctypes.pythonapi.PyThread_free_lock(ctypes.c_void_p(lock)) for lock in [ctypes.pythonapi.PyThread_allocate_lock() for i in range(10)]]
ctypes.pythonapi.PyThread_allocate_lock.restype = ctypes.c_void_p
hooks.begin()
print('ready', flush=True)
while True:
    make()
    time.sleep(0.001)
"""


@OF_THIS_MACHINE
def test_no_thread_of_ours_calls_functions_of_the_program_without_the_gil(python, tmp_path):
    (tmp_path / "hooks.c").write_text(HOOKS)
    done = subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "hooks.so", tmp_path / "hooks.c"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    with program(python, IN_C % str(tmp_path / "hooks.so")) as job:
        command_for(job, 1)
        calls, without = eval(evaluate(job, "counts()").stdout)
        assert calls > 0 and without == 0


# The functions are Python's own: a thread without a thread state would call them for ever.
IN_PYTHON = """
import ctypes, _thread, time
class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]
api, pointer, size = ctypes.pythonapi, ctypes.c_void_p, ctypes.c_size_t
before = Allocator()
api.PyMem_GetAllocator(0, ctypes.byref(before))
kinds = [ctypes.CFUNCTYPE(pointer, pointer, size), ctypes.CFUNCTYPE(pointer, pointer, size, size),
         ctypes.CFUNCTYPE(pointer, pointer, pointer, size), ctypes.CFUNCTYPE(None, pointer, pointer)]
calls = [0]
def passing_on(kind, to):
    to = kind(to)
    def function(*arguments):
        calls[0] += 1
        return to(*arguments)
    return kind(function)
ours = [passing_on(kind, getattr(before, name)) for kind, name in zip(kinds, ("malloc", "calloc", "realloc", "free"))]
after = Allocator(before.ctx, *[ctypes.cast(function, pointer).value for function in ours])
print('ready', flush=True)
while True:
    api.PyMem_SetAllocator(0, ctypes.byref(after))
    for i in range(10):
        _thread.allocate_lock()
        time.sleep(0.001)
    api.PyMem_SetAllocator(0, ctypes.byref(before))
    time.sleep(0.002)
"""


@OF_THIS_MACHINE
def test_functions_in_python_are_called_by_threads_of_python_alone(python):
    with program(python, IN_PYTHON) as job:
        command_for(job, 1.5)
        evaluate(job, "calls[0] > 0", expect="True\n")


@OF_THIS_MACHINE
def test_forks_under_tracemalloc_wait_for_no_thread_of_ours(python):
    """From 3.8 to 3.11 a thread that made its thread state waited for the GIL with a lock that forks wait for, up to 20
    ms."""
    code = """
import os, time, tracemalloc
tracemalloc.start()
late = []
print('ready', flush=True)
while True:
    begun = time.monotonic()
    pid = os.fork()
    if not pid:
        [object() for i in range(1000)]
        os._exit(0)
    late.append(time.monotonic() - begun)
    assert os.waitpid(pid, 0)[1] == 0
    tracemalloc.clear_traces()
"""
    with program(python, code) as job:
        command_for(job, 1.5)
        jobs.wait_until(lambda: evaluate(job, "len(late) > 10").stdout == "True\n", 20, "some forks")


@pytest.mark.parametrize("python", INTERPRETERS, ids=interpreter_id)
def test_thread_states_that_are_kept_for_later_are_no_threads(python):
    with jobs.python(interpreter=python) as job:
        for _ in range(2):
            assert jobs.probe(job.pid, "eval", "1").stdout == "1\n"
        found = jobs.rows(job, "SELECT DISTINCT thread, tid, func IS NULL AS without FROM python.backtrace")
        assert [row["tid"] for row in found] and not any(row["without"] or not row["tid"] for row in found), found
