"""`execute --thread`: code of a client that runs in a thread of the program, between two bytecodes; and the stack that `print_stack()` means.

The agent has the main thread evaluate the code as a pending call of the interpreter (src/agent/python/prompt.c), so its stack is the program's, then the code's. The
request's own thread waits, sends the output on and passes on an interrupt. What the code raises goes to the client; what a signal handler of the program
raises meanwhile to the program.
"""
from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from . import _by_type, _helpers, _signals, _streams
from ._program import lines_of_file

START_MS, TURN_S = 5000, 0.01
QUEUE_MAX = 1 << 20
WAITS, RUNS, ENDED = range(3)
BUSY = "the main thread is held, or another request waits for it: `probing now` says what holds it"


class Refused(Exception):
    """Sent to the client as one line."""


class ThreadRun:
    """Code for another thread. Its output is queued: no thread of the program waits for a client."""

    def __init__(self, request, ident):
        self.request, self.ident, self.pid = request, ident, getpid()
        self.state, self.lock, self.interrupted = WAITS, allocate_lock(), False
        self.send, self.queue, self.queued = request.send, [], 0
        self.outcome = None
        self.guard = _signals.Guard(runner=ThreadRun.begin)

    # --- in the thread of the program; neither raises

    def begin(self):
        self.guard.__enter__()
        self.guard.typed = True
        _streams.sinks[get_ident()] = self.request
        with self.lock:
            self.state = RUNS

    def end(self, value, kind, error, trace):
        if getpid() == self.pid and error is None and value is not None:
            try:
                from ._remote import show

                show(self.request, value)
            except BaseException as failed:  # of its __repr__
                error, trace = failed, _by_type.trace_of(failed)
        self.guard.typed = False
        try:
            with self.lock:
                self.state = ENDED
            if self.interrupted:  # it may strike late: here
                for _ in range(100):
                    pass
        except BaseException:
            self.state = ENDED
        _streams.sinks.pop(get_ident(), None)
        self.outcome = error, trace
        self.guard.__exit__()
        if self.guard.error is not None:
            _signals.raise_later(self.guard.error)

    def put(self, stream, text):
        if get_ident() != self.ident:
            return self.send(stream, text)
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self.queued += len(text)
        if self.queued <= QUEUE_MAX:
            self.queue.append((stream, text))
        return None

    # --- in the request's own thread

    def flush(self):
        while self.queue:
            stream, text = self.queue.pop(0)
            self.queued -= len(text)
            self.send(stream, text)

    def interrupt(self):
        with self.lock:
            if self.state == RUNS:
                self.interrupted = True
                _probing.interrupt(self.ident)

    def wait(self, limit_ms):
        """An interrupt is that of the client, or its time is over: it is passed on, and what comes of it is waited for."""
        until = _probing.milliseconds() + limit_ms
        try:
            self.wait_for_outcome(until)
        except BaseException:
            if self.state == WAITS and _probing.unpend():
                raise
            self.interrupt()
            self.wait_for_outcome(0)
        if self.outcome is None:
            raise Refused("the main thread did not come to a safe point within %g s: it stays in C code%s" % (limit_ms / 1000, self.place()))

    def wait_for_outcome(self, until):
        tick = allocate_lock()
        tick.acquire()
        while self.outcome is None:
            tick.acquire(True, TURN_S)
            self.flush()
            if until and self.state == WAITS and _probing.milliseconds() > until and _probing.unpend():
                return
        self.flush()

    def place(self):
        stack = _helpers.frames_of(self.ident)
        return ", called at %s:%d %s" % (stack[0].f_code.co_filename, stack[0].f_lineno or 0, stack[0].f_code.co_name) if stack else ""


def find(name):
    """The ident of a thread: main, its name, its ident or the kernel's number."""
    main, known = _probing.main_ident(), []
    for ident, _ in _helpers.live_threads():
        thread = _by_type.name_by_ident(ident, main)
        if name in (thread, str(ident), str(_by_type.native_id(ident))) or name == "main" and ident == main or name == str(getpid()) and ident == main:
            return ident
        known.append(thread)
    raise Refused("there is no thread %s; there are %s" % (name, ", ".join(known)))


def parts(request, wanted):
    """What the request's own thread runs in place of the code."""
    name, _, timeout_ms = wanted.partition("\n")
    code, last, names = request.parts

    def run():
        ident = find(name)
        if ident != _probing.main_ident():
            raise Refused("code can run in the main thread only; threads() and frames(N) of `repl` look into %s" % name)
        if any(frame.f_code.co_filename.startswith("<probing>") for frame in _helpers.frames_of(ident)):
            raise Refused(BUSY)
        pending = ThreadRun(request, ident)
        request.send = pending.put
        try:
            if not _probing.pend((pending.begin, code, last, names, pending.end)):
                raise Refused(BUSY)
            limit_ms = int(timeout_ms or 0)
            pending.wait(min(START_MS, limit_ms * 3 // 4) if limit_ms else START_MS)
        finally:
            del request.send
        error, trace = pending.outcome
        if error is not None:
            _by_type.ERROR["__traceback__"].__set__(error, trace)
            raise error

    return compile("run()", "<probing>/_elsewhere.py", "exec", 0, True), None, {"run": run, "__builtins__": {}}


# --- the stack of the program

def wants_stack(tree):
    """Whether all it does is traceback.print_stack(): that of the program is meant, not that of our thread."""
    calls = 0
    for statement in tree.body:
        kind = type(statement).__name__
        if kind in ("Import", "ImportFrom"):
            if any(name.name.split(".")[0] != "traceback" for name in statement.names) and getattr(statement, "module", None) != "traceback":
                return False
            continue
        call = getattr(statement, "value", None)
        if kind != "Expr" or type(call).__name__ != "Call" or call.args or call.keywords:
            return False
        if getattr(call.func, "attr", getattr(call.func, "id", None)) != "print_stack" or getattr(getattr(call.func, "value", None), "id", "traceback") != "traceback":
            return False
        calls += 1
    return calls == 1


def stack_parts(request):
    def run():
        stack = [frame for frame in _helpers.frames_of(_probing.main_ident()) if not frame.f_code.co_filename.startswith("<probing>")]
        if not stack:
            raise Refused("the main thread runs no Python code, or its stack cannot be read")
        for frame in reversed(stack):
            code, number = frame.f_code, frame.f_lineno or 0
            lines = lines_of_file(code.co_filename)
            source = "    %s\n" % lines[number - 1].strip() if 0 < number <= len(lines) else ""
            request.send(_streams.ERR, '  File "%s", line %d, in %s\n%s' % (code.co_filename, number, code.co_name, source))

    return compile("run()", "<probing>/_elsewhere.py", "exec", 0, True), None, {"run": run, "__builtins__": {}}
