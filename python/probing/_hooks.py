"""Where the running program calls us: sys.monitoring from 3.12 on, with events of single functions; before that a trace function.

A function (its code object) is hooked for calls (src/agent/module_trace.c records them) and for the functions that it calls. What is
hooked is kept in _probing.shared, since this module goes with the agent while a thread may still be inside a hook. One thread looks ten times a second
whether something has run out or the agent was detached, and takes the hooks away. A forked child has no such thread: its hooks take themselves out.

Before 3.12 there are no events of single functions. The main thread and threads that begin later get a trace function, which looks at every call and
stays away from functions that are not hooked. A thread that has a trace function (a debugger, coverage) keeps it and is not traced.
"""
import sys

from _thread import allocate_lock, start_new_thread
from posix import getpid

import _probing
from ._program import import_threading, is_of_program

MONITORED = sys.version_info >= (3, 12)
TOOLS = (4, 3)  # numbers that PEP 669 gives to nobody
TICK_S, MAIN_MS = 0.1, 2000
RETURN_VALUE, YIELD_VALUE, YIELD_FROM, RESUME = 83, 86, 72, 151  # instructions up to 3.11; the opcode module would load a library
GENERATOR = 0x20 | 0x80 | 0x200  # of a code's flags: a generator, a coroutine, an asynchronous generator


class Refused(Exception):
    """What a person asked for cannot be had; the text says why."""


class Hooked:
    """What a function is hooked for."""

    def __init__(self, code):
        self.code, self.calls, self.callees = code, False, None


def state():
    """Of this process. That of a parent is left to it, but for the events, which a child inherits."""
    found = _probing.shared.get("hooks")
    if found is None or found["pid"] != getpid():
        if found is not None:
            clear(found)
        found = _probing.shared["hooks"] = {"pid": getpid(), "generation": _probing.detached(), "hooked": {}, "tool": None, "lock": allocate_lock(),
                                            "watched": False, "ends": []}
    return found


# --- sys.monitoring

def begin_monitoring(now):
    mon = sys.monitoring
    events = mon.events
    for tool in TOOLS:
        if mon.get_tool(tool) is None:
            mon.use_tool_id(tool, "probing")
            break
    else:
        raise Refused("other tools use the numbers that sys.monitoring has to give")
    now["tool"] = tool
    for event, function in ((events.PY_START, _probing.call_starts), (events.PY_RETURN, _probing.call_returns), (events.PY_YIELD, _probing.call_yields),
                            (events.PY_RESUME, _probing.call_resumes), (events.PY_UNWIND, _probing.call_unwinds), (events.CALL, on_call)):
        mon.register_callback(tool, event, function)


def end_monitoring(now):
    mon, tool = sys.monitoring, now["tool"]
    now["tool"] = None
    if tool is None or mon.get_tool(tool) != "probing":
        return
    mon.set_events(tool, 0)
    for name in ("PY_START", "PY_RETURN", "PY_YIELD", "PY_RESUME", "PY_UNWIND", "CALL"):
        mon.register_callback(tool, getattr(mon.events, name), None)
    mon.free_tool_id(tool)


def set_events(now, hooked):
    """The events of one function. First none: places that were taken out by DISABLE come back only so."""
    events, wanted = sys.monitoring.events, 0
    if hooked.calls:
        wanted |= events.PY_START | events.PY_RETURN
        if hooked.code.co_flags & GENERATOR:
            wanted |= events.PY_YIELD | events.PY_RESUME
    if hooked.callees is not None:
        wanted |= events.CALL
    sys.monitoring.set_local_events(now["tool"], hooked.code, 0)
    if wanted:
        sys.monitoring.set_local_events(now["tool"], hooked.code, wanted)
    # That a function is left by an exception is an event of all functions only: it is asked for as long as calls are traced.
    unwinds = any(each.calls for each in now["hooked"].values())
    sys.monitoring.set_events(now["tool"], events.PY_UNWIND if unwinds else 0)


def hooked_of(code):
    now = _probing.shared.get("hooks")
    return None if now is None or now["pid"] != getpid() else now["hooked"].get(id(code))


def on_call(code, offset, function, argument):
    """Never raises anything of ours: what goes through is what a signal handler of the program raised in here."""
    try:
        hooked = hooked_of(code)
        if hooked is None or hooked.callees is None:
            return sys.monitoring.DISABLE
        hooked.callees(function)
    except BaseException as error:
        if is_of_program(error):
            raise
    return None


# --- a trace function, before 3.12

def in_thread(frame, event, argument):
    """The trace function of a thread: asked for every call."""
    now = _probing.shared.get("hooks")
    if not now["hooked"] or now["pid"] != getpid():
        if sys.gettrace() is in_thread:
            sys.settrace(None)
        return None
    hooked = now["hooked"].get(id(frame.f_code))
    try:
        caller = now["hooked"].get(id(frame.f_back.f_code)) if frame.f_back is not None else None
        if caller is not None and caller.callees is not None:
            caller.callees(frame.f_code)
            hooked = now["hooked"].get(id(frame.f_code))
        if hooked is None:
            return None
        if hooked.calls:
            (_probing.call_resumes if is_resumed(frame) else _probing.call_starts)(frame.f_code, 0, None, frame)
        if sys.version_info >= (3, 7):
            frame.f_trace_lines = False
    except BaseException as error:
        if is_of_program(error):
            raise
    return in_function


