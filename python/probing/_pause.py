"""`probing pause`: the main thread stops between two bytecodes and serves a prompt in its current frame.

The agent makes Python call Pause.stop in the main thread. It waits for a client, in short turns so that the program's signal handlers run, and
serves it until the client lets the program continue. Steps use sys.settrace in the main thread only, and are refused if the program, a debugger
or a coverage tool has a trace function there. A pause without a client, or with a silent one, ends after a limit. `pause --all` stops the other
threads too (_halt.py).
"""
import sys

from _thread import allocate_lock, get_ident
from posix import getpid

import _probing
from . import _halt, _helpers, _hooks, _prompt, _signals, _streams
from ._hooks import note
from ._names import OWN_NAMES
from ._program import forget_thread
from ._streams import ERR, OUT

TURN_MS = 100
LIST_LINES = 5
COMMANDS = {"s": "step", "n": "next", "unt": "until", "r": "return", "u": "up", "d": "down", "w": "where", "bt": "where", "l": "list",
            "c": "continue", "cont": "continue", "q": "quit", "exit": "quit", "h": "help"}
NAMES = frozenset(COMMANDS.values()) | {"threads", "thread"}
GO_MS = 1000  # time for the main thread to see that it may continue
HALT_MS = 500  # time for threads to reach a bytecode

HELP = """\
The main thread of the program is stopped. What is entered runs in its frame: locals can be read and assigned.
  step, s         to the next line, into calls          where, w, bt     the stack
  next, n         to the next line of this function     up, u; down, d   another frame
  until [LINE]    to a later line of this function      list, l [LINE]   the source around here
  return, r       until this function returns           continue, c      lets the program go on
  !CODE           runs CODE where it looks like a command; help() has what there is besides
"""

HELP_ALL = """\
  threads         the threads; those that are in C code stop when they come back from there
  thread N        looks into the frames of another one; thread 0 is the main thread
"""

current = None  # the pause of this process


class FrameNames(dict):
    """The names visible in a frame: its locals, its globals, additional ones. An assignment goes where the frame's own would go, a name new to
    the frame stays here. Like Names of _prompt.py: code reads by __getitem__, except code that reads the dict itself."""

    def __init__(self, helpers, frame, ended=False, fixed=None):
        self.helpers, self.frame, self.ended, self.fixed = helpers, frame, ended, fixed  # fixed: why no local can be assigned
        self.kept, self.own_print = set(), None
        self.first = {"__name__": frame.f_globals.get("__name__"), "__builtins__": frame.f_globals.get("__builtins__") or frame.f_builtins}
        self.seen = _helpers.frame_locals(frame, ended)
        dict.__init__(self, self.first)

    def keep(self, name, value):
        self.kept.add(name)
        dict.__setitem__(self, name, value)

    def is_function(self):
        return bool(self.frame.f_code.co_flags & _helpers.CO_OPTIMIZED)

    def is_local(self, name):
        code = self.frame.f_code
        return self.is_function() and name in code.co_varnames + code.co_cellvars + code.co_freevars

    def begin(self, copy, own_print):
        self.own_print = own_print
        self.seen = _helpers.frame_locals(self.frame, self.ended)
        if copy:
            self.first = dict(self.helpers, **self.frame.f_globals)
            self.first.update((name, value) for name, value in self.seen.items())
            self.first.update((name, dict.__getitem__(self, name)) for name in OWN_NAMES)
            for name, value in self.first.items():
                if name not in self.kept:
                    dict.__setitem__(self, name, value)

    def end(self):
        """Stores what `global` statements did without __setitem__ in the globals of the frame."""
        self.own_print = None
        for name, value in list(dict.items(self)):
            if name not in self.kept and name not in OWN_NAMES:
                if value is not self.first.get(name, self):
                    self.frame.f_globals[name] = value
                dict.pop(self, name, None)
        self.first = {name: dict.__getitem__(self, name) for name in OWN_NAMES}

    def __getitem__(self, name):
        if name in OWN_NAMES or name in self.kept:
            return dict.__getitem__(self, name)
        if name in self.seen:
            return self.seen[name]
        if name in self.frame.f_globals:
            return self.frame.f_globals[name]
        if name == "print" and self.own_print is not None:
            return self.own_print
        return self.helpers[name]

    def __setitem__(self, name, value):
        if self.is_local(name) and self.fixed:
            raise TypeError(self.fixed)
        if self.is_local(name):
            if sys.version_info >= (3, 13):
                self.frame.f_locals[name] = value
            else:
                set_local(self.frame, name, value)
            self.seen[name] = value
        elif self.is_function() or name == "_":
            self.keep(name, value)
        else:
            self.seen[name] = value  # of a module or a class body: its own dict

    def __delitem__(self, name):
        if self.is_local(name):
            raise TypeError("a local of a running function cannot be deleted")
        if name in self.kept:
            self.kept.discard(name)
            dict.__delitem__(self, name)
        else:
            del (self.frame.f_globals if self.is_function() else self.seen)[name]

    def __contains__(self, name):
        return name in self.keys()

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self):
        return list(dict.fromkeys(list(self.kept) + list(self.seen) + list(self.frame.f_globals) + list(self.helpers)))

    def __iter__(self):
        return iter(self.keys())

    def items(self):
        return [(name, self[name]) for name in self.keys()]


