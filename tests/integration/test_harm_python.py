"""Python state is not ours to change: what a program does, prints and finds is the same with an eval beside it and
without.

Each test runs for every interpreter found: those of this machine, 3.14 and 3.15 in a root, and free-threaded builds.
"""
import os
import re
import signal
import subprocess
import time

import builds
import jobs
import pytest
from end_kit import ask_until_it_ends
from every_python import EVERY, SOME, evaluate, has_locals, program
from interpreters import INTERPRETERS
from jobs import probe

# One that only looks, and some that call: those get stand-ins for sys.stdout and sys.stderr.
LOOK, CALL = "1 + 1", "import os; os.getpid() > 0"


def stop(job):
    """Tells it to end, which it may have done by the time that we hear of it."""
    probe(job.pid, "eval", "stop = 1")


def needs_stand_ins(python):
    if python == "cp313t":
        pytest.skip("free-threaded 3.13 gets no stand-ins for its streams")


def last_words(job, seconds=20):
    """What it printed, once it has ended by itself and well."""
    status = job.process.wait(timeout=seconds)
    assert status == 0, f"it ended with {status}:\n{job.output[-2000:]}"
    return job.output


@EVERY
def test_a_program_that_prints_all_the_time_goes_on_line_by_line(python):
    """print uses sys.stdout without a reference of its own: a stand-in that is freed there is a crash."""
    code = "print('ready')\ni = 0\nwhile True:\n    i += 1\n    print('loss', i, sep='=')\n"
    with program(python, code) as job:
        for n in range(12):
            evaluate(job, LOOK, expect="2\n")
            evaluate(job, CALL, expect="True\n")
            evaluate(job, "print('mine'); import sys; sys.stderr.write('mine') > 0" if python != "cp313t"
                     else "print('mine')")
            evaluate(job, "i > 0", expect="True\n")
        os.kill(job.pid, 19)  # SIGSTOP: the output stays what it is
        lines = job.output.split("\n")[1:-1]
    assert len(lines) > 100 and lines == [f"loss={n + 1}" for n in range(len(lines))], "its output changed"


@EVERY
def test_a_sub_interpreter_with_its_own_gil_is_left_alone(python):
    """sys._current_frames() aborts beside one."""
    code = """
import threading
try: import _xxsubinterpreters as s
except ImportError:
    try: import _interpreters as s
    except ImportError: s = None
if s is None:
    print("ready none")
    raise SystemExit
i = s.create()
run = getattr(s, "run_string", None) or s.exec
def main():
    outer = 7
    t = threading.Thread(target=lambda: run(i, 'import time\\nfor k in range(100): time.sleep(0.01)'))
    t.start()
    print("ready")
    t.join()
main()
s.destroy(i)
print("fine")
"""
    with program(python, code, ready=None) as job:
        jobs.wait_until(lambda: "ready" in job.output)
        if "none" in job.output:
            pytest.skip("this Python has no sub-interpreters")
        for _ in range(3):
            evaluate(job, LOOK, expect="2\n")
            evaluate(job, CALL, expect="True\n")
            if has_locals(python):
                evaluate(job, "outer", expect="7\n")
        assert last_words(job).split() == ["ready", "fine"]


# What exec() and locals() leave in a function's frame, in a generator's, a coroutine's, a closure's, a method's, below
# a tracer.
FRAMES = """
import sys, time
def pause(): time.sleep(0.2)
def by_exec(x=1):
    exec("hidden = 41")
    pause()
    try: print("hidden", eval("hidden"), sorted(k for k in locals()))
    except NameError: print("no hidden")
def by_locals(lr=1):
    config = locals()
    later = 2
    config["own"] = 3
    pause()
    print(sorted(config), config.get("lr"), config.get("own"))
def generator():
    g = 5
    config = locals()
    pause()
    yield sorted(config)
async def coroutine():
    c = 6
    exec("inside = 1")
    pause()
    return "inside" in locals()
def closure():
    shared = [1]
    def inner():
        nonlocal shared
        kept = locals()
        pause()
        shared = shared + [2]
        return sorted(kept), len(kept["shared"])
    return inner()
def deleted():
    gone = 1
    config = locals()
    del gone
    pause()
    print(sorted(config), "gone" in config)
class Model:
    def step(self):
        loss = 0.5
        exec("loss = 9; extra = 1")
        pause()
        return loss, sorted(locals())
def traced():
    seen = []
    def trace(frame, event, arg):
        seen.append(sorted(frame.f_locals)) if event == "line" else None
        return trace
    def body():
        a = 1
        exec("b = 2")
        pause()
        c = a + 1
        return c
    sys.settrace(trace)
    try: result = body()
    finally: sys.settrace(None)
    return result, seen
print("ready")
by_exec()
by_locals()
print(list(generator()))
co = coroutine()
try: co.send(None)
except StopIteration as e: print(e.value)
print(closure())
deleted()
print(Model().step())
print(traced())
print("end")
"""


