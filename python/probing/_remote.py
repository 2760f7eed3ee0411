"""What runs inside the target for `probing eval` and `probing execute`.

The agent carries this file in itself and, in a thread it started for one request, calls begin, compiles the code by
compiled, evaluates what that gives, and calls end. The code is evaluated by the agent itself, so that it has no
frames of ours below it, and only it may be interrupted (KeyboardInterrupt from outside), so that what begin set up
is always undone by end. Works on every CPython from 3.6 on; imports the standard library only.
"""
import sys

from _thread import allocate_lock as _allocate_lock, get_ident

OUT, ERR, VALUE, TRACEBACK = 1, 2, 3, 4
CO_OPTIMIZED = 1
_STDLIB = (__import__("os").__file__ or "").rpartition("/")[0] + "/"

_sinks = {}  # thread ident -> the request that runs in it
_routers = {}  # "stdout" or "stderr" -> the router that stands in for it while a request runs


class _Router:
    """Stands in for sys.stdout or sys.stderr: what a request's thread writes goes to its client, all else passes."""

    def __init__(self, original, stream):
        self._original = original
        self._stream = stream

    def write(self, text):
        request = _sinks.get(get_ident())
        if request is not None and request.send(self._stream, text):
            return len(text)
        return len(text) if self._original is None else self._original.write(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        if get_ident() not in _sinks and self._original is not None:
            self._original.flush()

    def isatty(self):
        return get_ident() not in _sinks and self._original is not None and self._original.isatty()

    def __getattr__(self, name):
        return getattr(self._original, name)


class _Request:
    """One piece of code, its names, and the way back to the client."""

    def __init__(self, number, source, filename, keep_value, emit):
        self.prefix = number.to_bytes(8, "little")
        self.source = source
        self.filename = filename
        self.keep_value = keep_value
        self.emit = emit
        self.names = {}
        self.before = {}
        self.foreign = {}

    def send(self, stream, text):
        """False when the client is gone for good: then the text belongs to the original stream."""
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        return self.emit(self.prefix + bytes([stream]) + text.encode("utf-8", "backslashreplace"))


def begin(number, source, filename, keep_value, emit):
    _import_threading()
    request = _Request(number, source.decode("utf-8", "replace"), filename, bool(keep_value), emit)
    request.foreign, request.before = _foreign_names(), dict(_main_globals())
    request.names = dict(request.foreign)
    request.names.update(request.before)
    _sinks[get_ident()] = request
    if len(_sinks) == 1:
        for name, stream in (("stdout", OUT), ("stderr", ERR)):
            _routers[name] = _Router(getattr(sys, name), stream)
            setattr(sys, name, _routers[name])
    return request


def compiled(request):
    """(code to execute, code whose value is shown or None, the names for both)."""
    import ast
    import linecache

    lines = request.source.splitlines(True)
    linecache.cache[request.filename] = (len(request.source), None, lines, request.filename)
    tree = ast.parse(request.source, request.filename)
    last = None
    if request.keep_value and tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), request.filename, "eval")
    return compile(tree, request.filename, "exec"), last, request.names


def show(request, value):
    if value is not None:
        request.send(VALUE, repr(value) + "\n")


def end(request, kind, error, trace):
    """Undoes begin. error: what the code raised, or None. Returns 0, or 1 when it raised; its traceback has been sent."""
    try:
        if kind is not None:
            request.send(TRACEBACK, _format(kind, error, trace))
        _write_back(request)
    finally:
        _sinks.pop(get_ident(), None)
        if not _sinks:
            for name, router in _routers.items():
                if getattr(sys, name) is router:
                    setattr(sys, name, router._original)
            _routers.clear()
        _forget_thread()
        request.names = request.before = request.foreign = {}
    return 0 if kind is None else 1


def _format(kind, error, trace):
    import traceback

    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return "".join(traceback.format_exception(kind, error, trace))


def _main_globals():
    main = sys.modules.get("__main__")
    return {} if main is None else main.__dict__


def _foreign_names():
    """Names that are not __main__'s but that a person expects: gc, sys, torch, the locals of running user code."""
    import gc

    names = {"__name__": "__main__", "gc": gc, "sys": sys}
    if "torch" in sys.modules:
        names["torch"] = sys.modules["torch"]
    for frame in reversed(_user_frames()):
        names.update(_locals_of(frame))
    return names


def _user_frames():
    """The main thread's functions of user code, innermost first: its locals win, but `loss` of a training loop is found
    too while the loop is inside the model's forward. Where there is none, the innermost frame there is."""
    frame = sys._current_frames().get(sys.modules["threading"].main_thread().ident)
    innermost = [] if frame is None else [frame]
    frames = []
    while frame is not None and len(frames) < 100:
        if frame.f_code.co_flags & CO_OPTIMIZED and not _is_library(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames or innermost


def _is_library(filename):
    """Of the standard library or an installed package. What came from -c, stdin or a notebook ("<string>") is user code."""
    library = ("<frozen ", "<probing>", _STDLIB)
    return filename.startswith(library) or "/site-packages/" in filename or "/dist-packages/" in filename


def _locals_of(frame):
    snapshot = frame.f_locals
    names = dict(snapshot)
    # Before 3.13 the frame keeps the snapshot, and with it every tensor it names, until it returns. Where nobody else
    # has asked for it (references: the frame, our variable, getrefcount's argument) it is emptied again.
    if type(snapshot) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()
    return names


def _write_back(request):
    """Assignments reach the program: names that are __main__'s or new. A local of a running function cannot be set."""
    target = _main_globals()
    missing = object()
    kept = []
    for name, value in request.names.items():
        if name == "__builtins__" or value is request.before.get(name, missing):
            continue
        if name in request.foreign and name not in request.before:
            if value is not request.foreign[name]:
                kept.append(name)
            continue
        target[name] = value
    for name in request.before:
        if name not in request.names:
            target.pop(name, None)
    if kept:
        text = "note: %s: a local of running code, or a name lent by probing; the assignment ended with this code\n"
        request.send(ERR, text % ", ".join(sorted(kept)))


def _import_threading():
    """Imports threading, which the program may not have done, as if the main thread had.

    Before 3.13 the thread that imports it first is taken for the main thread from then on, and the program fails an
    assertion when it exits: so what the module noted of this thread is put right at once."""
    if "threading" in sys.modules:
        return
    import threading
    import os

    # The oldest thread state is the last one that _current_frames comes across.
    main_ident = list(sys._current_frames())[-1]
    main = threading._main_thread
    if main.ident == main_ident or sys.version_info >= (3, 13):
        return
    sentinel, main._tstate_lock = main._tstate_lock, _allocate_lock()
    main._tstate_lock.acquire()  # what exit expects: held, and released by exit itself
    getattr(threading, "_shutdown_locks", set()).discard(sentinel)
    main._ident = main_ident
    if hasattr(main, "_native_id"):
        main._native_id = os.getpid()
    with threading._active_limbo_lock:
        threading._active.pop(get_ident(), None)
        threading._active[main_ident] = main


def _forget_thread():
    """current_thread() in a thread that Python did not start leaves a _DummyThread behind: take it away again."""
    threading = sys.modules["threading"]
    with threading._active_limbo_lock:
        if isinstance(threading._active.get(get_ident()), threading._DummyThread):
            del threading._active[get_ident()]