def set_local(frame, name, value):
    if not _probing.set_local(frame, name, value):
        raise TypeError("this Python does not let %r be assigned" % name)


class Session(_prompt.Session):
    """A client of a pause. It is served by the main thread, while its own thread waits."""

    kept_because = "no name of this function"

    def __init__(self, channel, pause, typed):
        self.typed = typed
        self.pause, self.at, self.shown_line = pause, 0, None
        self.thread = None  # the ident of another thread whose frames are shown
        self.served = allocate_lock()
        self.served.acquire()
        _prompt.Session.__init__(self, channel)

    def make_names(self):
        return None

    def runs_typed(self, runs):
        self.pause.guard.typed = runs

    def bind(self, stack):
        """Before it is served at another place."""
        self.ident, self.own_stack, self.thread = get_ident(), stack, None
        self.look_into(stack)

    def look_into(self, stack):
        self.names = self.names_of(stack[0])
        self.stack, self.at, self.shown_line = stack, 0, None

    def names_of(self, frame):
        helpers = dict(_helpers.make(self), **self.pause.lent())
        if self.thread is None:
            return FrameNames(helpers, frame, self.pause.ended)
        stands = _probing.halted(self.thread)
        return FrameNames(helpers, frame, stands, None if stands else "that thread is in C code: its locals cannot be assigned")

    def release(self):
        self.names = self.stack = self.own_stack = None

    @property
    def prompt(self):
        return "(%s) " % self.names.frame.f_code.co_name if self.names is not None else ""

    def greeting(self):
        return "Python %s, process %d: %s\n" % (sys.version.split()[0], getpid(), self.pause.why) + self.place() + \
            "help explains; continue lets it go on, and so do %g s without a word\n" % (self.pause.limit_ms / 1000)

    def help(self):
        return self.pause.explain() + "\n" + _helpers.HELP

    def asks(self):
        return self.pause.going is None

    def place(self):
        frame = self.names.frame
        return describe(frame, self.pause.line_of(frame)) + source_lines(frame, 0, self.pause.line_of(frame))

    def run(self, source):
        word, _, argument = source.strip().partition(" ")
        name = COMMANDS.get(word, word)
        if name in NAMES and "\n" not in source and (not argument or argument.strip().isdigit()):
            getattr(self, "do_" + name)(int(argument) if argument else None)
            return 0
        status = _prompt.Session.run(self, source[1:] if source.startswith("!") else source)
        if self.over:  # exit()
            self.pause.go_on("continue")
        return status

    # --- commands

    def do_help(self, _):
        self.send(OUT, self.pause.explain())

    def do_where(self, _):
        lines = []
        for number, frame in enumerate(self.stack):
            lines.append("%s %2d  %s" % (">" if number == self.at else " ", number, describe(frame, self.pause.line_of(frame))))
        self.send(OUT, "".join(reversed(lines)))

    def move(self, by):
        if not 0 <= self.at + by < len(self.stack):
            self.send(ERR, "there is no frame further %s\n" % ("out" if by > 0 else "in"))
            return
        kept = {name: dict.__getitem__(self.names, name) for name in self.names.kept}
        self.at, self.shown_line = self.at + by, None
        self.names = self.names_of(self.stack[self.at])
        for name, value in kept.items():
            self.names.keep(name, value)
        self.send(OUT, self.place())

    def do_up(self, n):
        self.move(n or 1)

    def do_down(self, n):
        self.move(-(n or 1))

    def do_list(self, line):
        frame = self.names.frame
        at = self.pause.line_of(frame)
        middle = line or (self.shown_line + 2 * LIST_LINES + 1 if self.shown_line else at or 1)
        self.shown_line = middle
        self.send(OUT, source_lines(frame, LIST_LINES, at, middle) or "there is no source\n")

    def do_threads(self, _):
        if self.pause.halt is None:
            self.send(ERR, "the other threads go on: pause --all stops them\n")
            return
        lines = []
        for number, ident in enumerate([_probing.main_ident()] + self.pause.halt.idents):
            stack = self.own_stack if number == 0 else _helpers.frames_of(ident)
            if stack:
                here = ident == self.thread or number == 0 and self.thread is None
                state = "stopped" if number == 0 or _probing.halted(ident) else "in C"
                lines.append("%s %2d  %-20s  %-7s  %s" % (">" if here else " ", number, _helpers.Thread(0, ident, None).name, state, describe(stack[0])))
        self.send(OUT, "".join(lines))

    def do_thread(self, number):
        halt = self.pause.halt
        if halt is None or number is None or number > len(halt.idents):
            self.send(ERR, "the other threads go on: pause --all stops them\n" if halt is None else "threads lists them by number\n")
            return
        before, self.thread = self.thread, halt.idents[number - 1] if number else None
        stack = self.own_stack if number == 0 else _helpers.frames_of(self.thread)
        try:
            if not stack:
                raise LookupError("that thread is not in Python code, or has ended")
            self.look_into(stack)
        except LookupError as why:
            self.thread = before
            self.send(ERR, "%s\n" % why)
            return
        self.send(OUT, self.place())

    def steps(self, how, line=None):
        if self.thread is not None:
            self.send(ERR, "only the main thread makes steps: thread 0 goes there\n")
            return
        why = self.pause.step(how, self.names.frame, line)
        if why:
            self.send(ERR, why + "\n")

    def do_step(self, _):
        self.steps("step")

    def do_next(self, _):
        self.steps("next")

    def do_until(self, line):
        self.steps("until", line)

    def do_return(self, _):
        self.steps("return")

    def do_continue(self, _):
        self.pause.go_on("continue")

    def do_quit(self, _):
        self.over = True
        self.pause.go_on("continue")


