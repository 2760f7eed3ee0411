"""`probing pause --all`: every Python thread but the main one stops at its next line, call or return (src/agent/python/halt.h).

Up to 3.11 each thread gets a trace function in C, which removes itself when the thread continues; a thread with one of its own (a debugger,
coverage) is not stopped, and named. From 3.12 on an event of sys.monitoring is used, under a free tool id. A thread in C code stops when it
returns from there. Threads of probing run on, and threads that code at the prompt starts.
"""
import sys

from _thread import allocate_lock, get_ident

import _probing
from . import _helpers

TURN_S = 0.005
TOOL_IDS = (4, 3, 5, 2, 1, 0)  # first those that Python reserves for no tool; no tool can start while its threads are stopped
GRACE_MS = 5000  # beyond the limit of the pause, which the main thread itself enforces


class Refused(Exception):
    pass


def is_ours(stack):
    return bool(stack) and stack[-1].f_code.co_filename.startswith("<probing>")


def others():
    """The idents of all threads of the program but the main one."""
    main = _probing.main_ident()
    return [ident for ident, _ in _helpers.live_threads() if ident not in (main, get_ident()) and not is_ours(_helpers.frames_of(ident))]


class Halt:
    def __init__(self, limit_ms):
        self.limit_ms, self.tool = limit_ms + GRACE_MS, None
        self.idents, self.refused = [], {}  # ident: why it cannot be stopped
        self.lock, self.over = allocate_lock(), False

    def begin(self):
        if hasattr(sys, "gettotalrefcount"):
            raise Refused("threads of a debug build of Python cannot be stopped")
        if sys.version_info[:2] == (3, 8) and has_audit_hooks():
            raise Refused("threads of Python 3.8 cannot be stopped beside an audit hook (sys.addaudithook)")
        try:
            if sys.version_info >= (3, 12):
                self.take_tool()
            self.look_again()
            if self.tool is not None:
                sys.monitoring.set_events(self.tool, self.events())
        except BaseException:
            self.end()
            raise

    def take_tool(self):
        monitoring = sys.monitoring
        for tool in TOOL_IDS:
            if monitoring.get_tool(tool) is None:
                break
        else:
            raise Refused("the program's tools use every free id of sys.monitoring")
        monitoring.use_tool_id(tool, "probing pause")
        self.tool = tool
        event, mask = 1, self.events()
        while event <= mask:
            if event & mask:
                monitoring.register_callback(tool, event, _probing.halt_event)
            event <<= 1

    @staticmethod
    def events():
        known = sys.monitoring.events
        return known.LINE | known.PY_START | known.PY_RESUME | known.PY_RETURN | known.PY_YIELD | known.JUMP

    def look_again(self):
        """Stops threads that were started meanwhile too."""
        new = [ident for ident in others() if ident not in self.idents]
        if not new:
            return
        if not _probing.halt_begin(new, self.limit_ms):
            raise Refused("there are too many threads")
        self.idents += new
        if self.tool is None:
            for ident in new:
                why = _probing.halt_trace(ident, sys.gettrace)
                if why:
                    self.refused[ident] = why

    def wait(self, timeout_ms):
        """Waits until all have stopped, but no longer than that. Returns those that have not: (name, where, why)."""
        end = _probing.milliseconds() + timeout_ms
        tick = allocate_lock()
        tick.acquire()
        while not self.over and not _probing.closing():
            self.look_again()
            moving = [ident for ident in others() if not _probing.halted(ident)]
            if not [ident for ident in moving if ident not in self.refused] or _probing.milliseconds() > end:
                return [self.describe(ident) for ident in moving]
            tick.acquire(True, TURN_S)
        return []

    def describe(self, ident):
        stack = _helpers.frames_of(ident)
        place = "%s:%d %s" % (stack[0].f_code.co_filename, stack[0].f_lineno or 0, stack[0].f_code.co_name) if stack else None
        why = self.refused.get(ident) or ("it stays in C code, called at %s" % place if place else "it is not in Python")
        return _helpers.Thread(0, ident, None).name, why

    def keep(self):
        """Tells the agent that the main thread is alive. False: the threads were released by the limit."""
        return self.over or _probing.halt_keep(self.limit_ms)

    def end(self):
        with self.lock:
            self.over, tool, self.tool = True, self.tool, None
        _probing.halt_end()
        if tool is not None:
            sys.monitoring.set_events(tool, 0)
            event, mask = 1, self.events()
            while event <= mask:
                if event & mask:
                    sys.monitoring.register_callback(tool, event, None)
                event <<= 1
            sys.monitoring.free_tool_id(tool)


def has_audit_hooks():
    """sys.audit reads its argument only if there is a hook."""
    try:
        sys.audit(None)
    except TypeError:
        return True
    return False