@EVERY
def test_what_exec_and_locals_left_in_a_frame_stays(python):
    with program(python, FRAMES) as alone, program(python, FRAMES) as probed:
        while "end" not in probed.output and probed.alive():
            for text in ("1 + 1", "config", "x", "print(loss)", "dir()", "shared", "hidden", "class A:\n  y = 1\nA"):
                probe(probed.pid, "eval", text)
        assert last_words(alone) == last_words(probed)


@EVERY
def test_locals_of_every_kind_of_function_are_read(python):
    if not has_locals(python):
        pytest.skip("locals of running code are not lent in a free-threaded build")
    code = """
import time
def outer(arg, *rest, key=3, **more):
    shared, unbound_later = [arg], None
    def inner(own):
        unbound = 1
        del unbound
        mine = {"own": own}
        total = [shared for shared_too in [1]]
        def numbers():
            deep = own + arg
            print("ready")
            while deep: time.sleep(0.01)
            yield shared, deep
        return next(numbers())
    return inner(5)
outer(1, 2, key=4, z=9)
"""
    with program(python, code) as job:
        evaluate(
            job, "deep, shared, own, mine, arg, rest, key, more", expect="(6, [1], 5, {'own': 5}, 1, (2,), "
                                                                         "4, {'z': 9})\n")
        assert "NameError" in evaluate(job, "unbound").stderr
        evaluate(job, "sorted(set(dir()) & {'deep', 'shared', 'unbound', 'arg', 'mine'})",
                 expect="['arg', 'deep', 'mine', 'shared']\n")


@EVERY
def test_an_eval_that_only_looks_leaves_no_trace(python):
    code = """
import signal, sys, time
class Point: x = 3
point, table, told = Point(), {"k": [1.5]}, []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
def look():
    return (sorted(sys.modules), id(sys.stdout), id(sys.stderr), sorted(vars(sys)), sorted(globals()),
            sorted(sys.modules["threading"]._active) if "threading" in sys.modules else None,
            len(sys.modules["linecache"].cache) if "linecache" in sys.modules else None,
            sys.getrefcount(sys.stdout), sys.getrefcount(big), sys.gettrace(), sys.flags)
def main():
    global big
    big = ["kept"]
    local = ["only", "here"]  # an eval that looks at it holds it for that long: nobody counts its references
    before = after = look()
    before = look()
    print("ready")
    while not told:
        after = look()
        if after != before:
            print("CHANGED", [(a, b) for a, b in zip(before, after) if a != b])
            break
        time.sleep(0.01)
    print("end")
main()
"""
    with program(python, code) as job:
        if has_locals(python):
            evaluate(job, "local", expect="['only', 'here']\n")
        for text in ("1 + 1", "point.x", "table['k'][0] * 2", "print(table)", "f'{point.x:>4}'", "[i for i in (1, 2)]",
                     "nothing_of_that_name",
                     "(lambda: 1) is None", "point.x == 3 and not table", "1 / 0", "print('a', 'b', sep='-', end='')"):
            evaluate(job, text)
        time.sleep(0.1)
        os.kill(job.pid, signal.SIGUSR1)  # an eval that assigns would be seen
        assert last_words(job).split() == ["ready", "end"]


@EVERY
def test_a_program_that_assigns_its_streams_keeps_what_it_assigned(python):
    code = """
import contextlib, io, sys, time
real, real_error = sys.stdout, sys.stderr
def work():
    print("ready")
    end, n = time.time() + 1, 0
    while time.time() < end:
        n += 1
        mine = sys.stdout = io.StringIO()
        print("a", n)
        time.sleep(0.0005)
        print("b", n)
        sys.stdout = real
        assert mine.getvalue() == "a %d\\nb %d\\n" % (n, n), mine.getvalue()
        with contextlib.redirect_stdout(io.StringIO()) as mine:
            print("c", n)
            time.sleep(0.0005)
        assert mine.getvalue() == "c %d\\n" % n, mine.getvalue()
        with contextlib.redirect_stderr(io.StringIO()) as mine:
            print("d", n, file=sys.stderr)
        assert mine.getvalue() == "d %d\\n" % n, mine.getvalue()
    return n
n = work()
print("rounds", n > 50)
while "stop" not in globals(): time.sleep(0.01)
time.sleep(0.3)
print(sys.stdout is real, sys.stderr is real_error)
"""
    with program(python, code) as job:
        while "rounds" not in job.output and job.alive():
            evaluate(job, CALL, expect="True\n")
            evaluate(job, "print(6 * 7)", expect="42\n")
            evaluate(job, "import time; time.sleep(0.01); print(type(real))")
        stop(job)
        assert last_words(job).split() == ["ready", "rounds", "True", "True", "True"]


