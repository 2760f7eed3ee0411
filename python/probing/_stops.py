"""A thread held at a breakpoint (_break.py), and its clients, as in `pause`.

A client may connect before the hit, and stays from one hit to the next. One thread is held at a time: hits of others meanwhile are only rows. A
breakpoint without a client within the limit is removed, so that a program is not held again and again.
"""
from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from . import _break, _hooks, _pause
from ._program import forget_thread
from ._streams import OUT

WAIT_S = 0.2
HELP = _pause.HELP.replace("The main thread of the program is stopped.", "A thread of the program is stopped at a breakpoint.")

_claim = allocate_lock()  # held by the thread that is about to be held


class Stop(_pause.Pause):
    """A thread that is held at a breakpoint."""

    help, word = HELP, "break"

    def __init__(self, broken):
        _pause.Pause.__init__(self, broken.limit_ms)
        self.broken, self.why = broken, "a thread is stopped at %s" % broken.text

    def next_client(self):
        return take_client()

    def expire(self, how):
        _pause.Pause.expire(self, how)
        _hooks.note("the breakpoint was taken away")
        self.broken.remove()

    def finish(self):
        """Its client stays for the next hit."""
        session, self.session = self.session, None
        _pause.Pause.finish(self)
        if session is None:
            return
        session.release()
        if session.over or not is_armed() or session.channel.ended() is not None:
            session.served.release()
            return
        session.send(OUT, "it goes on; this waits for the next hit\n")
        clients().append(session)


def claim(broken, frame):
    """The object that holds this thread; None: another thread is held."""
    if not _claim.acquire(False):
        return None
    try:
        before = _pause.current
        if before is None or before.over or before.pid != getpid():
            _pause.current = Stop(broken)
            return _pause.current
        if before.ident != get_ident() or before.stopped_at is not None:
            return None
        before.target, before.passed = None, (id(frame), frame.f_lasti)  # it was stepping
        return before
    finally:
        _claim.release()


def holds(broken):
    held = _pause.current
    return isinstance(held, Stop) and held.broken is broken and held.stopped_at is not None


def keep(broken):
    """The limit of the thread that it holds begins anew."""
    held = _pause.current
    if isinstance(held, Stop) and held.broken is broken:
        held.last_input = _probing.milliseconds()


def let_go(broken):
    """The thread that this breakpoint holds continues."""
    held = _pause.current
    if isinstance(held, Stop) and held.broken is broken:
        held.go_on("continue")


# --- clients, in threads of the agent

def clients():
    return _probing.shared.setdefault("break clients", [])


def take_client(which=None):
    """A waiting one, or that one; None: it does not wait any more."""
    waiting = clients()
    try:
        return waiting.pop(0 if which is None else waiting.index(which))
    except (IndexError, ValueError):
        return None


def is_armed():
    return any(each.stops() for each in list(_break.all_breaks().values()))


def serve_client(channel, typed):
    """A connection while there is a breakpoint, or a thread is held at one."""
    session = _pause.Session(channel, None, typed)
    if not isinstance(_pause.current, Stop):
        channel.write(b"no thread is at a breakpoint yet; this waits for the next hit\n")
    clients().append(session)
    while not session.served.acquire(True, WAIT_S):
        held = isinstance(_pause.current, Stop) and not _pause.current.over
        if _probing.closing() or (channel.ended() is not None or not is_armed() and not held) and take_client(session) is not None:
            break
    forget_thread()
