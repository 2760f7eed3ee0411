"""What runs inside the target for `probing eval` and `probing execute`.

The agent carries this file in itself and, in a thread it started for one request, calls begin, takes the code from
compiled, evaluates what that gives, and calls show and end. The code is evaluated by the agent itself, so that it has no
frames of ours below it, and only it may be interrupted (KeyboardInterrupt from outside), so that what begin set up
is always undone by end. Works on every CPython from 3.6 on.

The state of Python is the program's. Code that only looks (names, attributes, operators) changes nothing that the program could notice:
no module is imported, no stream replaced, no thread known to threading. The modules imported here are in every process.

Given by the agent: _emit, _swap, _local, _main_ident, _milliseconds, _immortal (src/agent/job_python.c) and _shared, a dict
that outlives detach.
"""
import sys

from _thread import allocate_lock as _allocate_lock, get_ident
from _weakref import ref as _weak_reference
from posix import getpid

OUT, ERR, VALUE, TRACEBACK = 1, 2, 3, 4
FRESH_MS = 20
CHUNK = 1 << 16
ONLY_AST = 0x400  # a flag of compile: as ast.parse does it, without the module
OWN_NAMES = ("__name__", "__builtins__")
SCALARS = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice)

# Of the nodes of a syntax tree those that only look. A call of print is allowed too, since print is ours then.
LOOKS = frozenset("""Module Interactive Expression Expr Name Attribute Subscript Index Slice ExtSlice Constant Num Str Bytes NameConstant
    Ellipsis JoinedStr FormattedValue TemplateStr Interpolation Tuple List Dict Set Starred UnaryOp BinOp BoolOp Compare IfExp Lambda
    arguments arg ListComp SetComp DictComp GeneratorExp comprehension keyword Load Store And Or Add Sub Mult MatMult Div Mod Pow LShift RShift
    BitOr BitXor BitAnd FloorDiv Invert Not UAdd USub Eq NotEq Lt LtE Gt GtE Is IsNot In NotIn""".split())
DEFINES = frozenset(["FunctionDef", "AsyncFunctionDef", "ClassDef", "Lambda", "GeneratorExp"])
# What looks into the dict of globals itself and not through its __getitem__: see _Names.
INSIDE = frozenset(["exec", "eval", "globals", "locals", "vars", "dir", "compile"])
STREAMS = frozenset(["stdout", "stderr", "__stdout__", "__stderr__", "redirect_stdout", "redirect_stderr"])

_sinks = _shared.setdefault("sinks", {})  # thread ident -> the request that runs in it
_wanting = _shared.setdefault("wanting", set())  # the requests that need the routers
_used = _shared.setdefault("used", {})  # id -> seat of a router that is in sys, or that the program may hold
_pool = _shared.setdefault("pool", [])  # seats of routers that nobody holds
_owner = _shared.setdefault("owner", [getpid()])  # the process in which all this is true


class _Router:
    """Stands in for sys.stdout or sys.stderr: what a request's thread writes goes to its client, all else passes.

    C code (print) uses sys.stdout without a reference of its own: so a router is never freed. It is always the same stream's
    while anybody may hold it. What a thread of the program gets of it are the stream's own attributes."""

    __slots__ = ("seat",)

    def __getattribute__(self, name):
        return getattr(_stream_behind(self), name)

    def __setattr__(self, name, value):
        setattr(_stream_behind(self), name, value)

    def __delattr__(self, name):
        delattr(_stream_behind(self), name)

    def __dir__(self):
        return dir(_stream_behind(self))

    def __repr__(self):
        return repr(_stream_behind(self))

    def __str__(self):
        return str(_stream_behind(self))

    def __eq__(self, other):
        return _stream_behind(self) == (_stream_behind(other) if type(other) is _Router else other)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(_stream_behind(self))

    def __bool__(self):
        return bool(_stream_behind(self))

    def __iter__(self):
        return iter(_stream_behind(self))

    def __next__(self):
        return next(_stream_behind(self))

    def __enter__(self):
        return _stream_behind(self).__enter__()

    def __exit__(self, *error):
        return _stream_behind(self).__exit__(*error)


class _Seat:
    """What belongs to one router: the stream that it stands in for. Held by reference while the router is in sys or the program holds
    the router; else weakly, for a print that is still at it."""

    __slots__ = ("name", "number", "original", "weak", "router", "references")

    def stream(self):
        found = self.original
        if found is None and self.weak is not None:
            found = self.weak()
        if found is None:
            found = sys.__dict__.get(self.name)
            if type(found) is _Router:
                found = _seat_of(found).original
        return found


