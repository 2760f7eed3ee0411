"""Where a debugger stops the program: at lines, at functions, at exceptions, after a step. What a stop is for is _dap.py's.

From 3.12 on sys.monitoring calls us: line events of the functions that have a breakpoint, and once for each function that begins, so that functions
which are loaded later are found. Lines without a breakpoint are taken out at their first event. Before 3.12 the main thread and threads that begin
later get a trace function, which looks at every call. A thread that has one already (coverage, another debugger) keeps it and does not stop.

Only the thread that comes to a place stops. The others go on: a training program has threads (watchdogs, stores) that others wait for.
A forked child is not debugged: the first event in it takes everything out.
"""
import sys

from _thread import RLock, allocate_lock, get_ident
from posix import getpid

import _probing
from . import _helpers
from ._program import is_of_program, main_globals, stdlib

MONITORED = sys.version_info >= (3, 12)
TOOLS = (0, 3, 4)  # the number that PEP 669 gives to debuggers, then those of nobody
SUSPENDS, COROUTINE = 0x20 | 0x80 | 0x200, 0x80 | 0x200  # of a code's flags
COMPREHENSIONS = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"])
CODE = type((lambda: 0).__code__)
FREE_THREADED = "free-threading" in sys.version  # stacks of threads that run cannot be walked
TURN_S = 0.1

current = None  # the debugger of this process
main_calls = []  # (process, function) that its main thread is to call


class Refused(Exception):
    """What was asked for cannot be had; the text says why."""


class Place:
    """A breakpoint: what the client asked for, and the line that it is at (None: there is no such code yet)."""

    def __init__(self, number, wanted, condition=None, hit_condition=None, log=None):
        self.number, self.wanted, self.line = number, wanted, None
        self.condition = compile(condition.strip(), "<condition>", "eval", 0, True) if condition else None
        self.log = parse_log(log) if log else None
        self.hits, self.after = 0, parse_hits(hit_condition) if hit_condition else None


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


def parse_log(text):
    """Texts and compiled expressions: "loss={loss}"; {{ and }} are braces."""
    parts, at = [], 0
    while at < len(text):
        if text[at:at + 2] in ("{{", "}}"):
            parts.append(text[at])
            at += 2
        elif text[at] == "{":
            end = at
            for end in range(at + 1, len(text)):
                if text[end] == "}" and is_expression(text[at + 1:end]):
                    break
            else:
                raise Refused("in the log message %r a { has no } that ends an expression" % text)
            parts.append(compile(text[at + 1:end].strip(), "<log>", "eval", 0, True))
            at = end + 1
        else:
            parts.append(text[at])
            at += 1
    return parts


def is_expression(text):
    try:
        compile(text.strip(), "<log>", "eval", 0, True)
    except (SyntaxError, ValueError):
        return False
    return True


def code_lines(code):
    """The lines that code has events for."""
    if hasattr(code, "co_lines"):
        lines = {line for _, _, line in code.co_lines() if line}
    else:
        line = code.co_firstlineno
        lines = {line}
        for step in code.co_lnotab[1::2]:
            line += step - 256 if step > 127 else step
            lines.add(line)
    if code.co_flags & _helpers.CO_OPTIMIZED and len(lines) > 1:
        lines.discard(code.co_firstlineno)  # that of `def`, which belongs to the code around it
    if code.co_name in COMPREHENSIONS:
        lines.discard(code.co_firstlineno)  # else the line around it would stop once more for each item
    return lines


def with_inner(code):
    found = [code]
    for each in code.co_consts:
        if type(each) is CODE:
            found.extend(with_inner(each))
    return found


class Step:
    def __init__(self, how, frame):
        self.how, self.frame = how, frame if how != "in" else None
        self.returns = how == "out"  # it waits for the end of that frame
        self.armed = {}


class Stop:
    """A thread that stands. It runs what its client asks for (tasks), since only there locals are its own."""

    def __init__(self, debugger, stack, reason, text, error):
        self.debugger, self.stack, self.reason, self.text, self.error = debugger, stack, reason, text, error
        self.ident, self.going, self.places = get_ident(), False, []
        self.can_step = error is None and debugger.engine.can_step()
        self.tasks, self.bell = [], allocate_lock()
        self.bell.acquire()

    def is_ended(self, frame):
        """Whether its function is over: an exception that nobody catches has left it."""
        return self.error is not None and self.error[1] == "unhandled" and frame in self.stack and not _helpers.is_own_frame(frame)

    def ring(self):
        try:
            self.bell.release()
        except RuntimeError:  # it rings already
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
        while not self.going and not debugger.over and getpid() == debugger.pid and _probing.detached() == debugger.generation:
            if self.tasks:
                self.tasks.pop(0)()
            else:
                self.bell.acquire(True, TURN_S)


