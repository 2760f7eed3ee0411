"""catch: a program that dies runs its own code as often, prints the same bytes and ends with the same status as without
catch."""
import os
import re
import sys
import tempfile
import threading

import builds
import pytest
from jobs import probe
from catch_kit import let_fail, rows, status_of_an_error
from every_python import SOME, program, version_of_any

# What notices when it is run: each says so, and what it raises would take the place of the failure.
PROGRAM = """
import os, signal, sys, threading, time
def told(*words):
    sys.stdout.flush()
    print("program:", *words, flush=True)
class Counts(Exception):
    n = 0
    def __str__(self):
        Counts.n += 1
        return "told %d times" % Counts.n
class Exits(Exception):
    def __str__(self): raise SystemExit(0)
class Stops(Exception):
    def __str__(self): raise KeyboardInterrupt("from __str__")
class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__module__", "__name__", "__qualname__", "__code__", "__mro__"): told("metaclass", name)
        return type.__getattribute__(cls, name)
    def __eq__(cls, other):
        told("metaclass ==")
        return cls is other
    def __hash__(cls):
        told("metaclass hash")
        return 1
    def __instancecheck__(cls, other): told("metaclass isinstance")
class Named(Exception, metaclass=Meta): pass
class Value(metaclass=Meta):
    def __getattribute__(self, name):
        told("value", name)
        return object.__getattribute__(self, name)
    def __repr__(self): told("value repr")
class Text(str):
    def __str__(self): told("text str")
    def __len__(self): told("text len")
    def __eq__(self, other): told("text =="); return True
    __hash__ = str.__hash__
class Reads(Exception):
    def __getattribute__(self, name):
        if name != "__dict__": told("error", name)
        return Exception.__getattribute__(self, name)
class Tuple(tuple):
    def __iter__(self): told("tuple iter"); return iter(())
class Numbered(OSError):
    filename = property(lambda self: told("filename"))
    errno = property(lambda self: told("errno"))
class Leaves(SystemExit): pass
class Thread(threading.Thread):
    name = property(lambda self: told("thread name") or "named", lambda self, value: None)
def fail(error, value=Value(), text=Text("hidden")):
    inside = [value, {text: value}]
    raise error
def chained():
    first, second = Counts("first"), Exits("second")
    first.__cause__, second.__context__ = second, first  # a chain that contains itself
    fail(first)
def grouped():
    fail(ExceptionGroup(Text("several"), [Counts("a"), Exits("b"), ExceptionGroup("inner", [Named("c")])]) if sys.version_info >= (3, 11) else Counts("a"))
def quiet(*arguments):
    if arguments and isinstance(arguments[0], BaseException): raise arguments[0]
go = []
signal.signal(signal.SIGUSR1, lambda *_: go.append(1))
print("ready", flush=True)
while not go:
    time.sleep(0.005)
for each in THREADS:
    thread = threading.Thread(target=each, name="worker")
    thread.start()
    thread.join()
MAIN
"""
CASES = {
    "str": ("[lambda: fail(Counts('x')), lambda: fail(Exits('x'))]", "fail(Exits('x'))"),
    "metaclass": ("[lambda: fail(Named('x')), lambda: fail(Counts(Value()))]", "fail(Named('x'))"),
    "attributes": ("[lambda: fail(Reads('x')), lambda: fail(Numbered(2, Text('no'), Text('file')))]",
                   "fail(Reads(Text('x')))"),
    "chains": ("[chained, grouped]", "chained()"),
    "interrupts": ("[lambda: fail(KeyboardInterrupt('x')), lambda: fail(Leaves(5)), lambda: sys.exit(3)]",
                   "fail(Stops('x'))"),
    "group": ("[]", "grouped()"),
    "leaves": ("[]", "fail(Leaves(7))"),
    "ctrl-c": ("[]", "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT); "
                     "time.sleep(5)"),
    "syntax": ("[lambda: compile('1 +', 'x.py', 'exec')]", "error = SyntaxError(Value()); error.filename = "
                                                           "Text('x.py'); error.text = 5; fail(error)"),
    "hook": ("[]", """
def hook(kind, error, trace):
    frame = sys._getframe()
    while frame is not None:
        told(frame.f_code.co_filename.startswith("<probing>"), frame.f_code.co_name)
        frame = frame.f_back
    raise Counts("in the hook")
sys.excepthook = hook
fail(ValueError("x"))"""),
    "traced": ("[lambda: fail(Counts('x'))]", """
def tracer(frame, event, argument):
    if "probing" in frame.f_code.co_filename: told("traced", frame.f_code.co_name)
    return tracer
sys.settrace(tracer)
sys.setprofile(tracer)
fail(Counts("x"))"""),
}