@EVERY
def test_a_stand_in_that_the_program_saved_gives_way_to_the_stream(python):
    """contextlib.redirect_stdout that begins during an eval and ends after it, or after detach, puts the stand-in
    back."""
    needs_stand_ins(python)
    code = """
import io, sys, threading, time
outer = sys.stdout = io.StringIO()
def main():
    sys.__stdout__.write("ready\\n")
    while type(sys.stdout) is io.StringIO: time.sleep(0.001)
    saved = sys.stdout
    assert isinstance(saved, io.StringIO) and saved == outer and hash(saved) == hash(outer) and repr(saved) == repr(outer)
    sys.stdout = io.StringIO()
    sys.__stdout__.write("saved\\n")
    while "stop" not in globals(): time.sleep(0.01)
    sys.stdout = saved
    t = threading.Thread(target=lambda: print("through the stand-in", file=saved)); t.start(); t.join()
    print("x")
    assert sys.stdout is outer, type(sys.stdout)
    saved.mark = 1
    saved.write("y")
    assert outer.mark == 1 and outer.getvalue() == "through the stand-in\\nx\\ny", outer.getvalue()
    sys.__stdout__.write("fine\\n")
main()
"""
    with program(python, code) as job:
        assert evaluate(job, "import time; time.sleep(0.5); print('mine')").stdout == "mine\n"
        jobs.wait_until(lambda: "saved" in job.output)
        assert probe(job.pid, "detach").returncode == 0
        evaluate(job, CALL, expect="True\n")
        stop(job)
        assert last_words(job).split() == ["ready", "saved", "fine"]


@EVERY
def test_a_stream_that_the_program_dropped_is_freed(python):
    needs_stand_ins(python)
    code = """
import io, sys, time, weakref
real = sys.stdout
class Log(io.StringIO): pass
print("ready")
sys.stdout = log = Log()
ref = weakref.ref(log)
while sys.stdout is log: time.sleep(0.001)
sys.stdout = real
del log
print("dropped")
while "stop" not in globals(): time.sleep(0.01)
print(ref() is None)
"""
    with program(python, code) as job:
        evaluate(job, "import time; time.sleep(0.3)")
        jobs.wait_until(lambda: "dropped" in job.output)
        evaluate(job, CALL, expect="True\n")
        stop(job)
        assert last_words(job).split() == ["ready", "dropped", "True"]


@EVERY
def test_values_that_print_or_raise_when_shown_reach_the_client_alone(python):
    needs_stand_ins(python)
    code = """
import sys, time
class Noisy:
    def __repr__(self):
        print("from repr")
        print("to stderr", file=sys.stderr)
        return "<noisy>"
class Broken:
    def __repr__(self): raise ValueError("no repr")
noisy, broken, real = Noisy(), Broken(), sys.stdout
print("ready")
while "stop" not in globals(): time.sleep(0.01)
time.sleep(0.2)
print(sys.stdout is real, "end")
"""
    with program(python, code) as job:
        done = evaluate(job, "noisy")
        assert (done.stdout, done.stderr) == ("from repr\n<noisy>\n", "to stderr\n")
        assert evaluate(job, "[{'a': noisy}]").stdout == "from repr\n[{'a': <noisy>}]\n"
        assert evaluate(job, "print(noisy)").stdout == "from repr\n<noisy>\n"
        assert evaluate(job, "n = sys.stdout.buffer.write(b'bytes'); sys.stdout.writelines(['a', 'b']); "
                             "sys.stdout.flush()").stdout == "bytesab"
        done = evaluate(job, "broken")
        assert done.returncode == 1 and "ValueError: no repr" in done.stderr
        stop(job)
        assert last_words(job).split() == ["ready", "True", "end"]