class Debugger:
    """Breakpoints, steps and exception filters of this process. listener: told of stops (stopped, resumed), texts (output) and breakpoints
    that found their line (moved), in the thread that it happens in."""

    def __init__(self, listener):
        self.listener, self.pid, self.generation = listener, getpid(), _probing.detached()
        self.lock = RLock()
        self.over, self.just_mine = False, True
        self.ready = False  # a client sets all its breakpoints before it wants to hear of one
        self.files, self.names = {}, {}          # canonical file -> line -> places; file name of code -> canonical file
        self.unplaced = {}                       # canonical file -> places without a line
        self.functions, self.raised, self.uncaught = {}, False, False
        self.stops, self.steps, self.pausing, self.inside = {}, {}, set(), set()
        self.user_code = {}
        self.library = stdlib()
        self.engine = make_engine(self)

    # --- by the debugger's own threads

    def begin(self):
        global current
        if current is not None and not current.over and current.pid == getpid():
            raise Refused("another client debugs this process")
        current = self
        try:
            self.engine.begin()
        except BaseException:
            current, self.over = None, True
            raise

    def end(self):
        """Everything off, all threads go on."""
        global current
        with self.lock:
            if self.over:
                return
            self.over = True
            self.files, self.unplaced, self.functions, self.raised, self.uncaught = {}, {}, {}, False, False
        self.engine.end()
        for stop in list(self.stops.values()):
            stop.go()
        if current is self:
            current = None

    def set_places(self, path, places):
        """The breakpoints of a file, all of them."""
        file = self.canonical(path)
        with self.lock:
            self.unplaced[file] = places
            self.files[file] = {}
            codes = self.codes_of(file)
            for code in codes:
                self.place(file, code)
            if not places:
                self.files.pop(file, None)
                self.unplaced.pop(file, None)
            self.engine.update(codes)

    def place(self, file, code):
        """Gives breakpoints of the file their lines, as far as this code has them."""
        lines, moved = self.files[file], []
        for place in self.unplaced.get(file, ()):
            if place.line is not None:
                continue
            place.line = nearest_line(code, place.wanted)
            if place.line is not None:
                lines.setdefault(place.line, []).append(place)
                moved.append(place)
        if file in self.unplaced:
            self.unplaced[file] = [place for place in self.unplaced[file] if place.line is None]
        return moved

    def set_functions(self, places):
        with self.lock:
            self.functions = places
            self.engine.update()

    def set_exceptions(self, raised, uncaught):
        with self.lock:
            self.raised, self.uncaught = raised, uncaught
            self.engine.update()

    def pause(self, ident):
        """Has the thread stop at its next line, the main thread between two bytecodes."""
        if ident in self.stops:
            return
        self.pausing.add(ident)
        if ident == _probing.main_ident():
            self.in_main(self.pause_main)
        else:
            self.engine.pause(ident)

    def in_main(self, function):
        """Has the main thread call it when it next can. What an earlier debugger asked for may still wait there: one call does for all."""
        waiting = bool(main_calls)
        main_calls.append((self.pid, function))
        if not _probing.pend(run_main_calls) and not waiting:
            del main_calls[:]
            raise Refused("Python takes no more calls for its main thread (a pause of it is under way?)")

    def pause_main(self, frame):
        if get_ident() in self.pausing and not self.over:
            self.stop(frame, "pause")

    def go_on(self, ident, how=None):
        """A thread that stands goes on, for good or for a step."""
        stop = self.stops.get(ident)
        if stop is None:
            return
        if how is not None and stop.can_step:
            step = Step(how, stop.stack[0])
            with self.lock:
                self.steps[ident] = step
                self.engine.begin_step(step, stop)
        stop.go()

    # --- in threads of the program

    def logs(self):
        """Whether threads of the program may have something to tell while none of them stands."""
        return bool(self.files or self.functions)

    def is_mine(self, code):
        """Whether it is code of the program rather than of a library."""
        if not self.just_mine:
            return not code.co_filename.startswith("<probing>")
        name = code.co_filename
        known = self.user_code.get(name)
        if known is None:
            made = name == "<string>" and "__file__" in main_globals()  # by exec, as dataclasses do; else it is the program: python -c
            known = self.user_code[name] = not (made or name.startswith(("<probing>", "<frozen ")) or "/site-packages/" in name
                                                or "/dist-packages/" in name or (self.library and name.startswith(self.library)))
        return known

    def canonical(self, name):
        known = self.names.get(name)
        if known is None:
            os = sys.modules.get("os")
            known = name if name.startswith("<") or os is None else os.path.realpath(name)
            self.names[name] = known
        return known

    def file_of(self, name):
        """The file of our breakpoints that code of this file name is of; None: of none."""
        file = self.canonical(name)
        if file in self.files:
            return file
        if not name.startswith(("/", "<")):  # as it was given on a command line, maybe in another folder
            end = "/" + name.lstrip("./")
            for each in self.files:
                if each.endswith(end):
                    self.names[name] = each
                    return each
        return None

    def codes_of(self, file):
        """Code of a file that is loaded: what threads execute, and what modules of that file hold."""
        found = {}

        def add(code):
            if id(code) not in found and file in (self.canonical(code.co_filename), self.file_of(code.co_filename)):
                for each in with_inner(code):
                    found[id(each)] = each

        for ident, _ in [] if FREE_THREADED else _helpers.all_threads():
            for frame in _helpers.frames_of(ident):
                add(frame.f_code)
        for name, module in list(sys.modules.items()):
            try:
                names = object.__getattribute__(module, "__dict__")
            except AttributeError:
                continue
            if type(names) is dict and (name == "__main__" or self.is_of_file(names.get("__file__"), file)):
                for thing in list(names.values()):
                    for code in codes_in(thing):
                        add(code)
        return sorted(found.values(), key=lambda code: -code.co_firstlineno)  # inner ones first

    def is_of_file(self, name, file):
        return type(name) is str and self.canonical(name) == file

    def holds_place(self, code):
        """Whether a breakpoint is in this code; breakpoints that wait for it are placed."""
        file = self.file_of(code.co_filename)
        if file is None:
            return False
        if self.unplaced.get(file):
            with self.lock:
                moved = []
                for each in reversed(with_inner(code)):
                    moved += self.place(file, each)
            for place in moved:
                self.listener.moved(place, file)
        lines = self.files.get(file)
        return bool(lines) and not code_lines(code).isdisjoint(lines)

    def at_line(self, frame, line):
        """Whether somebody wants more events of this line."""
        ident, code = get_ident(), frame.f_code
        file = self.file_of(code.co_filename) if self.files else None
        places = self.files[file].get(line) if file is not None and file in self.files else None
        if places and code.co_name in COMPREHENSIONS and line == code.co_firstlineno:
            places = None
        step = self.steps.get(ident)
        if ident in self.stops or ident in self.inside or self.over or not self.ready:
            return True
        hit = [place for place in places if self.hits(place, frame)] if places else []
        if hit:
            self.stop(frame, "breakpoint", places=hit)
        elif ident in self.pausing:
            self.stop(frame, "pause")
        elif step is not None and not step.returns and (step.frame is frame or (step.frame is None and self.is_mine(code))):
            self.stop(frame, "step")
        return bool(places) or bool(self.steps) or bool(self.pausing)

    def hits(self, place, frame):
        """Whether a breakpoint stops here; a log point never does."""
        ident = get_ident()
        self.inside.add(ident)
        try:
            names = _helpers.frame_locals(frame) if place.condition or place.log else None
            if place.condition is not None and not eval(place.condition, frame.f_globals, names):
                return False
            place.hits += 1
            if place.after is not None and not place.after(place.hits):
                return False
            if place.log is None:
                return True
            text = "".join(part if type(part) is str else str(eval(part, frame.f_globals, names)) for part in place.log)
            self.listener.output("console", text + "\n", frame)
            return False
        except BaseException as error:
            if not isinstance(error, Exception):  # of a signal handler
                raise
            self.listener.output("stderr", "breakpoint: %s: %s\n" % (type(error).__name__, error), frame)
            return place.log is None
        finally:
            self.inside.discard(ident)

    def at_start(self, frame):
        """A function begins, or a generator goes on. Whether it is to be told of the next time too."""
        ident, code = get_ident(), frame.f_code
        if self.over or not self.ready or ident in self.stops or ident in self.inside:
            return True
        place = self.functions and (self.functions.get(code.co_name) or self.functions.get(getattr(code, "co_qualname", code.co_name)))
        step = self.steps.get(ident)
        if step is not None and step.how == "in" and self.is_mine(code):
            self.engine.arm(step, frame)
        if place and self.hits(place, frame):
            self.stop(frame, "function breakpoint", places=[place])
        return bool(place) or any(each.how == "in" for each in self.steps.values())

    def at_return(self, frame, suspends):
        """A function ends, by an exception too, or waits in a yield: a step goes on in its caller, that of a coroutine waits for it."""
        step = self.steps.get(get_ident())
        if step is None or (step.frame is not None and step.frame is not frame) or get_ident() in self.stops:
            return
        if suspends and frame.f_code.co_flags & COROUTINE:
            return
        caller = frame.f_back
        while caller is not None and not self.is_mine(caller.f_code):
            caller = caller.f_back
        if caller is None:
            self.end_step(get_ident())
            return
        step.returns = False
        if step.how != "in":
            step.frame = caller
        self.engine.arm(step, caller)

    def at_raise(self, frame, error, trace):
        """Each frame that an exception goes through is told of it."""
        if self.raised and get_ident() not in self.stops and get_ident() not in self.inside and self.is_mine(frame.f_code) \
                and (trace is None or trace.tb_next is None) and not isinstance(error, (StopIteration, GeneratorExit, StopAsyncIteration)):
            self.stop(frame, "exception", error=(error, "always", trace))

    def at_unwind(self, frame, error, trace):
        """An exception leaves a function."""
        self.at_return(frame, False)
        if self.uncaught and get_ident() not in self.stops and get_ident() not in self.inside and is_outermost(frame) \
                and not isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):  # those who end a program want it to end
            self.stop(frame, "exception", error=(error, "unhandled", trace))

    def end_step(self, ident):
        with self.lock:
            step = self.steps.pop(ident, None)
            if step is not None:
                self.engine.end_step(step)

    def stop(self, frame, reason, text=None, error=None, places=()):
        """The thread stands here until its client lets it go on."""
        ident = get_ident()
        if self.over or not self.ready or ident in self.stops:
            return
        self.end_step(ident)
        was_paused = ident in self.pausing
        self.pausing.discard(ident)
        stop = Stop(self, stack_of(frame, error), reason, text, error)
        stop.places = [place.number for place in places]
        self.stops[ident] = stop
        try:
            if was_paused:
                self.engine.update()
            self.listener.stopped(stop)
            stop.wait()
        finally:
            stop.going = True
            if getpid() == self.pid:
                self.listener.resumed(stop)
            self.stops.pop(ident, None)
            del stop.stack[:]
            stop.error = None