_Router = _shared.setdefault("Router", _Router)  # that of an earlier agent, whose routers may be in use
_seat_of = _Router.__dict__["seat"].__get__


def _stream_behind(router):
    seat = _seat_of(router)
    request = _sinks.get(get_ident())
    if request is not None and not request.ended and _owner[0] == getpid():
        return _ClientStream(request, seat)
    _heal(seat)
    return seat.stream()


def _heal(seat):
    """Takes the router out of sys where no request needs it: the program had saved it and put it back, or this is a forked child."""
    if _owner[0] != getpid():
        _forget_parent()
    if not _wanting and sys.__dict__.get(seat.name) is seat.router and seat.original is not None:
        _swap(sys.__dict__, seat.name, seat.router, seat.original, _wanting)


def _forget_parent():
    """In a forked child no request of the parent runs."""
    _sinks.clear()
    _wanting.clear()
    _owner[0] = getpid()


def _install(request):
    """Puts the routers in place. A stream that is None or missing gets none: print and others ask for None itself. Nor does a
    free-threaded 3.13, where the agent cannot look and store in one step."""
    if sys.version_info < (3, 14) and "free-threading" in sys.version:
        return
    _wanting.add(request)
    for name, number in (("stdout", OUT), ("stderr", ERR)):
        for _ in range(100):  # as long as the program assigns between our look and our store
            current = sys.__dict__.get(name)
            if current is None or type(current) is _Router:
                break
            seat = _take_seat(name, number, current)
            if _swap(sys.__dict__, name, current, seat.router, None):
                break
            _leave_seat(seat)


def _uninstall(request):
    """The last request takes the routers out, where they still are: what the program put there meanwhile stays. A request that begins
    now is in _wanting before it looks, which the agent checks in the same step as it stores."""
    _wanting.discard(request)
    for seat in list(_used.values()):
        if sys.__dict__.get(seat.name) is seat.router:
            if not _swap(sys.__dict__, seat.name, seat.router, seat.original, _wanting):
                continue
        if not _wanting and _references(seat) <= seat.references:
            _leave_seat(seat)


def _references(seat):
    return sys.getrefcount(seat.router)


def _take_seat(name, number, original):
    """A router for this stream: one that stood for it before or whose stream is gone, so that a print that is still at a router never
    finds itself at another stream; or a new one, for ever."""
    for seat in list(_pool):
        before = seat.weak and seat.weak()
        if seat.name == name and (before is None or before is original):
            try:
                _pool.remove(seat)
            except ValueError:  # another request has taken it
                continue
            seat.original = original
            _used[id(seat)] = seat
            return seat
    seat = _Seat()
    seat.name, seat.number, seat.original, seat.weak = name, number, original, None
    seat.router = object.__new__(_Router)
    _Router.__dict__["seat"].__set__(seat.router, seat)
    _immortal(seat.router)
    seat.references = _references(seat)
    _used[id(seat)] = seat
    return seat


def _leave_seat(seat):
    if _used.pop(id(seat), None) is None:  # another request has done it
        return
    original = seat.original
    try:
        seat.weak = _weak_reference(original)
    except TypeError:
        seat.weak = None
    seat.original = None
    _pool.append(seat)