@EVERY
def test_eight_at_once_that_end_in_any_order(python):
    code = """
import sys, time
real = sys.stdout
print("ready")
n = 0
while "stop" not in globals():
    n += 1
    print("tick", n)
time.sleep(0.3)
print(sys.stdout is real)
"""
    with program(python, code) as job:
        texts = ["import time; time.sleep(%s); print('mine', %d)" % (0.05 * ((n * 3) % 8), n) for n in range(8)]
        for _ in range(2):
            running = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", text], stdout=subprocess.PIPE,
                                        universal_newlines=True)
                       for text in texts]
            assert [process.communicate(timeout=30)[0] for process in running] == [f"mine {n}\n" for n in range(8)]
        stop(job)
        words = last_words(job).split("\n")
    assert words[1:-2] == [f"tick {n + 1}" for n in range(len(words) - 3)] and words[-2] == "True"


@EVERY
def test_a_program_that_ends_meanwhile_ends_as_it_would(python):
    code = ("import atexit, sys, time\natexit.register(lambda: print('bye', type(sys.stdout).__name__ != ''))\n"
            "print('ready')\ntime.sleep({})\nprint('x' * 10)\n")
    for n in range(3):
        with program(python, code.format(0.3 + 0.1 * n)) as job:
            running = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", text], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
                       for text in ("import time\nwhile True: time.sleep(0.001)", "while True: print(1)",
                                    "import time; time.sleep(30)")]
            ask_until_it_ends(job, job.pid, "eval", CALL, seconds=40)
            assert job.process.wait(timeout=10) == 0 and job.output == "ready\nxxxxxxxxxx\nbye True\n", job.output
            for process in running:
                process.kill()
                process.wait()


# A module that our part imports for a traceback is slow: the program ends while a callback in it waits. Then it makes
# way for the real one. (No file stands before a frozen module.)
IMPORTED_AT_THE_END = """
import os, sys, time
sys.modules.pop("traceback", None)
sys.meta_path[:] = [finder for finder in sys.meta_path if "Frozen" not in getattr(finder, "__name__", "")]
folder = "/tmp/probing-end-%r" % time.time()
os.mkdir(folder)
SLOW = '''
import sys, time
class Callback:
    def __del__(self):
        sys.of_ours = 1
        time.sleep(0.15)
        time.sleep(0.15)
if not hasattr(sys, "of_ours"):
    Callback()
    print("whole")
sys.path.remove(FOLDER)
del sys.modules[__name__]
__import__(__name__)
'''
with open(os.path.join(folder, "traceback.py"), "w") as f:
    f.write(SLOW.replace("FOLDER", repr(folder)))
sys.path.insert(0, folder)
print("ready")
while not hasattr(sys, "of_ours"): time.sleep(0.005)
for root, _, names in os.walk(folder, topdown=False):
    for name in names: os.unlink(os.path.join(root, name))
    os.rmdir(root)
"""


@SOME
def test_the_end_waits_for_an_import_of_ours_and_interrupts_none(python):
    """A thread that is refused its return in the middle of an import has locks that the end may want. An interrupt
    that strikes in a callback there is printed by Python, into the program's output."""
    with program(python, IMPORTED_AT_THE_END) as job:
        ask_until_it_ends(job, job.pid, "eval", "import os; 1 / 0")
        assert last_words(job).split() == ["ready", "whole"]


@pytest.mark.parametrize("python", builds.FREE_THREADED)
def test_first_evals_at_once_load_our_part_once(python):
    """As with a GIL one thread at a time compiles it: 3.15 deadlocks where some threads intern strings."""
    count = ("import gc, types; sum(type(o) is types.ModuleType and o.__name__ == 'probing._streams' "
             "for o in gc.get_objects())")
    with program(python, jobs.TRAINING) as job:
        running = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", CALL], stdout=subprocess.DEVNULL)
                   for _ in range(6)]
        assert [process.wait(timeout=60) for process in running] == [0] * 6
        evaluate(job, count, expect="1\n")


@EVERY
def test_a_child_of_fork_has_its_own_streams(python):
    needs_stand_ins(python)
    code = """
import os, sys, time
real = sys.stdout
print("ready")
while sys.stdout is real: time.sleep(0.001)
pid = os.fork()
if pid == 0:
    print("child")
    print(sys.stdout is real)
    os._exit(0)
os.waitpid(pid, 0)
print("parent")
while "stop" not in globals(): time.sleep(0.01)
time.sleep(0.2)
print(sys.stdout is real)
"""
    # From 3.12 on fork warns where the process has more than one thread, which it has with the agent in it:
    # docs/safety.md.
    with program(python, "import warnings; warnings.simplefilter('ignore')\n" + code) as job:
        assert evaluate(job, "import time; time.sleep(0.4); print('mine')").stdout == "mine\n"
        stop(job)
        assert last_words(job).split() == ["ready", "child", "True", "parent", "True"]