def ends_as(python, name, *command):
    """(status, output) of the program; rows of catch's table if it was on."""
    threads, main = CASES[name]
    hooked = main.index("\nfail") if name == "hook" else 0  # the program sets its hook before catch comes
    code = PROGRAM.replace("THREADS", threads).replace("MAIN",
                                                       main[hooked:]).replace("go = []", main[:hooked] + "\ngo = []")
    with program(python, code) as job:
        if command:
            done = probe("-t", job.pid, *command)
            assert done.returncode == 0, done.stderr
        let_fail(job)
        status = job.process.wait(30)
        output = re.sub(r'"[^"]*\.py"', '"x.py"', job.output)
        # some versions print what they count of an object that cannot be printed
        output = re.sub("0x[0-9a-f]+|object refcount : [0-9]+", "0x", output)
        found = rows(job, "SELECT type, message, function FROM python.exceptions ORDER BY id") if command else None
        return status, output, found


@SOME
@pytest.mark.parametrize("name", CASES)
def test_it_dies_alike(python, name):
    plain, caught = ends_as(python, name), ends_as(python, name, "catch", "--no-prompt")
    assert caught[:2] == plain[:2]
    if name != "leaves":
        kinds = [row[0].rpartition(".")[2] for row in caught[2]]
        assert kinds, "the scene was kept"
        assert kinds[-1] == {"str": "Exits", "metaclass": "Named", "attributes": "Reads", "chains": "Counts",
                             "interrupts": "Stops", "ctrl-c": "KeyboardInterrupt",
                             "syntax": "SyntaxError", "hook": "ValueError", "traced": "Counts",
                             "group": "ExceptionGroup" if version_of_any(python) >= (3, 11)
                             else "Counts"}[name], caught[2]
        assert kinds.count("SystemExit") == 0, "the end of a thread by sys.exit() is no failure"


@SOME
def test_its_traceback_names_what_python_names(python):
    code = PROGRAM.replace("THREADS", "[]").replace("MAIN", """
try:
    fail(KeyError("missing"))
except KeyError as error:
    raise OSError(2, "nothing there", "name") from error""")
    with program(python, code) as job:
        assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
        let_fail(job)
        assert job.process.wait(20) == status_of_an_error(python)
        row, = rows(job, "SELECT message, traceback FROM python.exceptions")
        assert row[0] == "[Errno 2] nothing there: 'name'"
        # without the marks of newer versions
        printed = [line for line in job.output.splitlines()[1:] if line.strip(" ^~")]
        kept = [line for line in row[1].replace("\\n", "\n").splitlines() if line]
        if python in builds.FREE_THREADED:  # the launcher of these builds prints frames of its own
            kept, printed = kept[-3:], printed[-3:]
        assert kept == printed


@pytest.mark.parametrize("before", ["", "sys.excepthook = lambda *_: None"])
def test_a_thread_that_is_held_says_nothing(before):
    """With a prompt too: the program's own streams have the program's own words."""
    code = PROGRAM.replace("THREADS", "[]").replace("MAIN",
                                                    "fail(Counts('x'))").replace("go = []", before + "\ngo = []")
    outputs = []
    for limit in ("", "1s"):
        with program(sys.executable, code) as job:
            if limit:
                assert probe("-t", job.pid, "catch", "--limit", limit).returncode == 0
            let_fail(job)
            assert job.process.wait(20) == 1
            outputs.append(re.sub(r'"[^"]*\.py"', '"x.py"', job.output))
    assert outputs[0] == outputs[1]


def test_it_dies_at_once_where_the_source_is_a_pipe():
    with tempfile.TemporaryDirectory() as folder:
        pipe, opened = folder + "/pipe.py", []
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: opened.append(os.open(pipe, os.O_WRONLY)), daemon=True)
        writer.start()
        main = "sys.excepthook = sys.excepthook\nexec(compile('1/0', %r, 'exec'))" % (folder + "/pipe.py")
        code = PROGRAM.replace("THREADS", "[]").replace("MAIN", main)
        code = code.replace("go = []", "sys.excepthook = quiet\ngo = []")
        with program(sys.executable, code) as job:
            assert probe("-t", job.pid, "catch", "--no-prompt").returncode == 0
            let_fail(job)
            assert job.process.wait(10) == 1
            assert rows(job, "SELECT type FROM python.exceptions") == [["ZeroDivisionError"]]
        assert not opened, "who writes to the pipe does not see a reader"
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        writer.join(10)
        for fd in (reader, *opened):
            os.close(fd)
