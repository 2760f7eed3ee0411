"""Where the running program calls us: sys.monitoring from 3.12 on, with events of single functions; before that a trace function.

A function (its code object) is hooked for calls (src/agent/module_trace.c records them), for the functions that it calls, and for places: lines
of it, and its end (_places.py). What is hooked is kept in _probing.shared, since this module goes with the agent while a thread may still be inside a hook. The agent has a thread of ours
take away what has run out (end_due), and at detach everything (clear_all). In a forked child nobody does: hooks take themselves out.

Before 3.12 there are no events of single functions. The main thread and threads that begin later get a trace function, which looks at every call and
stays away from functions that are not hooked. A thread that has a trace function (a debugger, coverage) keeps it and is not traced.
"""
import sys

from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from ._program import at_detach, import_threading, is_of_program

MONITORED = sys.version_info >= (3, 12)
TOOLS = (4, 3)  # numbers that PEP 669 gives to nobody
MAIN_MS = 2000
RETURN_VALUE, YIELD_VALUE, YIELD_FROM, RESUME = 83, 86, 72, 151  # instructions up to 3.11; the opcode module would load a library
GENERATOR = 0x20 | 0x80 | 0x200  # of a code's flags: a generator, a coroutine, an asynchronous generator


class Refused(Exception):
    """What a person asked for cannot be had; the text says why."""


class Hooked:
    """What a function is hooked for."""

    def __init__(self, code):
        self.code, self.calls, self.callees = code, False, None
        self.places = ()  # of _places.py; replaced as a whole, since threads go through it meanwhile

    def is_idle(self):
        return not self.calls and self.callees is None and not self.places


def state():
    """Of this process. That of a parent is left to it, but for the events, which a child inherits."""
    found = _probing.shared.get("hooks")
    if found is None or found["pid"] != getpid():
        if found is not None:
            clear(found)
        found = _probing.shared["hooks"] = {"pid": getpid(), "generation": _probing.detached(), "hooked": {}, "tools": {}, "lock": allocate_lock(),
                                            "ends": [], "inside": set()}
    return found


# --- sys.monitoring

def callbacks():
    """Of the two tools, since an event of a tool has one function: {role: [(event, function)]}."""
    events = sys.monitoring.events
    return {"calls": [(events.PY_START, _probing.call_starts), (events.PY_RETURN, _probing.call_returns), (events.PY_YIELD, _probing.call_yields),
                      (events.PY_RESUME, _probing.call_resumes), (events.PY_UNWIND, _probing.call_unwinds), (events.CALL, on_call)],
            "places": [(events.LINE, on_line), (events.PY_RETURN, on_leave), (events.PY_YIELD, on_leave)]}


def tool_of(now, role):
    """The tool's number; takes one where there is none yet."""
    mon = sys.monitoring
    if role not in now["tools"]:
        for tool in TOOLS if role == "calls" else TOOLS[::-1]:
            if mon.get_tool(tool) is None:
                mon.use_tool_id(tool, "probing")
                break
        else:
            raise Refused("other tools use the numbers that sys.monitoring has to give")
        now["tools"][role] = tool
        for event, function in callbacks()[role]:
            mon.register_callback(tool, event, function)
    return now["tools"][role]


def end_monitoring(now, role):
    mon, tool = sys.monitoring, now["tools"].pop(role, None)
    if tool is None or mon.get_tool(tool) != "probing":
        return
    mon.set_events(tool, 0)
    for event, _ in callbacks()[role]:
        mon.register_callback(tool, event, None)
    mon.free_tool_id(tool)


def wanted_events(hooked, role):
    events, wanted = sys.monitoring.events, 0
    if role == "places":
        if hooked.places:
            wanted |= events.LINE
        if any(place.line is None for place in hooked.places):
            wanted |= events.PY_RETURN | events.PY_YIELD
        return wanted
    if hooked.calls:
        wanted |= events.PY_START | events.PY_RETURN
        if hooked.code.co_flags & GENERATOR:
            wanted |= events.PY_YIELD | events.PY_RESUME
    return wanted | (events.CALL if hooked.callees is not None else 0)