def describe(frame, line=None):
    return "%s:%d %s\n" % (frame.f_code.co_filename, frame.f_lineno or 0 if line is None else line, frame.f_code.co_name)


def source_lines(frame, around, at, middle=None):
    """Lines of the source, the current one marked. Read by this thread, which is stopped anyway."""
    import linecache

    middle = middle or at or 1
    lines = []
    for number in range(max(1, middle - around), middle + around + 1):
        text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals)
        if text:
            lines.append("%s%5d  %s\n" % (">" if number == at else " ", number, text.rstrip("\n")))
    return "".join(lines)


def is_suspended(frame):
    """Whether a generator or coroutine is suspended rather than returns: a trace function gets "return" for both."""
    if not frame.f_code.co_flags & (0x20 | 0x80 | 0x200):
        return False
    try:
        import opcode
    except ImportError:
        return True

    return opcode.opname[frame.f_code.co_code[frame.f_lasti]] in ("YIELD_VALUE", "YIELD_FROM", "SEND")


class Pause:
    """One stop of the main thread and the steps after it."""

    why, help = "the main thread is stopped", HELP
    word, connect_hint = "pause", ""  # the command that holds it, and how to connect where that is known here
    can_step = True
    ended = False  # whether the functions of its frames have ended

    def __init__(self, limit_ms):
        self.limit_ms, self.pid, self.generation = limit_ms, getpid(), _probing.detached()
        self.lock, self.bell = allocate_lock(), allocate_lock()
        self.bell.acquire()
        self.waiting, self.session = [], None  # waiting clients, and the one being served
        self.stopped_at, self.going, self.over = None, None, False
        self.target, self.line, self.until_return = None, None, False
        self.last_input, self.since, self.ident = 0, 0, None  # ident: the held thread
        self.passed = None  # where a breakpoint stopped it: the same line may be reported twice
        self.halt = None  # of the other threads
        self.frames = ()  # of the held thread, the innermost first
        self.guard = None  # while it is held

    def explain(self):
        return self.help + (HELP_ALL if self.halt is not None else "")

    # --- in the main thread

    def stop(self):
        """Called by the interpreter. Raises nothing; what a signal handler of the program raised meanwhile is raised afterwards."""
        if getpid() != self.pid or self.over:
            return
        self.interact(sys._getframe(1))

    def interact(self, frame):
        stack = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        self.hold(stack)

    def line_of(self, frame):
        return frame.f_lineno or 0

    def scene(self, stack):
        """What has failed, and where, when these are not the frames of the thread."""

    def lent(self):
        """Names for the prompt besides those of the frame and the helpers."""
        return {}

    def hold(self, stack):
        """Serves clients in these frames until one lets the thread continue, or the limit."""
        guard = self.guard = _signals.Guard(self.interrupted)
        since = self.last_input = self.since = _probing.milliseconds()
        self.going, self.ident = None, get_ident()
        held = "%s %d %s" % (self.word, since, self.connect_hint)  # read from outside by backtrace and now (src/ask/stacks_take.c)
        scene = self.scene(stack)  # noqa: F841 the same
        self.frames = stack
        try:
            with guard:
                self.stopped_at = describe(stack[0], self.line_of(stack[0])).rstrip()  # from now on others see that it stands
                if self.session is not None:
                    self.meet(self.session, stack, True)
                while self.going is None:
                    self.bell.acquire(True, TURN_MS / 1000)
                    held = "%s %d %s" % (self.word, since, self.connect_hint)  # noqa: F841
                    self.attend(stack)
        except BaseException as raised:
            self.going = "continue"
            if guard.error is None:
                note("a pause failed: %s: %s" % (type(raised).__name__, raised))
        finally:
            self.stopped_at, self.frames = None, ()
            if self.session is not None:
                self.session.release()
            if self.going == "continue":
                self.finish()
            del stack[:]
        if guard.error is not None:
            self.hand_over(guard.error)

    def interrupted(self):
        """A signal handler of the program has raised, which ends the pause."""
        session = self.session
        if session is not None:
            session.channel.offer(b"\na signal handler of the program has raised an exception: the program goes on with it\n")
        self.going = "continue"

    def hand_over(self, error):
        _signals.raise_later(error)

    def next_client(self):
        with self.lock:
            return self.waiting.pop(0) if self.waiting else None

    def attend(self, stack):
        """One turn: serves a waiting client; checks limits."""
        new = self.next_client() if self.session is None else None
        if new is not None:
            self.session = new
            self.meet(new, stack, new.front is not None)
        self.keep_halt()
        if self.going is None and _probing.detached() != self.generation:
            self.going = "continue"
        if self.going is None and self.session is None and _probing.milliseconds() - self.last_input > self.limit_ms:
            self.expire("without a client")

    def meet(self, session, stack, again):
        """Serves a client until it lets the program continue, leaves, or is silent for too long."""
        session.pause = self
        session.bind(stack)
        if again:
            session.front.idle = self.idle
            session.send(OUT, session.place())
            session.front.ask()
        else:
            session.front = _prompt.Lines(session)
            session.front.buffer = session.typed
            session.front.idle = self.idle
            session.front.begin()
        ended = False
        while self.going is None and not ended:
            ended = not session.front.turn()
        self.last_input = _probing.milliseconds()
        if ended or session.over:
            self.session = None
            session.release()
            session.served.release()
        _streams.sinks.pop(get_ident(), None)

    def idle(self, waited_ms):
        """While the client is silent. True: it is disconnected."""
        self.keep_halt()
        if self.going is None and _probing.detached() != self.generation:
            self.going = "continue"
        elif waited_ms > self.limit_ms:
            self.expire("without a word of its client")
        return self.going is not None

    def expire(self, how):
        """The limit has passed."""
        note("%s: that ended after %g s %s" % (self.why, self.limit_ms / 1000, how))
        self.going = "continue"

    def keep_halt(self):
        halt = self.halt
        if halt is not None and not halt.keep():
            halt.end()
            note("%s: the other threads went on after %g s in which the prompt ran code" % (self.why, self.limit_ms / 1000))

    def finish(self):
        """The program continues for good."""
        global current
        self.over = True
        frame, self.target = sys._getframe(), None
        while frame is not None:
            if frame.f_trace == self.trace:
                frame.f_trace = None
            frame = frame.f_back
        if sys.gettrace() == self.trace:
            sys.settrace(_hooks.thread_function())
            _hooks.reach_frames()
        with self.lock:
            clients, self.waiting = self.waiting + ([self.session] if self.session else []), []
            self.session = None
        for session in clients:
            session.release()
            session.served.release()
        if self.halt is not None:
            self.halt.end()
        if current is self:
            current = None

    # --- steps

    def step(self, how, frame, line):
        """None, or the reason why steps are refused."""
        if not self.can_step:
            return "the program has failed there: it cannot go on"
        if sys.gettrace() is not None and sys.gettrace() != self.trace and not _hooks.is_own(sys.gettrace()):
            return "the program has a trace function of its own (a debugger, coverage): steps would take its place"
        self.target = None if how == "step" else frame
        self.line = (line or (frame.f_lineno or 0) + 1) if how == "until" else None
        self.until_return = how == "return"
        each = frame if how != "step" else sys._getframe()
        while each is not None:
            if not each.f_code.co_filename.startswith("<probing>") and (each.f_trace is None or _hooks.is_own(each.f_trace)):
                each.f_trace = self.trace
                if sys.version_info >= (3, 7):
                    each.f_trace_lines = True
            each = each.f_back
        sys.settrace(self.trace)
        self.go_on(how)
        return None

    def trace(self, frame, event, argument):
        if getpid() != self.pid and sys.gettrace() == self.trace:  # a child of fork
            sys.settrace(None)
        if self.over or getpid() != self.pid or frame.f_code.co_filename.startswith("<probing>") or get_ident() != self.ident:
            return None
        if self.going == "continue" or _probing.detached() != self.generation:  # from outside, while it ran
            self.finish()
            return None
        hooked = _hooks.beside(frame, event, argument)
        if self.over:
            return None
        if event == "call":
            return self.trace if self.target is None or frame is self.target or hooked else None
        if event == "return" and frame is self.target and not is_suspended(frame):
            self.target, self.line, self.until_return = frame.f_back, None, False
            if self.target is not None and self.target.f_trace is None:
                self.target.f_trace = self.trace
        elif event == "line" and (self.target is None or frame is self.target) and not self.until_return \
                and (self.line is None or frame.f_lineno >= self.line):
            again, self.passed = self.passed == (id(frame), frame.f_lasti), None
            if not again:
                self.target = None
                self.interact(frame)
        return None if self.over else self.trace

    def go_on(self, how):
        self.going = how
        halt = self.halt
        if how == "continue" and halt is not None:  # at once: the main thread may wait for one of them
            halt.end()

    # --- in threads of the agent

    def join(self, session):
        """For a new client: waits until it has been served."""
        with self.lock:
            if self.over:
                return False
            self.waiting.append(session)
        while not session.served.acquire(True, TURN_MS / 1000) and not _probing.closing():  # the program's end waits for this thread
            pass
        return True

    def wait_until_over(self, timeout_ms):
        """Waits for a released pause to end, before the next. Code that runs at the prompt may take longer."""
        end = _probing.milliseconds() + timeout_ms
        tick = allocate_lock()
        tick.acquire()
        while not self.over and _probing.milliseconds() < end and not _probing.closing():
            tick.acquire(True, 0.005)

    def wait_until_stopped(self, timeout_ms):
        """Where it stopped; None: it did not in time."""
        end = _probing.milliseconds() + timeout_ms
        tick = allocate_lock()
        tick.acquire()
        while self.stopped_at is None and not self.over:
            if timeout_ms and _probing.milliseconds() > end or _probing.closing():
                return None
            tick.acquire(True, 0.005)
        return self.stopped_at or "it went on at once"


