"""The debugger's events before Python 3.12: a trace function in the main thread and in threads that begin later (_dap_engine.py).

It is asked at every call, and stays only with functions that have a breakpoint or that a step goes through. A frame that keeps a trace function
after tracing ended would up to 3.9 tell the wrong line in tracebacks: at the end they are taken from all frames, those of generators included.
"""
import sys

from _thread import get_ident

from . import _dap_engine, _helpers
from ._dap_engine import SUSPENDS, Refused, is_outermost
from ._program import import_threading, is_of_program

KNOWN_MAX = 10000
# Instructions of 3.6 to 3.11. The module opcode would map a library into the program.
RETURN_VALUE, YIELD_VALUE = 83, 86
YIELD_FROM, SEND = (72, -2) if sys.version_info < (3, 11) else (-2, 123)
OWN_TRACE = "has a trace function of its own (a debugger, coverage), and before Python 3.12 there is one only: it does not stop"


class Tracing:
    tool = None

    def __init__(self, debugger):
        self.debugger = debugger
        self.plain = {}       # id -> code that no breakpoint is in
        self.generators = {}  # id -> frame of a generator that has our trace function
        self.raised = {}      # id of a frame -> the exception that was last raised in it
        self.threads = set()  # that have the trace function

    def begin(self):
        import_threading()
        threading = sys.modules.get("threading")
        if threading is not None and threading._trace_hook is None:
            threading.settrace(in_thread)
        self.debugger.in_main(self.begin_main)

    def begin_main(self, frame):
        if self.debugger.over:
            return
        if sys.gettrace() is None:
            sys.settrace(in_thread)
        if sys.gettrace() is in_thread:
            self.threads.add(get_ident())
            self.mark(get_ident())
        else:
            self.debugger.listener.output("stderr", "the main thread %s\n" % OWN_TRACE, None)

    def end(self):
        threading = sys.modules.get("threading")
        if threading is not None and threading._trace_hook is in_thread:
            threading.settrace(None)
        for ident, _ in _helpers.all_threads():
            for frame in _helpers.frames_of(ident):
                unmark(frame)
        for frame in list(self.generators.values()):
            unmark(frame)
        self.generators.clear()
        self.raised.clear()
        self.plain.clear()
        try:
            self.debugger.in_main(leave_thread)
        except Refused:
            pass  # it leaves by itself at its next call

    def update(self, codes=()):
        self.plain.clear()
        for ident in list(self.threads):
            self.mark(ident)

    def mark(self, ident):
        """Gives the trace function to frames that run already."""
        for frame in _helpers.frames_of(ident):
            if self.wants(frame, ident):
                self.set_trace(frame)

    def set_trace(self, frame):
        if frame.f_trace is None and not frame.f_code.co_filename.startswith("<probing>"):
            frame.f_trace = in_frame
            if frame.f_code.co_flags & SUSPENDS:
                self.generators[id(frame)] = frame

    def wants(self, frame, ident):
        debugger, code = self.debugger, frame.f_code
        if ident in debugger.pausing or (debugger.raised and debugger.is_mine(code)) or (debugger.uncaught and is_outermost(frame)):
            return True
        step = debugger.steps.get(ident)
        if step is not None and (step.frame is frame or (step.frame is None and debugger.is_mine(code))):
            return True
        if not debugger.files or self.plain.get(id(code)) is code:
            return False
        if debugger.holds_place(code):
            return True
        if len(self.plain) >= KNOWN_MAX:
            self.plain.clear()
        self.plain[id(code)] = code
        return False

    def arm(self, step, frame):
        self.set_trace(frame)

    def begin_step(self, step, stop):
        for frame in stop.stack:
            if frame is stop.stack[0] or self.debugger.is_mine(frame.f_code):
                self.set_trace(frame)

    def end_step(self, step):
        pass

    def pause(self, ident):
        if ident not in self.threads:
            self.debugger.pausing.discard(ident)
            raise Refused("before Python 3.12 the main thread can be stopped, and threads that began after the debugger came")
        self.mark(ident)

    def can_step(self):
        return sys.gettrace() is in_thread

    def leaves(self, frame, value):
        """A function returns, yields or is left by an exception: a trace function is told so in one word."""
        debugger = self.debugger
        raised = self.raised.pop(id(frame), None)
        how = "returns" if value is not None and not frame.f_code.co_flags & SUSPENDS else how_left(frame)
        if how == "raises" and raised is not None:
            debugger.at_unwind(frame, *raised)
            raised = None
        else:
            debugger.at_return(frame, how == "yields")
        if how != "yields":
            self.generators.pop(id(frame), None)


def unmark(frame):
    if frame.f_trace is in_frame:
        frame.f_trace = None


def leave_thread(frame=None):
    if sys.gettrace() is in_thread:
        sys.settrace(None)


def in_thread(frame, event, argument):
    """The trace function of a thread: asked at every call."""
    debugger = _dap_engine.of_here()
    if debugger is None:
        leave_thread()
        return None
    if frame.f_code.co_filename.startswith("<probing>"):
        return None
    engine, ident = debugger.engine, get_ident()
    try:
        engine.threads.add(ident)
        if debugger.functions or debugger.steps:
            debugger.at_start(frame)
        if engine.wants(frame, ident):
            if frame.f_code.co_flags & SUSPENDS:
                engine.generators[id(frame)] = frame
            return in_frame
    except BaseException as error:
        if is_of_program(error):
            raise
    return None


def in_frame(frame, event, argument):
    """The trace function of a frame."""
    debugger = _dap_engine.of_here()
    if debugger is None:
        unmark(frame)
        return None
    try:
        if event == "line":
            debugger.at_line(frame, frame.f_lineno)
        elif event == "exception":
            error, trace = argument[1], argument[2]
            if debugger.uncaught and is_outermost(frame):  # of others it would keep what the program has let go of
                debugger.engine.raised[id(frame)] = error, trace
            debugger.at_raise(frame, error, trace)
        elif event == "return":
            debugger.engine.leaves(frame, argument)
    except BaseException as error:
        if is_of_program(error):
            raise
    return in_frame


def how_left(frame):
    """Told by the instruction that the frame is at. What waits in a `yield from` stands before it (up to 3.10)."""
    code, last = frame.f_code.co_code, frame.f_lasti
    here, following = [code[at] if 0 <= at < len(code) else -1 for at in (last, last + 2)]
    if frame.f_code.co_flags & SUSPENDS and (here in (YIELD_VALUE, SEND) or following == YIELD_FROM):
        return "yields"
    return "returns" if here == RETURN_VALUE else "raises"