_raised = {}  # address of a frame -> the class of the exception that was last raised in it, and at which instruction


def in_function(frame, event, argument):
    """The trace function of a hooked function."""
    hooked = hooked_of(frame.f_code)
    if hooked is None:
        return None
    try:
        if event == "exception" and hooked.calls:
            _raised[id(frame)] = argument[0], frame.f_lasti
        elif event == "return" and hooked.calls:
            raised, at = _raised.pop(id(frame), (Exception, None))
            how = how_left(frame)
            if how == "raises" or (how == "yields" and argument is None and at == frame.f_lasti):  # thrown in at a yield
                _probing.call_unwinds(frame.f_code, 0, raised, frame)
            elif how == "yields":
                _probing.call_yields(frame.f_code, 0, None, frame)
            else:
                _probing.call_returns(frame.f_code, 0, argument, frame)
    except BaseException as error:
        if is_of_program(error):
            raise
    return in_function


def instructions(frame):
    """The last instruction of a frame and the one after it."""
    code = frame.f_code.co_code
    return [code[at] if 0 <= at < len(code) else -1 for at in (frame.f_lasti, frame.f_lasti + 2)]


def waits_inside(following):
    return following == YIELD_FROM and sys.version_info < (3, 11)


def how_left(frame):
    """A trace function is told of returns, of yields and of exceptions in one word. What waits in a `yield from` stands before it (up to 3.10)."""
    last, following = instructions(frame)
    if frame.f_code.co_flags & GENERATOR and (last == YIELD_VALUE or waits_inside(following)):
        return "yields"
    return "returns" if last == RETURN_VALUE else "raises"


def is_resumed(frame):
    """Whether a generator goes on, rather than begins."""
    if not frame.f_code.co_flags & GENERATOR or frame.f_lasti < 0:
        return False
    last, following = instructions(frame)
    if last == RESUME and sys.version_info >= (3, 11):  # 3.11: of which kind is told by its argument, 0 for a beginning
        return frame.f_code.co_code[frame.f_lasti + 1] & 3 != 0
    return last == YIELD_VALUE or waits_inside(following)


def begin_tracing(now):
    """Gives the main thread, and threads that begin from now on, the trace function. A sentence for a person: who has none."""
    answer = []

    def begin():
        if sys.gettrace() is None:
            sys.settrace(in_thread)
        answer.append(sys.gettrace() is in_thread)

    import_threading()
    threading = sys.modules.get("threading")
    if threading is not None and threading._trace_hook is None:
        threading.settrace(in_thread)
    if not _probing.pend(begin):
        raise Refused("a pause of this process is under way; try again")
    wait, end = allocate_lock(), _probing.milliseconds() + MAIN_MS
    wait.acquire()
    while not answer and _probing.milliseconds() < end:
        wait.acquire(True, 0.005)
    if answer and not answer[0]:
        end_tracing()
        raise Refused("the main thread has a trace function of its own (a debugger, coverage), and before Python 3.12 there is one only")
    return "" if answer else "the main thread is in C code: its calls are recorded once it comes back"


def end_tracing():
    """Threads drop the trace function themselves, at the next call that they make."""
    threading = sys.modules.get("threading")
    if threading is not None and threading._trace_hook is in_thread:
        threading.settrace(None)
    _probing.unpend()
    _raised.clear()


# --- for both

def hook(code, change):
    """Calls change with what the function is hooked for, and has Python do it. A sentence for a person, or ""."""
    now = state()
    said = ""
    with now["lock"]:
        begins = not now["hooked"]
        if begins and MONITORED:
            begin_monitoring(now)
        hooked = now["hooked"].setdefault(id(code), Hooked(code))
        try:
            change(hooked)
            if not MONITORED and begins:
                said = begin_tracing(now)
        except BaseException:
            drop(now, hooked)
            raise
        settle(now, hooked)
        if not now["watched"]:
            now["watched"] = True
            start_new_thread(look_after, (now,))
    return said


def settle_generation():
    """What an agent before this one left is taken away first."""
    now = state()
    with now["lock"]:
        if now["generation"] != _probing.detached():
            clear(now)
            now["generation"] = _probing.detached()


def settle(now, hooked):
    if MONITORED and now["tool"] is not None:
        set_events(now, hooked)
    if not hooked.calls and hooked.callees is None:
        drop(now, hooked)


def drop(now, hooked):
    now["hooked"].pop(id(hooked.code), None)
    if not now["hooked"]:
        end_monitoring(now) if MONITORED else end_tracing()


def change_hook(code, change):
    """The same for a function that may not be hooked any more."""
    now = state()
    with now["lock"]:
        hooked = now["hooked"].get(id(code))
        if hooked is not None:
            change(hooked)
            settle(now, hooked)


def clear(now):
    """Everything off."""
    _probing.shared.get("traced", {}).clear()
    for hooked in list(now["hooked"].values()):
        hooked.calls, hooked.callees = False, None
        _probing.trace_remove(hooked.code)
        settle(now, hooked)


def look_after(now):
    """The thread that takes hooks away: now["ends"] are functions that are called with the time in ms, and end what is due."""
    wait = allocate_lock()
    wait.acquire()
    while True:
        wait.acquire(True, TICK_S)
        for each in list(now["ends"]):
            each(_probing.milliseconds())
        with now["lock"]:
            if _probing.detached() != now["generation"]:
                clear(now)
            if not now["hooked"]:
                now["watched"] = False
                return