def serve_control(arguments, channel):
    """`probing pause`: arguments are "stop TIMEOUT_MS LIMIT_MS [all]", "at" and how to connect to the pause, or "continue [quietly]". Answers with a line,
    and one for each thread that runs on; "held" and how to connect where it is paused already."""
    global current
    words = arguments.decode().split()
    if current is not None and (current.over or current.pid != getpid()):
        current = None
    if words[0] == "at":
        if current is not None:
            current.connect_hint = " ".join(words[1:])
        channel.write(b"ok \n")
        return
    if words[0] == "continue":
        pause = current
        if pause is None:
            if words[1:] == ["quietly"]:
                channel.write(b"ok it was not held\n")
            else:
                channel.close("the process is not paused", 1)
            return
        pause.go_on("continue")
        channel.write(b"ok it goes on\n")
        return
    if current is not None and current.going == "continue":
        current.wait_until_over(GO_MS)
    if current is not None and not current.over:
        answer_again(current, channel)
        return
    timeout_ms, limit_ms = int(words[1]), int(words[2])
    pause = current = Pause(limit_ms)
    if not _hooks.pend(pause.stop):
        current = None
        channel.close("Python takes no more calls for its main thread (a debugger has stopped it?)", 1)
        return
    where = pause.wait_until_stopped(timeout_ms)
    if where is None and _probing.unpend():
        pause.over, current = True, None
        channel.close("the main thread stays in C code%s" % main_place(_probing.main_ident()), 1)
        return
    moving = []
    if words[3:] == ["all"]:
        moving = halt_others(pause, channel, timeout_ms)
        if moving is None:
            return
    lines = ["ok %s" % (where or pause.stopped_at)] + ["not stopped: %s: %s" % thread for thread in moving]
    channel.write(("\n".join(lines) + "\n").encode("utf-8", "replace"))


