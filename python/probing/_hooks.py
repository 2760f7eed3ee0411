"""The one mechanism by which the running program calls us, for trace, break, watch and the debugger: sys.monitoring from 3.12 on, with events of
single functions; before that a trace function (_tracing.py).

A function (its code object) is hooked for calls (src/agent/module/module_trace.c records them), for the functions that it calls, and for places: lines
of it, and its end (_places.py). Listeners get events of all functions. Hooks are kept in _probing.shared, since this module ends with the agent
while a thread may still be inside a hook. A thread of the agent removes expired hooks (end_due), and at detach everything (clear_all). In a
forked child hooks remove themselves.
"""
import sys

from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from . import _signals
from ._by_type import trace_of
from ._program import at_detach, is_of_program

MONITORED = sys.version_info >= (3, 12)
FREE_THREADED = "free-threading" in sys.version  # stacks of running threads cannot be walked
TOOLS = (4, 3, 0)  # ids that PEP 669 reserves for no tool, then that of debuggers
OWN_TRACE = "the main thread has a trace function of its own (a debugger, coverage), and before Python 3.12 there is one only"
GENERATOR = 0x20 | 0x80 | 0x200  # of a code's flags: a generator, a coroutine, an asynchronous generator


class Refused(Exception):
    """A request cannot be fulfilled; the text says why."""

    status = 1


class Nothing(Refused):
    """There is nothing of what was to be ended (PB_TALK_NOTHING)."""

    status = 2


class Hooked:
    """The hooks of a function."""

    def __init__(self, code):
        self.code, self.calls, self.callees = code, False, None
        self.places = ()  # of _places.py; replaced as a whole, since threads iterate over it meanwhile

    def is_idle(self):
        return not self.calls and self.callees is None and not self.places


class Listener:
    """Gets events of all functions, in the thread of the program. finds, starts and line return whether it wants further events of that code,
    function or line; each is called once more when listeners change (update)."""

    def wanted(self):
        """The wanted events: "finds" (each code once), "starts", "lines", "raises", "unwinds"."""
        return ()

    def finds(self, code):
        return False

    def starts(self, frame):
        return False

    def line(self, frame, line):
        return False

    def raises(self, frame, error, trace):
        pass

    def unwinds(self, frame, error, trace):
        pass

    def traces(self, frame, ident):
        """Before 3.12: whether it wants lines, exceptions and the end of this frame of that thread."""
        return False


def state():
    """The hooks of this process. A parent's are left to it, except for the events, which a child inherits."""
    found = _probing.shared.get("hooks")
    if found is None or found["pid"] != getpid():
        if found is not None:
            clear(found)
        found = _probing.shared["hooks"] = {"pid": getpid(), "generation": _probing.detached(), "hooked": {}, "tools": {}, "lock": allocate_lock(),
                                            "ends": [], "inside": set(), "listeners": (), "wide": frozenset(), "followers": [], "plain": {}, "threads": set(),
                                            "generators": {}, "raised": {}}
    return found


def is_on(now):
    return bool(now["hooked"] or now["listeners"])


def here():
    """The hooks, for a callback. None: there are none; in a forked child its parent's hooks are removed."""
    now = _probing.shared.get("hooks")
    if now is None or now["generation"] != _probing.detached():
        return None
    if now["pid"] != getpid():
        if now["listeners"]:
            now["listeners"] = ()
            set_wide(now)
        return None
    return now


class Changing:
    """Holds the lock. Code of the program that this thread runs meanwhile (a signal handler, a finalizer) does not reach places, and so not this
    lock. waits false: in a thread of the program that may hold it already; then held may be false."""

    def __init__(self, now, waits=True):
        self.now, self.waits, self.held = now, waits, False

    def __enter__(self):
        ident = get_ident()
        self.was_inside = ident in self.now["inside"]
        self.held = self.now["lock"].acquire(self.waits)
        if self.held:
            self.now["inside"].add(ident)
        return self

    def __exit__(self, *_):
        if self.held:
            if not self.was_inside:
                self.now["inside"].discard(get_ident())
            self.now["lock"].release()


# --- sys.monitoring

