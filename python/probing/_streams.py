"""The output of code that is run from outside: stand-ins for sys.stdout and sys.stderr.

A request's thread writes to its client, every other thread to the stream of the program. The stand-ins outlive detach, since a program may keep
them: their state is in _probing.shared, which does too.
"""
import sys

import _probing
from _thread import get_ident
from _weakref import ref as _weak_reference
from posix import getpid

OUT, ERR, VALUE, TRACEBACK = 1, 2, 3, 4

sinks = _probing.shared.setdefault("sinks", {})  # thread ident -> the request that runs in it
_wanting = _probing.shared.setdefault("wanting", set())  # the requests that need the routers
_used = _probing.shared.setdefault("used", {})  # id -> seat of a router that is in sys, or that the program may reference
_pool = _probing.shared.setdefault("pool", [])  # seats of routers that nobody references
owner = _probing.shared.setdefault("owner", [getpid()])  # the process for which all this is valid


class _Router:
    """Stands in for sys.stdout or sys.stderr: output of a request's thread goes to its client, all other output to the stream.

    C code (print) uses sys.stdout without a reference of its own: so a router is never freed. It stands for the same stream while anybody may
    reference it. Threads of the program get the stream's own attributes."""

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


class _NeverClosed:
    """Operations on the program's stream that a request's code must not do, to which sys.stdout is that stream: closing or detaching it. The
    request's own stand-in ends with the request. _behind() is the stream of the program; is_over(): the request has ended, and this is just that
    stream."""

    def close(self):
        if self.is_over():
            self._behind().close()

    def detach(self):
        if self.is_over():
            return self._behind().detach()
        raise ValueError("the stream belongs to probing, for as long as this code runs")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __getattr__(self, name):
        return getattr(self._behind(), name)


class _Seat:
    """The stream of one router. A strong reference while the router is in sys or the program references the router; else a weak one, for a print
    that still uses it."""

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


_Router = _probing.shared.setdefault("Router", _Router)  # that of an earlier agent, whose routers may be in use
_seat_of = _Router.__dict__["seat"].__get__


def _stream_behind(router):
    seat = _seat_of(router)
    request = sinks.get(get_ident())
    if request is not None and not request.ended and owner[0] == getpid():
        return _ClientStream(request, seat)
    _heal(seat)
    return seat.stream()


def _heal(seat):
    """Removes the router from sys if no request needs it: the program had saved it and put it back, or this is a forked child."""
    if owner[0] != getpid():
        forget_parent()
    if not _wanting and sys.__dict__.get(seat.name) is seat.router and seat.original is not None:
        _probing.swap(sys.__dict__, seat.name, seat.router, seat.original, _wanting)


def forget_parent():
    """In a forked child no request of the parent runs."""
    sinks.clear()
    _wanting.clear()
    owner[0] = getpid()


def install(request):
    """Installs the routers. A stream that is None or missing gets none: print and others check for None itself. Nor does a free-threaded 3.13,
    where the agent cannot compare and store in one step."""
    if sys.version_info < (3, 14) and "free-threading" in sys.version:
        return
    _wanting.add(request)
    for name, number in (("stdout", OUT), ("stderr", ERR)):
        for _ in range(100):  # as long as the program assigns between our comparison and our store
            current = sys.__dict__.get(name)
            if current is None or type(current) is _Router:
                break
            seat = _take_seat(name, number, current)
            if _probing.swap(sys.__dict__, name, current, seat.router, None):
                break
            _leave_seat(seat)


def uninstall(request):
    """The last request removes the routers, if they are still there: a stream that the program set meanwhile stays. A request that begins now is
    in _wanting before it checks, which the agent verifies in the same step as it stores."""
    _wanting.discard(request)
    for seat in list(_used.values()):
        if sys.__dict__.get(seat.name) is seat.router:
            if not _probing.swap(sys.__dict__, seat.name, seat.router, seat.original, _wanting):
                continue
        if not _wanting and _references(seat) <= seat.references:
            _leave_seat(seat)


def _references(seat):
    return sys.getrefcount(seat.router)


def _take_seat(name, number, original):
    """A router for this stream: one that stood for it before or whose stream is gone, so that a print that still uses a router never writes to
    another stream; or a new one, which is never freed."""
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
    _probing.immortal(seat.router)
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


class _ClientStream(_NeverClosed):
    """sys.stdout or sys.stderr as a request's code sees it. Once the request is over, the stream of the program."""

    def __init__(self, request, seat):
        self._request, self._seat = request, seat

    def is_over(self):
        return self._request.ended

    def _behind(self):
        return self._seat.stream()

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


class _ClientBytes(_NeverClosed):
    """sys.stdout.buffer as a request's code sees it."""

    def __init__(self, stream):
        self._stream = stream

    def is_over(self):
        return self._stream.is_over()

    def _behind(self):
        return self._stream._behind().buffer

    def write(self, data):
        self._stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self):
        self._stream.flush()