def answer_again(pause, channel):
    """To a second `pause`."""
    if pause.word != "pause" or not pause.connect_hint or pause.stopped_at is None:
        channel.close("the process is %s already" % ("paused" if pause.word == "pause" else "held by `%s`: `continue` lets it go on" % pause.word), 1)
        return
    seconds = (_probing.milliseconds() - pause.since) // 1000
    channel.write(("ok held %s\nsince %d s at %s\n" % (pause.connect_hint, seconds, pause.stopped_at)).encode("utf-8", "replace"))


def halt_others(pause, channel, timeout_ms):
    """The threads that run on; None: it was refused, and the channel has the reason. The main thread is stopped already: it might wait for
    others."""
    halt = _halt.Halt(pause.limit_ms)
    try:
        halt.begin()
        pause.halt = halt
        moving = halt.wait(min(timeout_ms or HALT_MS, HALT_MS, pause.limit_ms // 2))
        pause.last_input = _probing.milliseconds()
    except BaseException as error:
        halt.end()
        pause.go_on("continue")
        channel.close(str(error) if isinstance(error, _halt.Refused) else "%s: %s" % (type(error).__name__, error), 1)
        return None
    if pause.over:  # meanwhile, by detach
        halt.end()
    return moving


def main_place(ident):
    """Where the main thread is, for an error."""
    stack = _helpers.frames_of(ident) if ident else []
    return ", called at " + describe(stack[0]).rstrip() if stack else ""


def serve_client(arguments, channel):
    """A connection to the address that `probing pause` named."""
    typed = _prompt.admit(arguments, channel)
    if typed is None:
        return
    from . import _stops

    if isinstance(current, _stops.Stop) or (current is None or current.over) and _stops.is_armed():
        _stops.serve_client(channel, typed)
    else:
        talk_in(current, channel, typed, b"the program has gone on\n")


def talk_in(pause, channel, typed, otherwise):
    """Has the held thread serve a client, and waits for the end of that."""
    if pause is None or not pause.join(Session(channel, pause, typed)):
        channel.write(otherwise)
    forget_thread()