def set_events(now, hooked):
    """The events of one function. First none: places that were taken out by DISABLE come back only so."""
    mon = sys.monitoring
    for role in ("calls", "places"):
        wanted = wanted_events(hooked, role)
        if wanted or role in now["tools"]:
            mon.set_local_events(tool_of(now, role), hooked.code, 0)
        if wanted:
            mon.set_local_events(tool_of(now, role), hooked.code, wanted)
    # That a function is left by an exception is an event of all functions only: it is asked for as long as calls are traced.
    if "calls" in now["tools"]:
        unwinds = any(each.calls for each in now["hooked"].values())
        mon.set_events(now["tools"]["calls"], mon.events.PY_UNWIND if unwinds else 0)


def end_idle_tools(now):
    if not any(each.calls or each.callees is not None for each in now["hooked"].values()):
        end_monitoring(now, "calls")
    if not any(each.places for each in now["hooked"].values()):
        end_monitoring(now, "places")


def hooked_of(code):
    now = _probing.shared.get("hooks")
    return None if now is None or now["pid"] != getpid() or now["generation"] != _probing.detached() else now["hooked"].get(id(code))


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


def on_line(code, line):
    """Before a line of a hooked function. Lines at which there is no place go silent."""
    hooked = hooked_of(code)
    places = hooked.places if hooked is not None else ()
    heard = False
    for place in places:
        if place.line is None or place.line == line:
            heard = True
            tell(place.hit, sys._getframe(1), line)
    return None if heard else sys.monitoring.DISABLE


def on_leave(code, offset, value):
    """A hooked function returns or yields."""
    hooked = hooked_of(code)
    if hooked is None or not hooked.places:
        return sys.monitoring.DISABLE
    for place in hooked.places:
        if place.line is None:
            tell(place.left, sys._getframe(1), None)
    return None


def tell(function, frame, line):
    """Calls a place's function, in the thread of the program. Code that it runs (a condition) does not come to places itself."""
    inside, ident = _probing.shared["hooks"]["inside"], get_ident()
    if ident in inside:
        return
    try:
        inside.add(ident)
        function(frame, line)
    except BaseException as error:
        if is_of_program(error):
            raise
        note("a hook failed: %s: %s" % (type(error).__name__, error))
    finally:
        inside.discard(ident)


def note(text):
    """Kept for notes() of a prompt: nothing may be printed in somebody's program."""
    kept = _probing.shared.setdefault("notes", [])
    kept.append(text)
    del kept[:-100]


# --- a trace function, before 3.12

def in_thread(frame, event, argument):
    """The trace function of a thread: asked for every call."""
    now = _probing.shared.get("hooks")
    if not now["hooked"] or now["pid"] != getpid():
        if sys.gettrace() is in_thread:
            sys.settrace(None)
            forget_frames(frame)
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
        want_lines(frame, bool(hooked.places))
    except BaseException as error:
        if is_of_program(error):
            raise
    return in_function


def want_lines(frame, wanted):
    """Whether its trace function is to be called for lines. A debugger's step of ours (_pause.py) wants them in any case."""
    if sys.version_info >= (3, 7) and sys.gettrace() is in_thread:
        frame.f_trace_lines = wanted


def forget_frames(frame):
    while frame is not None:
        if frame.f_trace is in_function:
            frame.f_trace = None
        frame = frame.f_back


def reach_frames(frame):
    """Functions that run already get their trace function, in their own thread."""
    while frame is not None:
        hooked = hooked_of(frame.f_code)
        if hooked is not None and hooked.places and frame.f_trace is None:
            frame.f_trace = in_function
        frame = frame.f_back


def beside(frame, event, argument):
    """For a trace function of ours that steps (_pause.py) in place of in_thread: does what that would do. Whether the frame is hooked."""
    now = _probing.shared.get("hooks")
    if MONITORED or now is None or not now["hooked"]:
        return False
    return (in_thread if event == "call" else in_function)(frame, event, argument) is not None


def thread_function():
    """The trace function that a thread goes back to after steps."""
    now = _probing.shared.get("hooks")
    return None if MONITORED or now is None or now["pid"] != getpid() or not now["hooked"] else in_thread