@EVERY
def test_streams_that_are_none_or_missing_stay_so(python):
    code = """
import sys, time
sys.__stdout__.write("ready\\n")
real, sys.stdout = sys.stdout, None
del sys.stderr
while "stop" not in globals():
    print("to nobody")
    assert sys.stdout is None and not hasattr(sys, "stderr")
real.write("fine\\n")
sys.stdout = real
"""
    with program(python, code) as job:
        for _ in range(3):
            evaluate(job, "print('here'); 6 * 7", expect="here\n42\n")
            evaluate(job, CALL, expect="True\n")
            assert "ZeroDivisionError" in evaluate(job, "int('1') / 0").stderr
        stop(job)
        assert "fine" in last_words(job)


@EVERY
def test_threads_that_come_and_go_while_the_gil_is_fought_for(python):
    """The holder is named by a handle of a thread that may be gone (up to 3.10)."""
    code = """
import threading, time
def burn(): sum(range(20000))
print("ready")
end = time.time() + 1
while time.time() < end:
    threads = [threading.Thread(target=burn) for _ in range(6)]
    for t in threads: t.start()
    for t in threads: t.join()
print("fine")
"""
    with program(python, code) as job:
        while "fine" not in job.output and job.alive():
            probe(job.pid, "eval", "1", "--timeout", "0.001")
            probe(job.pid, "eval", CALL, "--timeout", "0.01")
        assert last_words(job).split() == ["ready", "fine"]


@EVERY
def test_an_eval_that_ended_or_was_stopped_leaves_no_exception_pending(python):
    """Up to 3.12 a mark of one, once left set, makes every check of the interpreter slow, and in 3.11 a traced function
    never starts."""
    code = """
import sys, time
def trace(*_): return trace
def body(): return 1
print("ready")
for n in range(100):
    sys.settrace(trace)
    body()
    sys.settrace(None)
    time.sleep(0.015)
print("fine")
"""
    with program(python, code) as job:
        for text in ("while True: pass", "import time\nwhile True: time.sleep(0.001)", "1"):
            probe(job.pid, "eval", text, "--timeout", "0.2")
        assert last_words(job).split() == ["ready", "fine"]


@EVERY
def test_an_eval_that_is_stopped_does_not_end_the_program_by_sigint(python):
    """KeyboardInterrupt that goes through exec() of a text is remembered until the program ends (3.8 and later)."""
    with program(python, "import time\nprint('ready')\nwhile 'stop' not in globals(): time.sleep(0.01)\n"
                         "print('fine')\n") as job:
        evaluate(job, LOOK, expect="2\n")  # the agent is there, and answers
        for seconds in ("0.2", "2", "20", "30"):  # more where a busy machine gave it no CPU in that time
            done = evaluate(job, "exec('import time\\nwhile True: time.sleep(0.001)')", "--timeout", seconds)
            if "KeyboardInterrupt" in done.stderr:
                break
        assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr
        stop(job)
        assert last_words(job).split() == ["ready", "fine"]


def peak_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def test_a_hundred_megabytes_are_printed_in_pieces():
    with program(INTERPRETERS[-1], jobs.TRAINING) as job:
        evaluate(job, CALL)
        before = peak_mb(job.pid)
        out = probe(job.pid, "eval", "print('x' * 100_000_000)", "--timeout", "60").stdout
        assert len(out) == 100_000_001 and out.strip("x") == "\n"
        # The text itself, and once more with the end of its line.
        assert peak_mb(job.pid) - before < 230


@EVERY
def test_a_hundred_evals_and_ten_agents_leave_one_stand_in_a_stream(python):
    """What is kept for ever must not grow."""
    needs_stand_ins(python)
    count = "import gc; sum(type(o).__name__ == '_Router' for o in gc.get_objects())"
    with program(python, jobs.TRAINING) as job:
        for n in range(30):
            evaluate(job, CALL, expect="True\n")
            if n % 6 == 0:
                assert probe(job.pid, "detach").returncode == 0
        assert evaluate(job, count).stdout == "2\n"
