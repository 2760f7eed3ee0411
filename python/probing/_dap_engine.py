"""Where a debugger stops the program: at lines, at functions, at exceptions, after a step. _dap.py handles the stops.

Breakpoints and steps are places (_places.py), beside those of break and watch; events of all functions come through a listener (_hooks.py). Only
the thread that reaches a place stops. The others run on: a training program has threads (watchdogs, stores) that others wait for. A forked child
is not debugged.
"""
import sys

from _thread import RLock, allocate_lock, get_ident
from posix import getpid

import _probing
from . import _helpers, _hooks, _places, _signals, _values
from ._by_type import is_one_of, message_of, name_of
from ._expressions import Names, compile_expression, parse_message, render
from ._hooks import MONITORED, OWN_TRACE, Refused, is_outermost
from ._program import is_library, main_globals

COROUTINE = 0x80 | 0x200  # of a code's flags
TURN_S = 0.1

current = None  # the debugger of this process


class Breakpoint:
    """A breakpoint of the client. place: its location; None: of a function by its name."""

    def __init__(self, number, wanted, condition=None, hit_condition=None, log=None):
        self.number, self.wanted, self.place = number, wanted, None
        self.condition = compile_expression(condition) if condition else None
        self.message = parse_message(log) if log else None
        self.hits, self.after = 0, parse_hits(hit_condition) if hit_condition else None

    def line(self):
        """0: no such code is loaded yet."""
        return self.place.line if self.place is not None else 0


def parse_hits(text):
    """A condition of the number of hits: 5, == 5, >= 5, > 5, < 5, % 5."""
    text = text.strip()
    sign = next((each for each in ("==", ">=", "<=", ">", "<", "%") if text.startswith(each)), "")
    number = text[len(sign):].strip()
    if not number.isdigit() or (sign == "%" and int(number) == 0):
        raise Refused("a hit condition is a number, or >= and a number, or %% and a number, not %r" % text)
    n = int(number)
    return {"": lambda hits: hits == n, "==": lambda hits: hits == n, ">=": lambda hits: hits >= n, "<=": lambda hits: hits <= n,
            ">": lambda hits: hits > n, "<": lambda hits: hits < n, "%": lambda hits: hits % n == 0}[sign]


class Step:
    def __init__(self, debugger, how, frame):
        self.debugger, self.how, self.frame = debugger, how, frame if how != "in" else None
        self.returns = how == "out"  # it waits for the end of that frame
        self.place = _places.Place([frame.f_code], None, self.at_line, self.at_return)

    def arm(self, frame):
        _places.extend(self.place, frame.f_code)
        _hooks.reach_frames()

    def is_here(self):
        return self.debugger.steps.get(get_ident()) is self

    def at_line(self, frame, line):
        if self.is_here() and not self.returns and (self.frame is frame or (self.frame is None and self.debugger.is_mine(frame.f_code))):
            self.debugger.stop(frame, "step")

    def at_return(self, frame, yields):
        """A function ends, by an exception too, or is suspended at a yield: a step continues in its caller, a step of a coroutine waits for it to
        resume."""
        if not self.is_here() or (self.frame is not None and self.frame is not frame) or (yields and frame.f_code.co_flags & COROUTINE):
            return
        caller = frame.f_back
        while caller is not None and not self.debugger.is_mine(caller.f_code):
            caller = caller.f_back
        if caller is None:
            self.debugger.end_step(get_ident())
            return
        self.returns = False
        if self.how != "in":
            self.frame = caller
        self.arm(caller)


class Stop:
    """A stopped thread. It runs its client's tasks itself, since its locals can be assigned only there."""

    def __init__(self, debugger, stack, reason, text, error):
        self.debugger, self.stack, self.reason, self.text, self.error = debugger, stack, reason, text, error
        self.ident, self.going, self.places = get_ident(), False, []
        self.can_step = error is None and can_step()
        self.tasks, self.bell = [], allocate_lock()
        self.bell.acquire()
        self.guard = _signals.Guard(self.go)

    def is_ended(self, frame):
        """Whether its function has ended: an uncaught exception has left it."""
        return self.error is not None and self.error[1] == "unhandled" and frame in self.stack and not _helpers.is_own_frame(frame)

    def ring(self):
        try:
            self.bell.release()
        except RuntimeError:  # it is released already
            pass

    def post(self, task):
        self.tasks.append(task)
        self.ring()

    def go(self):
        self.going = True
        self.ring()

    def wait(self):
        """In short turns, so that the program's signal handlers run."""
        debugger = self.debugger
        held = "debug %d " % _probing.milliseconds()  # noqa: F841 as in _pause.py
        with self.guard:
            self.run_tasks(debugger)
        if self.guard.error is not None:
            _signals.raise_later(self.guard.error)

    def run_tasks(self, debugger):
        while not self.going and not debugger.over and getpid() == debugger.pid and _probing.detached() == debugger.generation:
            if self.tasks:
                self.tasks.pop(0)()
            else:
                self.bell.acquire(True, TURN_S)