_raised = {}  # address of a frame -> the class of the exception that was last raised in it, and at which instruction


def in_function(frame, event, argument):
    """The trace function of a hooked function."""
    hooked = hooked_of(frame.f_code)
    if hooked is None:
        return None
    if event in ("line", "return"):
        for place in hooked.places:
            if event == "line" and place.line in (None, frame.f_lineno):
                tell(place.hit, frame, frame.f_lineno)
            elif event == "return" and place.line is None:
                tell(place.left, frame, None)
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
    return frame.f_trace  # a place may have begun steps, and put another there


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


def begin_tracing():
    """Gives the main thread, and threads that begin from now on, the trace function. A sentence for a person: who has none."""
    answer = []

    def begin():
        if sys.gettrace() is None:
            sys.settrace(in_thread)
        reach_frames(sys._getframe(1))
        answer.append(is_own(sys.gettrace()))

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
        raise Refused("the main thread has a trace function of its own (a debugger, coverage), and before Python 3.12 there is one only")
    return "" if answer else "the main thread is in C code: it is reached once it comes back"


def is_own(function):
    return getattr(getattr(function, "__code__", None), "co_filename", "").startswith("<probing>")


def end_tracing():
    """Threads drop the trace function themselves, at the next call that they make."""
    threading = sys.modules.get("threading")
    if threading is not None and threading._trace_hook is in_thread:
        threading.settrace(None)
    _probing.unpend()
    _raised.clear()


# --- for both

def hook(code, change, waits=True):
    """Calls change with what the function is hooked for, and has Python do it. A sentence for a person, or "". Not waits: in a thread of the
    program, where a signal's handler may come to this while its thread is in here already; None: it was not done."""
    now = state()
    if not now["lock"].acquire(waits):
        return None
    try:
        begins = not now["hooked"]
        hooked = now["hooked"].setdefault(id(code), Hooked(code))
        had = hooked.calls, hooked.callees, hooked.places
        try:
            change(hooked)
            settle(now, hooked)
        except BaseException:
            put_back(now, hooked, had)
            raise
        at_detach("hooks", clear_all)
        reaches = waits and not MONITORED and (begins or hooked.places != had[2])
    finally:
        now["lock"].release()
    try:
        return begin_tracing() if reaches else ""
    except Refused:
        with now["lock"]:
            put_back(now, hooked, had)
        raise


def put_back(now, hooked, had):
    hooked.calls, hooked.callees, hooked.places = had
    settle(now, hooked)


def settle_generation():
    """What an agent before this one left is taken away first."""
    now = state()
    with now["lock"]:
        if now["generation"] != _probing.detached():
            clear(now)
            now["generation"] = _probing.detached()


def settle(now, hooked):
    if MONITORED:
        set_events(now, hooked)
    if hooked.is_idle():
        now["hooked"].pop(id(hooked.code), None)
    end_idle(now)


def end_idle(now):
    if MONITORED:
        end_idle_tools(now)
    elif not now["hooked"]:
        end_tracing()


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
    for name in ("traced", "breaks", "watches", "places"):
        _probing.shared.get(name, {}).clear()
    for hooked in list(now["hooked"].values()):
        hooked.calls, hooked.callees, hooked.places = False, None, ()
        _probing.trace_remove(hooked.code)
        settle(now, hooked)
    end_idle(now)


def clear_all():
    """At detach. What a callback meets meanwhile is taken for nothing (hooked_of)."""
    now = _probing.shared.get("hooks")
    if now is not None and now["pid"] == getpid():
        with now["lock"]:
            clear(now)


def at_end(function):
    """function(ms) ends what is due by then, and returns when it is next to be called, 0 for never. It is called now too."""
    ends = state()["ends"]
    if function.__name__ not in [each.__name__ for each in ends]:
        ends.append(function)
    end_due()


def end_due():
    now_ms = _probing.milliseconds()
    found = [each(now_ms) for each in list(state()["ends"])]
    _probing.shared["due"] = end_due
    _probing.due_at(min([when for when in found if when] or [0]))


def earliest(things):
    """When the first of them ends; 0: none does."""
    return min([thing.until for thing in things if thing.until] or [0])