def run_main_calls():
    frame = sys._getframe(1)
    while main_calls:
        pid, function = main_calls.pop(0)
        if pid == getpid():
            function(frame)


def make_engine(debugger):
    if MONITORED:
        return Monitoring(debugger)
    from ._dap_tracing import Tracing

    return Tracing(debugger)


def nearest_line(code, wanted):
    """The first line of this code from that one on, if the code spans it."""
    lines = code_lines(code)
    if not lines or not min(code.co_firstlineno, min(lines)) <= wanted <= max(lines):
        return None
    return min(line for line in lines if line >= wanted)


def codes_in(thing, level=0):
    """Code of a function, a method or a class, without calling anything of the program."""
    kind = type(thing)
    if kind in (staticmethod, classmethod):
        return codes_in(thing.__func__, level)
    if kind is property:
        return [code for each in (thing.fget, thing.fset, thing.fdel) for code in codes_in(each, level)]
    if issubclass(kind, type) and level < 3:
        return [code for each in list(type.__dict__["__dict__"].__get__(thing).values()) for code in codes_in(each, level + 1)]
    if kind.__name__ == "function" and type(getattr(thing, "__code__", None)) is CODE:
        inside = getattr(thing, "__wrapped__", None)
        return [thing.__code__] + (codes_in(inside, level + 1) if inside is not None and level < 3 else [])
    return []