def callbacks():
    """The two tools, since an event of a tool has one function, and that of calls is C code: {role: [(event, function)]}."""
    events = sys.monitoring.events
    return {"calls": [(events.PY_START, _probing.call_starts), (events.PY_RETURN, _probing.call_returns), (events.PY_YIELD, _probing.call_yields),
                      (events.PY_RESUME, _probing.call_resumes), (events.PY_UNWIND, _probing.call_unwinds), (events.CALL, on_call)],
            "places": [(events.LINE, on_line), (events.PY_RETURN, on_return), (events.PY_YIELD, on_yield), (events.PY_START, on_start),
                       (events.PY_RESUME, on_start), (events.RAISE, on_raise), (events.PY_UNWIND, on_unwind)]}


def tool_of(now, role):
    """The tool's id; takes a free one if there is none yet."""
    mon = sys.monitoring
    if role not in now["tools"]:
        for tool in TOOLS if role == "calls" else (3, 4, 0):
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
    """Sets the events of one function. First none: only so do places come back that DISABLE has removed."""
    mon = sys.monitoring
    for role in ("calls", "places"):
        wanted = wanted_events(hooked, role)
        if wanted or role in now["tools"]:
            mon.set_local_events(tool_of(now, role), hooked.code, 0)
        if wanted:
            mon.set_local_events(tool_of(now, role), hooked.code, wanted)
            if role == "places" and now["wide"].intersection(WIDE_LINES):  # those events stay on in between
                mon.restart_events()
    # That a function is left by an exception is an event of all functions only: it is on as long as calls are traced.
    if "calls" in now["tools"]:
        unwinds = any(each.calls for each in now["hooked"].values())
        mon.set_events(now["tools"]["calls"], mon.events.PY_UNWIND if unwinds else 0)


WIDE_LINES = ("lines", "finds") if FREE_THREADED else ("lines",)  # else running functions are found on the stacks


def set_wide(now):
    """Sets the events of all functions that listeners want."""
    wide = now["wide"] = frozenset(kind for each in now["listeners"] for kind in each.wanted())
    now["plain"].clear()
    now["followers"] = [each for each in now["listeners"] if {"raises", "unwinds", "lines"}.intersection(each.wanted())]
    if not MONITORED:
        return
    mon, wanted = sys.monitoring, 0
    for kind, event in (("finds", "PY_START"), ("finds", "PY_RESUME"), ("starts", "PY_START"), ("starts", "PY_RESUME"), ("raises", "RAISE"),
                        ("unwinds", "PY_UNWIND")) + tuple((kind, "LINE") for kind in WIDE_LINES):
        if kind in wide:
            wanted |= getattr(mon.events, event)
    if wanted or "places" in now["tools"]:
        mon.set_events(tool_of(now, "places"), wanted)
    if wanted & (mon.events.PY_START | mon.events.LINE):
        mon.restart_events()  # events that were disabled come once more


def end_idle_tools(now):
    if not any(each.calls or each.callees is not None for each in now["hooked"].values()):
        end_monitoring(now, "calls")
    if not now["listeners"] and not any(each.places for each in now["hooked"].values()):
        end_monitoring(now, "places")


def on_call(code, offset, function, argument):
    """Never raises an exception of ours: only one that a signal handler of the program raised in here."""
    try:
        now = here()
        hooked = now and now["hooked"].get(id(code))
        if hooked is None or hooked.callees is None:
            return sys.monitoring.DISABLE
        hooked.callees(function)
    except BaseException as error:
        if is_of_program(error):
            raise
    return None


def on_line(code, line):
    """Before a line of a hooked function, or of any. Lines that nobody wants are disabled."""
    now = here()
    if now is None:
        return sys.monitoring.DISABLE
    hooked, wide, wanted = now["hooked"].get(id(code)), now["wide"], False
    if hooked is None and FREE_THREADED and "finds" in wide and not is_own_code(code):
        wanted = ask(now, "finds", code)
        hooked = now["hooked"].get(id(code))
    for place in hooked.places if hooked is not None else ():
        if place.line is None or place.line == line:
            wanted = True
            tell(place.hit, sys._getframe(1), line)
    if "lines" in wide and not is_own_code(code):
        wanted = ask(now, "line", sys._getframe(1), line) or wanted
    return None if wanted else sys.monitoring.DISABLE