class _ClientStream:
    """sys.stdout or sys.stderr as a request's code sees it. Once the request is over, the stream of the program."""

    def __init__(self, request, seat):
        self._request, self._seat = request, seat

    def write(self, text):
        if self._request.ended:
            return self._seat.stream().write(text)
        self._request.send(self._seat.number, text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        if self._request.ended:
            self._seat.stream().flush()

    def isatty(self):
        return False

    @property
    def buffer(self):
        return self._seat.stream().buffer if self._request.ended else _ClientBytes(self)

    def __getattr__(self, name):
        return getattr(self._seat.stream(), name)


class _ClientBytes:
    """sys.stdout.buffer as a request's code sees it."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, data):
        self._stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self):
        self._stream.flush()

    def __getattr__(self, name):
        return getattr(self._stream._seat.stream().buffer, name)


class _Names(dict):
    """The globals of a request's code: __main__ as it is now, then what is lent; assignments reach __main__ at once.

    Code asks a dict of its own type by __getitem__, which answers with what is true now. But for a class body, which
    looks inside on every version, and what is in INSIDE: for those (copy) the dict holds a copy of all names from the beginning. What is in there and
    not as at the beginning was put there by a `global` statement, which stores past __setitem__. A name that is
    lent (a local of running code) cannot be given to anybody: an assignment to it is kept here, and ends with the code."""

    def __init__(self, copy, own_print):
        self.own_print = own_print
        self.known, self.known_at, self.ended = (), None, False
        self.kept = set()
        self.first = {}
        if copy:
            self.first = {name: self.lend(name) for name in self.lent() if self.can_lend(name)}
            self.first.update(_main_globals())
        self.first.update(__name__="__main__", __builtins__=__builtins__)
        dict.__init__(self, self.first)

    def lent(self):
        """The names that are lent, not older than a moment: a loop in an eval sees the program move on. Only names: the values belong
        to the program, and are asked for one by one."""
        now = _milliseconds()
        if not self.ended and (self.known_at is None or now - self.known_at > FRESH_MS):
            modules = [name for name in ("gc", "sys", "torch") if name != "torch" or name in sys.modules]
            self.known, self.known_at = frozenset(_frame_local(None) + modules), now
        return self.known

    def lend(self, name):
        if name not in self.lent():
            raise KeyError(name)
        try:
            return _frame_local(name)
        except KeyError:  # its function has returned, or it is a module
            pass
        return sys.modules["torch"] if name == "torch" else {"gc": _gc, "sys": lambda: sys}[name]()

    def can_lend(self, name):
        try:
            self.lend(name)
        except KeyError:
            return False
        return True

    def is_own(self, name):
        return name in OWN_NAMES or name in self.kept or dict.get(self, name, self) is not self.first.get(name, self)

    def __getitem__(self, name):
        if self.is_own(name):
            return dict.__getitem__(self, name)
        main = _main_globals()
        if name in main:
            return main[name]
        if name == "print" and self.own_print is not None and not self.ended:
            return self.own_print
        return self.lend(name)

    def __setitem__(self, name, value):
        lent = name not in _main_globals() and self.can_lend(name)
        if not lent:
            _main_globals()[name] = self.first[name] = value
        elif value is self.lend(name):  # import sys
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
        return self.is_own(name) or name in _main_globals() or self.can_lend(name)

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self):
        own = [name for name in dict.keys(self) if self.is_own(name)]
        return iter(dict.fromkeys(own + list(_main_globals()) + list(self.lent())))

    def keys(self):
        return list(self)

    def items(self):
        return [(name, self[name]) for name in self if name in self]

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
        self.known, self.kept, self.ended = (), set(), True
        dict.clear(self)
        dict.update(self, self.first)
        return kept


class _Request:
    """One piece of code, its names, and the way back to the client."""

    def __init__(self, number, source, filename):
        self.prefix = number.to_bytes(8, "little")
        self.source = source
        self.filename = filename
        self.ended = self.streams_replaced = self.only_looks = self.defines = False
        self.parts = self.error = self.lines = self.names = None

    def send(self, stream, text):
        """Waits for room. When the client is gone for good the text is dropped: it is not the program's."""
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        for at in range(0, len(text), CHUNK):  # else 100 MB were three times in memory
            if not _emit(self.prefix + bytes([stream]) + text[at:at + CHUNK].encode("utf-8", "backslashreplace")):
                return

    def replace_streams(self):
        if not self.streams_replaced:
            self.streams_replaced = True
            _install(self)

    def print(self, *values, **options):
        """print for the request's code: to its client, whatever the program has in sys.stdout."""
        if options.get("file") is not None or not options.keys() <= {"sep", "end", "file", "flush"}:
            self.replace_streams()
            print(*values, **options)
            return
        sep, end = options.get("sep"), options.get("end")
        for name, text in (("sep", sep), ("end", end)):
            if text is not None and not isinstance(text, str):
                raise TypeError("%s must be None or a string, not %s" % (name, type(text).__name__))
        if not all(map(_is_plain, values)):  # its __str__ may print
            self.replace_streams()
        text = (" " if sep is None else sep).join(map(str, values))
        self.send(OUT, text + ("\n" if end is None else end))


def begin(number, source, filename, keep_value):
    if _owner[0] != getpid():
        _forget_parent()
    request = _Request(number, source.decode("utf-8", "replace"), filename)
    _sinks[get_ident()] = request
    try:
        _prepare(request, bool(keep_value))
    except BaseException as error:  # a syntax error, say: raised again where the code would run
        request.error = error
    return request


def _prepare(request, keep_value):
    tree = compile(request.source, request.filename, "exec", ONLY_AST, True)
    looks, inside, streams, request.defines = _survey(tree)
    request.only_looks = looks and not ("print" in _main_globals() and "print" in request.source)
    request.names = _Names(inside, None if streams else request.print)
    if not request.only_looks:
        _import_threading()
        request.replace_streams()
        _remember_lines(request)
    last = None
    if keep_value and tree.body and type(tree.body[-1]).__name__ == "Expr":
        expression = compile("0", request.filename, "eval", ONLY_AST, True)
        expression.body = tree.body.pop().value
        last = compile(expression, request.filename, "eval", 0, True)
    request.parts = compile(tree, request.filename, "exec", 0, True), last, request.names


def _survey(tree):
    """Whether the code only looks, needs its names copied, concerns the streams, defines something that may be called later."""
    looks, inside, streams, defines, todo = True, False, False, False, [tree]
    while todo:
        node = todo.pop()
        kind = type(node).__name__
        if isinstance(node, list):
            todo.extend(node)
            continue
        if not hasattr(node, "_fields"):
            continue
        if kind == "Call":
            looks = looks and getattr(node.func, "id", None) == "print"
        elif kind not in LOOKS:
            looks = False
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
        inside = inside or kind in ("ClassDef", "Global") or name in INSIDE
        streams = streams or name in STREAMS
        defines = defines or kind in DEFINES
        todo.extend(getattr(node, field, None) for field in node._fields)
    return looks, inside, streams, defines


def compiled(request):
    """(code to execute, code whose value is shown or None, the names for both)."""
    if request.error is not None:
        raise request.error
    return request.parts


def show(request, value):
    if value is not None:
        if not _is_plain(value):  # its __repr__ may print
            request.replace_streams()
        request.send(VALUE, repr(value) + "\n")


def _is_plain(value):
    """Made of built-in types alone, whose repr runs nobody's code."""
    todo, seen = [value], 0
    while todo and seen < 1000:
        item = todo.pop()
        seen += 1
        if type(item) in (list, tuple, set, frozenset):
            todo.extend(item)
        elif type(item) is dict:
            todo.extend(item.keys())
            todo.extend(item.values())
        elif type(item) not in SCALARS:
            return False
    return not todo


def settle():
    """Code in which an interrupt that comes too late may strike."""
    for _ in range(100):
        pass


def end(request, kind, error, trace):
    """Undoes begin. error: what the code raised, or None. Returns 0, or 1 when it raised; its traceback has been sent."""
    try:
        if kind is not None:
            request.send(TRACEBACK, _format(request, kind, error, trace))
            if issubclass(kind, NameError) and "free-threading" in sys.version:
                request.send(ERR, "note: a free-threaded Python has no moment at which locals of running code could be read\n")
        kept = request.names.end() if request.names is not None else ()
        if kept:
            text = "note: %s: a local of running code, or a name lent by probing; the assignment ended with this code\n"
            request.send(ERR, text % ", ".join(kept))
    finally:
        request.ended = True
        request.error = request.parts = None
        _sinks.pop(get_ident(), None)
        if request.streams_replaced:
            _uninstall(request)
        if not request.defines:
            _forget_lines(request)
        _forget_thread()
    return 0 if kind is None else 1


def _format(request, kind, error, trace):
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    if request.only_looks and "traceback" not in sys.modules and error.__cause__ is error.__context__ is None:
        return _format_plainly(request, kind, error, trace)
    import traceback

    _remember_lines(request)
    told = traceback.TracebackException(kind, error, trace)
    told.stack[:] = [frame for frame in told.stack if frame.filename != "<probing>"]  # our print, which called a __str__
    return "".join(told.format())


def _format_plainly(request, kind, error, trace):
    """As traceback does it, without importing that. Source lines of the request's own code only."""
    lines, source = ["Traceback (most recent call last):\n"], request.source.splitlines()
    while trace is not None:
        code, number = trace.tb_frame.f_code, trace.tb_lineno
        lines.append('  File "%s", line %d, in %s\n' % (code.co_filename, number, code.co_name))
        if code.co_filename == request.filename and 0 < number <= len(source):
            lines.append("    %s\n" % source[number - 1].strip())
        trace = trace.tb_next
    module, text = kind.__module__, str(error)
    name = kind.__qualname__ if module in ("builtins", "__main__") else module + "." + kind.__qualname__
    return "".join(lines) + (name + ": " + text if text else name) + "\n"


def _remember_lines(request):
    """For tracebacks, also those that the code prints itself."""
    if request.lines is None:
        import linecache

        request.lines = request.source.splitlines(True)
        linecache.cache[request.filename] = (len(request.source), None, request.lines, request.filename)


def _forget_lines(request):
    cache = sys.modules["linecache"].cache if request.lines is not None and "linecache" in sys.modules else {}
    entry = cache.get(request.filename)
    if entry is not None and entry[2] is request.lines:
        cache.pop(request.filename, None)


def _main_globals():
    main = sys.modules.get("__main__")
    return {} if main is None else main.__dict__


def _gc():
    import gc

    return gc


def _frame_local(name):
    """A local of the functions that the main thread executes; None: a list of their names. The agent checks its knowledge of frames against
    this function, whose first local is its argument."""
    return _local(name, _stdlib())


def _stdlib():
    """The folder of the standard library with a slash at its end; "" where nothing tells."""
    path = getattr(sys.modules.get("os") or sys.modules.get("encodings"), "__file__", None) or ""
    folder = path.replace("/encodings/", "/").rpartition("/")[0]
    return folder + "/" if folder else ""


def _import_threading():
    """Imports threading, which the program may not have done, as if the main thread had.

    Before 3.13 the thread that imports it first is taken for the main thread from then on, and the program fails an
    assertion when it exits: so what the module noted of this thread is put right at once."""
    if "threading" in sys.modules or not hasattr(sys, "stderr"):  # without which it cannot be imported by anybody
        return
    import threading

    main, main_ident = threading._main_thread, _main_ident()
    if sys.version_info >= (3, 13) or main.ident == main_ident or main_ident == 0:
        return
    sentinel, main._tstate_lock = main._tstate_lock, _allocate_lock()
    main._tstate_lock.acquire()  # what exit expects: held, and released by exit itself
    getattr(threading, "_shutdown_locks", set()).discard(sentinel)
    main._ident = main_ident
    if hasattr(main, "_native_id"):
        main._native_id = getpid()
    with threading._active_limbo_lock:
        threading._active.pop(get_ident(), None)
        threading._active[main_ident] = main


def _forget_thread():
    """current_thread() in a thread that Python did not start leaves a _DummyThread behind: take it away again."""
    threading = sys.modules.get("threading")
    if get_ident() not in getattr(threading, "_active", ()):
        return
    with threading._active_limbo_lock:
        if isinstance(threading._active.get(get_ident()), threading._DummyThread):
            del threading._active[get_ident()]


class Channel:
    """A stream of bytes to and from one client (src/agent/channel.h). Any thread may use it, and keep it for ever."""

    __slots__ = ("read", "ended", "interrupted", "evaluate", "_write", "_close")
    # read(timeout_ms=-1): bytes; b"" when no more will come; None when none came in time. Raises KeyboardInterrupt when the client interrupts.
    # ended(): None, or why the channel has ended, as soon as its client is gone.
    # interrupted(): whether the client interrupted since it was last asked, while neither read nor evaluate ran.
    # evaluate(code, globals, locals): runs a code object; an interrupt, or the client's going, raises KeyboardInterrupt in it.

    def __init__(self, functions):
        self.read, self.ended, self.interrupted = functions["read"], functions["ended"], functions["interrupted"]
        self.evaluate, self._write, self._close = functions["evaluate"], functions["write"], functions["close"]

    def write(self, data, timeout_ms=10000):
        """Waits for room without the GIL. False: nobody reads it any more. A client that does not read for that long is given up, so
        that code which prints with a lock held does not hold the program."""
        for at in range(0, len(data), CHUNK):
            piece = bytes(data[at:at + CHUNK])
            taken = self._write(piece, timeout_ms)
            if taken is None:  # KeyboardInterrupt is on its way
                return True
            if 0 <= taken < len(piece):
                self.close("the client does not read", 1)
            if taken < len(piece):
                return False
        return True

    def close(self, reason="", status=0):
        """The client gets what was written, then the end with this reason."""
        self._close(status, reason)


def serve(kind, arguments, functions):
    """A channel of that kind, in a thread of its own: KINDS says what it is for. When this returns the channel is closed."""
    channel = Channel(functions)
    try:
        if kind in KINDS:
            KINDS[kind](arguments, channel)
        else:
            channel.close("this agent knows no channel of kind %r; detach and inject the newer release" % kind, 1)
    finally:
        _forget_thread()


def _serve_code(arguments, channel):
    """The arguments are Python code that uses the name channel."""
    names = {"__name__": "__probing__", "__builtins__": __builtins__, "channel": channel}
    exec(compile(arguments, "<channel>", "exec", 0, True), names)


KINDS = {"code": _serve_code}