def is_outermost(frame):
    caller = frame.f_back
    return caller is None or (caller.f_code.co_name in ("_bootstrap_inner", "_bootstrap") and caller.f_globals.get("__name__") == "threading")


def stack_of(frame, error):
    """Frames, innermost first. Of an exception that nobody catches: those that it came through."""
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


# --- sys.monitoring

class Monitoring:
    def __init__(self, debugger):
        self.debugger, self.tool = debugger, None
        self.local = {}  # id of code -> code, events

    def begin(self):
        mon = sys.monitoring
        for tool in TOOLS:
            if mon.get_tool(tool) is None:
                mon.use_tool_id(tool, "probing-debug")
                break
        else:
            raise Refused("other tools use the numbers that sys.monitoring has to give")
        self.tool = tool
        for name, function in CALLBACKS.items():
            mon.register_callback(tool, getattr(mon.events, name), function)

    def end(self):
        with self.debugger.lock:
            tool, self.tool = self.tool, None
            self.local.clear()
        if tool is not None:
            leave_monitoring(tool)

    def update(self, codes=()):
        """After breakpoints, filters or pauses changed; codes: of a file whose breakpoints did."""
        debugger, events = self.debugger, sys.monitoring.events
        with debugger.lock:
            if self.tool is None:
                return
            for code in [code for code, _ in self.local.values()] + list(codes):
                self.settle(code)
            wanted = 0
            if debugger.files or debugger.functions or any(step.how == "in" for step in debugger.steps.values()):
                wanted |= events.PY_START | events.PY_RESUME
            if debugger.raised:
                wanted |= events.RAISE
            if debugger.uncaught or debugger.steps:
                wanted |= events.PY_UNWIND
            if debugger.pausing - {_probing.main_ident()} or (FREE_THREADED and debugger.files):
                wanted |= events.LINE  # once for each line: so functions that run already are found without a look at stacks
            sys.monitoring.set_events(self.tool, wanted)
            if wanted & (events.PY_START | events.LINE):
                sys.monitoring.restart_events()  # what was taken out is asked for again, once

    def settle(self, code):
        """The events of one function."""
        events, wanted = sys.monitoring.events, 0
        if self.debugger.holds_place(code):
            wanted |= events.LINE
        if any(id(code) in step.armed for step in list(self.debugger.steps.values())):
            wanted |= events.LINE | events.PY_RETURN | events.PY_YIELD
        if wanted == self.local.get(id(code), (code, 0))[1]:
            return
        sys.monitoring.set_local_events(self.tool, code, wanted)
        if wanted:
            self.local[id(code)] = code, wanted
        else:
            self.local.pop(id(code), None)

    def starts(self, code):
        with self.debugger.lock:
            if self.tool is not None and self.debugger.files and self.debugger.file_of(code.co_filename) is not None:
                self.settle(code)

    def arm(self, step, frame):
        with self.debugger.lock:
            if self.tool is not None and id(frame.f_code) not in step.armed:
                step.armed[id(frame.f_code)] = frame.f_code
                self.settle(frame.f_code)

    def begin_step(self, step, stop):
        frame = stop.stack[0]
        step.armed[id(frame.f_code)] = frame.f_code
        self.update([frame.f_code])
        sys.monitoring.restart_events()

    def end_step(self, step):
        if self.tool is not None:
            for code in list(step.armed.values()):
                self.settle(code)
            self.update()

    def pause(self, ident):
        self.update()

    def can_step(self):
        return True