def on_start(code, offset):
    now = here()
    if now is None or is_own_code(code):
        return sys.monitoring.DISABLE
    again = ask(now, "finds", code) if "finds" in now["wide"] else False
    if "starts" in now["wide"]:
        again = ask(now, "starts", sys._getframe(1)) or again
    return None if again else sys.monitoring.DISABLE


def on_return(code, offset, value):
    return leave(code, sys._getframe(1), False)


def on_yield(code, offset, value):
    return leave(code, sys._getframe(1), True)


def leave(code, frame, yields):
    """A hooked function returns or yields."""
    now = here()
    hooked = now and now["hooked"].get(id(code))
    if hooked is None or not hooked.places:
        return sys.monitoring.DISABLE
    for place in hooked.places:
        if place.line is None:
            tell(place.left, frame, yields)
    return None


def on_raise(code, offset, error):
    now = here()
    if now is not None and not is_own_code(code):
        ask(now, "raises", sys._getframe(1), error, trace_of(error))


def on_unwind(code, offset, error):
    now = here()
    if now is not None and not is_own_code(code):
        ask(now, "unwinds", sys._getframe(1), error, trace_of(error))


# --- for both

def is_own_code(code):
    return code.co_filename.startswith("<probing>")


def is_outermost(frame):
    caller = frame.f_back
    return caller is None or (caller.f_code.co_name in ("_bootstrap_inner", "_bootstrap") and caller.f_globals.get("__name__") == "threading")


def is_own(function):
    return getattr(getattr(function, "__code__", None), "co_filename", "").startswith("<probing>")


def tell(function, *arguments):
    """Calls a function of ours in the thread of the program. Code that it runs (a condition) does not reach places. None: it was not called."""
    inside, ident = _probing.shared["hooks"]["inside"], get_ident()
    if ident in inside:
        return None
    try:
        inside.add(ident)
        return function(*arguments)
    except BaseException as error:
        if is_of_program(error):
            if ident != _probing.main_ident():
                raise
            _signals.raise_later(error)
            return None
        note("a hook failed: %s: %s" % (type(error).__name__, error))
        return None
    finally:
        inside.discard(ident)


def ask(now, name, *arguments):
    """Passes an event to listeners. Returns whether one of them wants it again, or could not be called now."""
    again = False
    for each in now["listeners"]:
        answer = tell(getattr(each, name), *arguments)
        again = again or answer is None or answer
    return again


def note(text):
    """Kept for notes() of a prompt: nothing may be printed in the program."""
    notes = _probing.shared.setdefault("notes", [])
    notes.append(text)
    del notes[:-100]


def listen(listener):
    """Turns on events of all functions. Before 3.12 the main thread is not waited for; listener.main_refuses() is called there if it has a trace
    function of its own."""
    settle_generation()
    now = state()
    with Changing(now):
        now["listeners"] = tuple(each for each in now["listeners"] if each is not listener) + (listener,)
        try:
            set_wide(now)
        except BaseException:
            now["listeners"] = tuple(each for each in now["listeners"] if each is not listener)
            end_idle(now)
            raise
        at_detach("hooks", clear_all)
    if not MONITORED:
        tracing().begin(now, listener.main_refuses)


def unlisten(listener):
    now = state()
    with Changing(now):
        if listener in now["listeners"]:
            now["listeners"] = tuple(each for each in now["listeners"] if each is not listener)
            set_wide(now)
            end_idle(now)


def update(listener):
    """The listener wants other events now."""
    now = state()
    with Changing(now):
        if listener in now["listeners"]:
            set_wide(now)
    if not MONITORED:
        tracing().reach(now)


def tracing():
    from . import _tracing

    return _tracing


def beside(frame, event, argument):
    """For a trace function of ours that steps (_pause.py) in place of that of _tracing.py: does the work of that one. Returns whether the frame
    is hooked."""
    now = _probing.shared.get("hooks")
    if MONITORED or now is None or not is_on(now):
        return False
    return (tracing().in_thread if event == "call" else tracing().in_function)(frame, event, argument) is not None


def thread_function():
    """The trace function to restore in a thread after steps."""
    now = _probing.shared.get("hooks")
    return None if MONITORED or now is None or now["pid"] != getpid() or not is_on(now) else tracing().in_thread