class Debugger(_hooks.Listener):
    """Breakpoints, steps and exception filters of this process. listener: is called about stops (stopped, resumed), texts (output) and
    breakpoints whose line was found (moved), in the thread where it happens."""

    def __init__(self, listener):
        self.listener, self.pid, self.generation = listener, getpid(), _probing.detached()
        self.lock = RLock()
        self.over, self.just_mine = False, True
        self.ready = False  # a client sets all its breakpoints before it wants to hear of one
        self.files = {}     # canonical file -> breakpoints
        self.functions, self.raised, self.uncaught = {}, False, False
        self.stops, self.steps, self.pausing = {}, {}, set()
        self.user_code = {}

    # --- by the debugger's own threads

    def begin(self):
        global current
        if of_here() is not None:
            raise Refused("another client debugs this process")
        current = self
        try:
            _hooks.listen(self)
        except BaseException:
            current, self.over = None, True
            _hooks.unlisten(self)
            raise

    def end(self):
        """Removes everything; all threads continue."""
        global current
        with self.lock:
            if self.over:
                return
            self.over = True
            places = [each.place for file in self.files.values() for each in file] + [step.place for step in self.steps.values()]
            self.files, self.functions, self.raised, self.uncaught = {}, {}, False, False
            self.steps.clear()
        for place in places:
            _places.remove(place)
        _hooks.unlisten(self)
        for stop in list(self.stops.values()):
            stop.go()
        if current is self:
            current = None

    def set_breakpoints(self, path, breakpoints):
        """The breakpoints of a file, all of them."""
        file = _places.canonical(path)
        with self.lock:
            before = self.files.pop(file, ())
            for each in before:
                _places.remove(each.place)
            if breakpoints:
                self.files[file] = breakpoints
            for each in breakpoints:
                self.add_place(file, each)
            _hooks.update(self)

    def add_place(self, file, breakpoint):
        def hit(frame, line):
            self.at_breakpoint(file, breakpoint, frame, line)

        breakpoint.place = _places.FilePlace(file, breakpoint.wanted, hit, follows=True, moved=lambda place: self.listener.moved(breakpoint, file))
        _places.add(breakpoint.place, waits=False)

    def set_functions(self, breakpoints):
        with self.lock:
            self.functions = breakpoints
            _hooks.update(self)

    def set_exceptions(self, raised, uncaught):
        with self.lock:
            self.raised, self.uncaught = raised, uncaught
            _hooks.update(self)

    def pause(self, ident):
        """Stops the thread at its next line, the main thread between two bytecodes."""
        if ident in self.stops:
            return
        if ident == _probing.main_ident():
            self.pausing.add(ident)
            _hooks.in_main(self.pause_main)
        elif MONITORED or ident in _hooks.state()["threads"]:
            self.pausing.add(ident)
            _hooks.update(self)
        else:
            raise Refused("before Python 3.12 the main thread can be stopped, and threads that began after the debugger came")

    def pause_main(self, frame):
        if get_ident() in self.pausing and not self.over:
            _hooks.tell(self.stop, frame, "pause")

    def go_on(self, ident, how=None):
        """A stopped thread continues, for good or for a step."""
        stop = self.stops.get(ident)
        if stop is None:
            return
        if how is not None and stop.can_step:
            step = Step(self, how, stop.stack[0])
            with self.lock:
                self.steps[ident] = step
                _places.add(step.place, waits=False)
                _hooks.update(self)
        stop.go()

    # --- in threads of the program

    def wanted(self):
        """Of all functions (_hooks.Listener)."""
        found = []
        if self.functions or any(step.how == "in" for step in list(self.steps.values())):
            found.append("starts")
        if self.raised:
            found.append("raises")
        if self.uncaught or self.steps:
            found.append("unwinds")
        if self.pausing - {_probing.main_ident()}:
            found.append("lines")
        return found

    def main_refuses(self):
        self.listener.output("stderr", OWN_TRACE + ": it does not stop\n", None)

    def logs(self):
        """Whether threads of the program may have messages while none of them is stopped."""
        return bool(self.files or self.functions)

    def is_mine(self, code):
        """Whether it is code of the program rather than of a library."""
        if not self.just_mine:
            return not code.co_filename.startswith("<probing>")
        name = code.co_filename
        known = self.user_code.get(name)
        if known is None:
            made = name == "<string>" and "__file__" in main_globals()  # made by exec, as dataclasses do; else it is the program: python -c
            known = self.user_code[name] = not (made or is_library(name))
        return known

    def at_breakpoint(self, file, breakpoint, frame, line):
        """If several are at the same line, the first acts for all of them."""
        there = [each for each in self.files.get(file, ()) if each.line() == line]
        if self.ready and there and there[0] is breakpoint:
            hit = [each for each in there if self.hits(each, frame)]
            if hit:
                self.stop(frame, "breakpoint", breakpoints=hit)

    def hits(self, breakpoint, frame):
        """Whether a breakpoint stops here; a log point never does."""
        try:
            names = Names(frame) if breakpoint.condition or breakpoint.message else None
            if breakpoint.condition is not None and not eval(breakpoint.condition, names):
                return False
            breakpoint.hits += 1
            if breakpoint.after is not None and not breakpoint.after(breakpoint.hits):
                return False
            if breakpoint.message is None:
                return True
            self.listener.output("console", render(breakpoint.message, names) + "\n", frame)
            return False
        except Exception as error:
            self.listener.output("stderr", "breakpoint: %s: %s\n" % (name_of(type(error)), message_of(error, lambda value: _values.text_of(_values.plain(value)))), frame)
            return breakpoint.message is None

    def line(self, frame, line):
        if get_ident() in self.pausing:
            self.stop(frame, "pause")
        return bool(self.pausing)

    def starts(self, frame):
        """A function begins, or a generator resumes."""
        code, step = frame.f_code, self.steps.get(get_ident())
        breakpoint = self.functions and (self.functions.get(code.co_name) or self.functions.get(getattr(code, "co_qualname", code.co_name)))
        if step is not None and step.how == "in" and self.is_mine(code):
            step.arm(frame)
        if breakpoint and self.ready and self.hits(breakpoint, frame):
            self.stop(frame, "function breakpoint", breakpoints=[breakpoint])
        return bool(breakpoint) or any(each.how == "in" for each in list(self.steps.values()))

    def raises(self, frame, error, trace):
        """Called for each frame that an exception passes."""
        if self.raised and self.is_mine(frame.f_code) and (trace is None or trace.tb_next is None) \
                and not is_one_of(type(error), StopIteration, GeneratorExit, StopAsyncIteration):
            self.stop(frame, "exception", error=(error, "always", trace))

    def unwinds(self, frame, error, trace):
        """An exception leaves a function."""
        step = self.steps.get(get_ident())
        if step is not None:
            step.at_return(frame, False)
        if self.uncaught and is_outermost(frame) and not is_one_of(type(error), SystemExit, KeyboardInterrupt, GeneratorExit):
            self.stop(frame, "exception", error=(error, "unhandled", trace))  # other exceptions end a program normally

    def traces(self, frame, ident):
        return ident in self.pausing or (self.raised and self.is_mine(frame.f_code)) or (self.uncaught and is_outermost(frame))

    def end_step(self, ident):
        with self.lock:
            step = self.steps.pop(ident, None)
            if step is not None:
                _places.remove(step.place)
                _hooks.update(self)

    def stop(self, frame, reason, text=None, error=None, breakpoints=()):
        """Holds the thread here until its client lets it continue."""
        ident = get_ident()
        if self.over or not self.ready or ident in self.stops or ident in self.listener.own:  # then no client could release it
            return
        self.end_step(ident)
        was_paused = ident in self.pausing
        self.pausing.discard(ident)
        stop = Stop(self, stack_of(frame, error), reason, text, error)
        stop.places = [each.number for each in breakpoints]
        self.stops[ident] = stop
        try:
            if was_paused:
                _hooks.update(self)
            self.listener.stopped(stop)
            stop.wait()
        finally:
            stop.going = True
            if getpid() == self.pid:
                self.listener.resumed(stop)
            self.stops.pop(ident, None)
            del stop.stack[:]
            stop.error = None


def can_step():
    """Before 3.12 a thread with a trace function of its own keeps it."""
    return MONITORED or _hooks.is_own(sys.gettrace())


def stack_of(frame, error):
    """Frames, innermost first. For an uncaught exception: those that it passed."""
    stack = []
    if error is not None and error[1] == "unhandled":
        trace = error[2]
        while trace is not None:
            stack.insert(0, trace.tb_frame)
            trace = trace.tb_next
    if frame not in stack:
        stack = []
    while frame is not None:
        if frame not in stack and not frame.f_code.co_filename.startswith("<probing>"):
            stack.append(frame)
        frame = frame.f_back
    return stack


def of_here():
    """The debugger, in a callback; None: there is none, or this is a forked child."""
    found = current
    return found if found is not None and not found.over and found.pid == getpid() else None