def leave_monitoring(tool):
    mon = sys.monitoring
    if mon.get_tool(tool) != "probing-debug":
        return
    mon.set_events(tool, 0)
    for name in CALLBACKS:
        mon.register_callback(tool, getattr(mon.events, name), None)
    if hasattr(mon, "clear_tool_id"):
        mon.clear_tool_id(tool)
    mon.free_tool_id(tool)


def leave_child():
    """In a forked child: its parent's debugger is not its own."""
    global current
    if current is not None and current.pid != getpid():
        tool, current = current.engine.tool, None
        if tool is not None:
            leave_monitoring(tool)


def event(function):
    """A callback. Nothing of ours is raised in the program; what goes through is what a signal handler of the program raised in here."""
    def called(code, *arguments):
        if code.co_filename.startswith("<probing>"):
            return sys.monitoring.DISABLE if function not in KEPT else None
        debugger = of_here()
        try:
            if debugger is None:
                leave_child()
                return sys.monitoring.DISABLE if function not in KEPT else None
            return function(debugger, sys._getframe(1), code, *arguments)
        except BaseException as error:
            if is_of_program(error):
                raise
        return None
    return called


def on_line(debugger, frame, code, line):
    return None if debugger.at_line(frame, line) else sys.monitoring.DISABLE


def on_start(debugger, frame, code, offset):
    debugger.engine.starts(code)
    return None if debugger.at_start(frame) else sys.monitoring.DISABLE


def on_return(debugger, frame, code, offset, value):
    debugger.at_return(frame, False)


def on_yield(debugger, frame, code, offset, value):
    debugger.at_return(frame, True)


def on_raise(debugger, frame, code, offset, error):
    debugger.at_raise(frame, error, error.__traceback__)


def on_unwind(debugger, frame, code, offset, error):
    debugger.at_unwind(frame, error, error.__traceback__)


KEPT = (on_raise, on_unwind)  # of which DISABLE is an error
CALLBACKS = {"LINE": event(on_line), "PY_START": event(on_start), "PY_RESUME": event(on_start), "PY_RETURN": event(on_return),
             "PY_YIELD": event(on_yield), "RAISE": event(on_raise), "PY_UNWIND": event(on_unwind)}
