"""What runs inside the target for `probing eval` and `probing execute`.

The agent carries this file in itself and, in a thread it started for one request, calls begin, compiles the code by
compiled, evaluates what that gives, and calls end. The code is evaluated by the agent itself, so that it has no
frames of ours below it, and only it may be interrupted (KeyboardInterrupt from outside), so that what begin set up
is always undone by end. Works on every CPython from 3.6 on; imports the standard library only.
"""
import sys

from time import monotonic
from _thread import allocate_lock as _allocate_lock, get_ident

OUT, ERR, VALUE, TRACEBACK = 1, 2, 3, 4
CO_OPTIMIZED = 1
FRESH_S = 0.02
OWN_NAMES = ("__name__", "__builtins__")
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


class _Names(dict):
    """The globals of a request's code: __main__ as it is now, then what is lent; assignments reach __main__ at once.

    Code asks a dict of its own type by __getitem__, which answers with what is true now. But for a class body, which
    looks inside on every version: for it the dict holds a copy of all names from the beginning. What is in there and
    not as at the beginning was put there by a `global` statement, which stores past __setitem__. A name that is
    lent (a local of running code) cannot be given to anybody: an assignment to it is kept here, and ends with the code."""

    def __init__(self, may_clear):
        self.may_clear = may_clear
        self.lent, self.lent_at, self.ended = {}, None, False
        self.kept = set()
        self.first = dict(self.borrowed())
        self.first.update(_main_globals())
        self.first.update(__name__="__main__", __builtins__=__builtins__)
        dict.__init__(self, self.first)

    def borrowed(self):
        """The lent names, not older than a moment: a loop in an eval sees the program move on."""
        if not self.ended and (self.lent_at is None or monotonic() - self.lent_at > FRESH_S):
            self.lent, self.lent_at = _lent_names(self.may_clear), monotonic()
        return self.lent

    def is_own(self, name):
        return name in OWN_NAMES or name in self.kept or dict.get(self, name, self) is not self.first.get(name, self)

    def __getitem__(self, name):
        if self.is_own(name):
            return dict.__getitem__(self, name)
        main = _main_globals()
        return main[name] if name in main else self.borrowed()[name]

    def __setitem__(self, name, value):
        lent = {} if name in _main_globals() else self.borrowed()
        if name not in lent:
            _main_globals()[name] = self.first[name] = value
        elif value is lent[name]:  # import sys
            return
        else:
            self.kept.add(name)
        dict.__setitem__(self, name, value)

    def __delitem__(self, name):
        if not self.is_own(name):
            del _main_globals()[name]
        self.kept.discard(name)
        self.first.pop(name, None)
        dict.pop(self, name, None)

    def __contains__(self, name):
        return self.is_own(name) or name in _main_globals() or name in self.borrowed()

    def get(self, name, default=None):
        return self[name] if name in self else default

    def __iter__(self):
        own = [name for name in dict.keys(self) if self.is_own(name)]
        return iter(dict.fromkeys([*own, *_main_globals(), *self.borrowed()]))

    def keys(self):
        return list(self)

    def items(self):
        return [(name, self[name]) for name in self]

    def end(self):
        """Gives __main__ what `global` statements did, and lets go of everything. Returns names that were kept here."""
        main, kept = _main_globals(), sorted(self.kept)
        for name, value in list(dict.items(self)):
            if name not in self.kept and name not in OWN_NAMES and value is not self.first.get(name, self):
                main[name] = value
        for name in list(self.first):
            if not dict.__contains__(self, name):
                main.pop(name, None)
        self.first = {"__name__": "__main__", "__builtins__": __builtins__}
        self.lent, self.kept, self.ended = {}, set(), True
        dict.clear(self)
        dict.update(self, self.first)
        return kept


class _Request:
    """One piece of code, its names, and the way back to the client."""

    def __init__(self, number, source, filename, keep_value, emit, may_clear):
        self.prefix = number.to_bytes(8, "little")
        self.source = source
        self.filename = filename
        self.keep_value = keep_value
        self.emit = emit
        self.names = _Names(may_clear)

    def send(self, stream, text):
        """False when the client is gone for good: then the text belongs to the original stream."""
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        return self.emit(self.prefix + bytes([stream]) + text.encode("utf-8", "backslashreplace"))


def begin(number, source, filename, keep_value, emit, may_clear):
    """may_clear: nobody traces or profiles, so that a frame's snapshot of its locals may be emptied again."""
    _import_threading()
    request = _Request(number, source.decode("utf-8", "replace"), filename, bool(keep_value), emit, may_clear)
    originals = [(name, getattr(sys, name, None), stream) for name, stream in (("stdout", OUT), ("stderr", ERR))]
    _sinks[get_ident()] = request
    if len(_sinks) == 1:
        for name, original, stream in originals:
            _routers[name] = _Router(original, stream)
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
        kept = request.names.end()
        if kept:
            text = "note: %s: a local of running code, or a name lent by probing; the assignment ended with this code\n"
            request.send(ERR, text % ", ".join(kept))
    finally:
        _sinks.pop(get_ident(), None)
        if not _sinks:
            for name, router in list(_routers.items()):
                if getattr(sys, name, None) is router:
                    setattr(sys, name, router._original)
            _routers.clear()
        _forget_thread()
    return 0 if kind is None else 1


def _format(kind, error, trace):
    import traceback

    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return "".join(traceback.format_exception(kind, error, trace))


def _main_globals():
    main = sys.modules.get("__main__")
    return {} if main is None else main.__dict__


def _lent_names(may_clear):
    """Names that are not __main__'s but that a person expects: gc, sys, torch, the locals of running user code."""
    import gc

    names = {"gc": gc, "sys": sys}
    if "torch" in sys.modules:
        names["torch"] = sys.modules["torch"]
    for frame in reversed(_user_frames()):
        names.update(_locals_of(frame, may_clear))
    return names


def _user_frames():
    """The main thread's functions of user code, innermost first: its locals win, but `loss` of a training loop is found
    too while the loop is inside the model's forward. Where there is none, the innermost function there is."""
    frame = sys._current_frames().get(sys.modules["threading"].main_thread().ident)
    functions = []
    while frame is not None and len(functions) < 200:
        if frame.f_code.co_flags & CO_OPTIMIZED:  # the locals of a module are its globals
            functions.append(frame)
        frame = frame.f_back
    return [frame for frame in functions if not _is_library(frame.f_code.co_filename)] or functions[:1]


def _is_library(filename):
    """Of the standard library or an installed package. What came from -c, stdin or a notebook ("<string>") is user code."""
    library = ("<frozen ", "<probing>", _STDLIB)
    return filename.startswith(library) or "/site-packages/" in filename or "/dist-packages/" in filename


def _locals_of(frame, may_clear):
    snapshot = frame.f_locals
    names = dict(snapshot)
    # Before 3.13 the frame keeps the snapshot, and with it every tensor it names, until it returns. Where nobody else
    # has asked for it (references: the frame, our variable, getrefcount's argument) it is emptied again; never
    # while somebody traces, who may be about to write the snapshot back into the frame.
    if may_clear and type(snapshot) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(snapshot) <= 3:
        snapshot.clear()
    return names


def _import_threading():
    """Imports threading, which the program may not have done, as if the main thread had.

    Before 3.13 the thread that imports it first is taken for the main thread from then on, and the program fails an
    assertion when it exits: so what the module noted of this thread is put right at once."""
    if "threading" in sys.modules:
        return
    import os

    bare = not hasattr(sys, "stderr")
    if bare:  # without which threading cannot be imported at all
        sys.stderr = None
    import threading

    if bare:
        del sys.stderr

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