def reach_frames():
    """After steps: the functions that this thread is in get their trace function back."""
    if not MONITORED and here() is not None:
        tracing().reach_thread(state(), get_ident())


def pend(function, turns=100):
    """_probing.pend, retried while an earlier call is about to return."""
    wait = allocate_lock()
    wait.acquire()
    while not _probing.pend(function):
        turns -= 1
        if turns <= 0:
            return False
        wait.acquire(True, 0.005)
    return True


def main_calls():
    """The functions for the main thread to call, and whether the interpreter was asked to, or does so now."""
    return _probing.shared.setdefault("main calls", {"calls": [], "pending": False, "runs": False})


def in_main(function, turns=100):
    """Has the main thread call function(frame) as soon as it can, after those already waiting: one pending call of the interpreter runs all of
    them."""
    waiting = main_calls()
    waiting["calls"].append((getpid(), function))
    if waiting["pending"] or waiting["runs"]:
        return
    if not pend(run_main_calls, turns):
        del waiting["calls"][:]
        raise Refused("a pause of this process is under way; try again")
    waiting["pending"] = bool(waiting["calls"])


def run_main_calls():
    frame, waiting = sys._getframe(1), main_calls()
    waiting["pending"], waiting["runs"] = False, True
    try:
        while waiting["calls"]:
            pid, function = waiting["calls"].pop(0)
            if pid == getpid():
                function(frame)
    finally:
        waiting["runs"] = False


def drop_main_calls(name):
    """Removes those of that name. If none is left a pause may take their place."""
    waiting = main_calls()
    waiting["calls"][:] = [each for each in waiting["calls"] if each[1].__name__ != name]
    if waiting["pending"] and not waiting["calls"]:
        waiting["pending"] = False
        _probing.unpend()


def hook(code, change, waits=True, begins=True):
    """Calls change with the hooks of the function, and applies them. Returns a sentence for a person, or "". waits false: in a thread of the
    program, whose signal handler may get here while its thread holds the lock; None: not done. begins false: before 3.12 the main thread has its
    trace function already, or must not be waited for."""
    now = state()
    with Changing(now, waits) as changing:
        if not changing.held:
            return None
        begins = begins and waits and not MONITORED
        first = not now["hooked"]
        hooked = now["hooked"].setdefault(id(code), Hooked(code))
        had = hooked.calls, hooked.callees, hooked.places
        try:
            change(hooked)
            settle(now, hooked)
        except BaseException:
            put_back(now, hooked, had)
            raise
        at_detach("hooks", clear_all)
    try:
        message = begin_and_wait() if begins and (first or hooked.places != had[2]) else ""
        return message or (tracing().not_seen(now, code) if begins else "")
    except Refused:
        with Changing(now):
            put_back(now, hooked, had)
        raise


def begin_and_wait():
    """Before 3.12: sets the main thread's trace function. Returns a sentence for a person, or ""."""
    return "" if MONITORED else tracing().begin_and_wait(state())


def put_back(now, hooked, had):
    hooked.calls, hooked.callees, hooked.places = had
    settle(now, hooked)


def settle_generation():
    """First removes what an earlier agent left."""
    now = state()
    with Changing(now):
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
    elif not is_on(now):
        tracing().end(now)


def change_hook(code, change):
    """The same for a function that may not be hooked any more."""
    now = state()
    with Changing(now):
        hooked = now["hooked"].get(id(code))
        if hooked is not None:
            change(hooked)
            settle(now, hooked)


def clear(now):
    """Removes everything."""
    for name in ("traced", "breaks", "watches", "places", "searched places"):
        _probing.shared.get(name, {}).clear()
    for hooked in list(now["hooked"].values()):
        hooked.calls, hooked.callees, hooked.places = False, None, ()
        _probing.trace_remove(hooked.code)
        settle(now, hooked)
    now["listeners"] = ()
    _probing.shared.pop("search", None)
    set_wide(now)
    end_idle(now)


def clear_all():
    """At detach. Callbacks that run meanwhile find nothing (here)."""
    now = _probing.shared.get("hooks")
    if now is not None and now["pid"] == getpid():
        with Changing(now):
            clear(now)


def at_end(function):
    """function(ms) ends what is due by then, and returns when to call it next, 0 for never. It is also called now."""
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
