"""`probing catch`: keeps the scene of an uncaught exception, and serves a prompt in the failing frame, post mortem.

Hooks are set where Python ends a thread: sys.excepthook, threading.excepthook (before 3.8, which has none, the function by which threading
formats the traceback of a thread) and sys.unraisablehook for threads of _thread. Each keeps the scene, then calls the former hook; if another
library has saved ours and calls it later, it does the same. In a child of fork, after a detach and after `catch --stop` they only call the former
hook. The agent handles fatal signals (src/agent/crash.c).

A value is described by its type here, and only values of Python's own types by their contents: the repr of a tensor would wait for a device that
may just have failed, and a program that dies must not hang instead.
"""
import sys

from _thread import get_ident
from posix import getpid

import _probing
from . import _helpers, _pause, _prompt
from ._program import at_detach, import_threading

TEXT_MAX, VALUE_MAX, ITEMS_MAX, FRAMES_MAX, LOCALS_MAX = 3500, 200, 8, 200, 100
ROWS_MAX = 3000  # of one scene: the thread waits for them
KEEP_MS = 500
PLAIN = (int, float, complex, bool, type(None), type(Ellipsis), str, bytes)

HELP = """\
An exception ended this thread; the prompt is in the frame that raised it. What is entered runs there, after the fact.
  where, w, bt     the stack                        list, l [LINE]   the source around here
  up, u; down, d   another frame                    continue, c      lets the thread end
  !CODE            runs CODE where it looks like a command; help() has what there is besides
error is the exception.
"""


# --- what is in a frame

def describe_value(value, depth=2):
    """A text of bounded length and time: runs no code of the program."""
    kind = type(value)
    if kind in (str, bytes):
        return repr(value) if len(value) <= VALUE_MAX else repr(value[:VALUE_MAX]) + "..."
    if kind is int and value.bit_length() > 1000:
        return "<int of %d bits>" % value.bit_length()
    if kind in PLAIN:
        return repr(value)
    if kind in (list, tuple, set, frozenset, dict):
        return describe_items(value, kind, depth)
    module = kind.__module__ if type(kind.__module__) is str else "?"
    name = kind.__qualname__ if module == "builtins" else "%s.%s" % (module, kind.__qualname__)
    if module.partition(".")[0] in ("torch", "numpy") and kind.__name__ in ("Tensor", "Parameter", "ndarray"):
        return "<%s %s %s%s>" % (name, tuple(value.shape), value.dtype, " %s" % value.device if module.startswith("torch") else "")
    if kind is type:
        return "<class %s.%s>" % (value.__module__, value.__qualname__)
    if hasattr(kind, "__code__") or kind.__name__ in ("function", "builtin_function_or_method", "module"):
        return "<%s %s>" % (kind.__name__, getattr(value, "__name__", "?"))
    return "<%s at %#x>" % (name, id(value))


def describe_items(value, kind, depth):
    opened, closed = {list: "[]", tuple: "()", dict: "{}", set: "{}", frozenset: "{}"}[kind]
    if not depth:
        return opened + ("..." if value else "") + closed
    parts = []
    try:
        for item in value.items() if kind is dict else value:
            if len(parts) == ITEMS_MAX:
                parts.append("... %d in all" % len(value))
                break
            if kind is dict:
                parts.append("%s: %s" % (describe_value(item[0], 0), describe_named(item[0], item[1], depth - 1)))
            else:
                parts.append(describe_value(item, depth - 1))
    except RuntimeError:  # another thread changes it
        parts.append("...")
    return opened + ", ".join(parts) + closed


def describe_named(name, value, depth=2):
    """Masks texts with the name of a secret, as everywhere."""
    if type(name) is str and type(value) in (str, bytes) and _probing.is_secret(name):
        return "***"
    return describe_value(value, depth)


def describe_locals(frame, ended):
    """Lines of "name = value"; None: none, or they cannot be read."""
    lines, size = [], 0
    try:
        for name, value in list(_helpers.frame_locals(frame, ended).items())[:LOCALS_MAX]:
            if frame.f_code.co_name == "<module>" and (name.startswith("__") or type(value) is type(sys)):
                continue
            try:
                line = "%s = %s" % (name, describe_named(name, value))
            except Exception:
                line = "%s = <%s>" % (name, type(value).__name__)
            size += len(line) + 1
            if size > TEXT_MAX:
                lines.append("...")
                break
            lines.append(line)
    except Exception:
        return None
    return "\n".join(lines) or None


def clip(text):
    return text if text is None or len(text) <= TEXT_MAX else text[:TEXT_MAX // 2] + "\n...\n" + text[-TEXT_MAX // 2:]


# --- the hooks

def ends_program(frame):
    """Whether Python calls sys.excepthook at its end. A prompt of the program (code.interact, python -i) calls it for typed code, and a library
    to print something; both go on."""
    if hasattr(sys, "ps1"):
        return False
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is None


def note(text):
    """Never raises: not even while Python shuts down and modules are gone."""
    try:
        _pause.note(text)
    except Exception:
        pass


def make_table(which):
    """The table as the agent describes it (crash_keep.c), which writes the rows about signals."""
    flat = _probing.crash_table(which)
    columns = [(flat[i], flat[i + 1], None, flat[i + 2] or None) for i in range(2, len(flat), 3)]
    return _probing.table(flat[0], columns, flat[1])


class Catch:
    """One `probing catch`, until it is stopped."""

    def __init__(self, prompt, limit_ms, said):
        self.prompt, self.limit_ms, self.said = prompt, limit_ms, said
        self.pid, self.generation, self.off = getpid(), _probing.detached(), False
        self.set = []  # (holder, name, former hook, our hook)
        self.tables = make_table(0), make_table(1)

    def is_live(self):
        return not self.off and getpid() == self.pid and _probing.detached() == self.generation

    def put(self, holder, name, make):
        before = getattr(holder, name)
        ours = make(before)
        setattr(holder, name, ours)
        self.set.append((holder, name, before, ours))

    def install(self):
        import_threading()
        threading = sys.modules.get("threading")
        self.put(sys, "excepthook", self.make_excepthook)
        if hasattr(threading, "excepthook"):
            self.put(threading, "excepthook", self.make_thread_hook)
        elif hasattr(threading, "_format_exc"):
            self.put(threading, "_format_exc", self.make_format)
        if hasattr(sys, "unraisablehook"):
            self.put(sys, "unraisablehook", self.make_unraisable)

    def remove(self):
        """Restores the hooks that are still ours. A hook set after ours stays; ours only calls the former one then."""
        self.off = True
        for holder, name, before, ours in self.set:
            if getattr(holder, name, None) is ours:
                setattr(holder, name, before)
        del self.set[:]

    def make_excepthook(self, before):
        def excepthook(kind, error, trace):
            # The default hook prints the traceback, which a person wants to see first. Another one may end the process.
            first = before is sys.__excepthook__
            mortem = self.keep(kind, error, trace) if ends_program(sys._getframe().f_back) else None
            if mortem is not None and not first:
                mortem.serve()
            try:
                before(kind, error, trace)
            finally:
                if mortem is not None and first:
                    mortem.serve()
                mortem = error = trace = None
        return excepthook

    def make_thread_hook(self, before):
        def excepthook(args):
            mortem = self.keep(args.exc_type, args.exc_value, args.exc_traceback, getattr(args.thread, "name", None))
            try:
                before(args)
            finally:
                if mortem is not None:
                    mortem.serve()
                mortem = None
        return excepthook

    def make_format(self, before):
        def format_exc(*words, **named):
            mortem = self.keep(*sys.exc_info())
            text = before(*words, **named)
            if mortem is not None:
                mortem.serve()
            return text
        return format_exc

    def make_unraisable(self, before):
        def unraisablehook(args):
            mortem = None
            if "thread started by" in (getattr(args, "err_msg", None) or ""):
                mortem = self.keep(args.exc_type, args.exc_value, args.exc_traceback)
            try:
                before(args)
            finally:
                if mortem is not None:
                    mortem.serve()
                mortem = None
        return unraisablehook

    # --- in the thread that fails

    def keep(self, kind, error, trace, name=None):
        """Writes the scene; returns the object that serves a prompt in it, or None. Never raises."""
        try:
            if not self.is_live():
                return None
            frames, lines = [], {}
            while trace is not None:
                frames.append(trace.tb_frame)
                lines[id(trace.tb_frame)] = trace.tb_lineno
                trace = trace.tb_next
            frames = [frame for frame in reversed(frames) if not frame.f_code.co_filename.startswith("<probing>")]
            self.write(kind, error, frames, lines, name)
            if not self.prompt or not frames or not issubclass(kind, Exception):
                return None
            return Mortem(self, "%s ended thread %s" % (kind.__name__, name or thread_name(get_ident())), frames, lines, error)
        except Exception as failed:
            note("the scene of %s could not be kept: %s: %s" % (getattr(kind, "__name__", kind), type(failed).__name__, failed))
            return None

    def write(self, kind, error, frames, lines, name):
        import traceback

        exceptions, rows = self.tables
        number, tid, name = _probing.crash_number(), _probing.thread_id(), name or thread_name(get_ident())
        text = "".join(traceback.format_exception(kind, error, error.__traceback__)) if error is not None else None
        at = (frames[0].f_code.co_name, frames[0].f_code.co_filename, lines[id(frames[0])]) if frames else (None, None, None)
        words = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else "%s.%s" % (kind.__module__, kind.__qualname__)
        for depth, frame in enumerate(frames[:FRAMES_MAX]):
            self.write_frame(rows, number, tid, name, True, depth, frame, lines[id(frame)])
        left = ROWS_MAX
        for ident, _ in _helpers.live_threads():
            known = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
            for depth, frame in enumerate(_helpers.frames_of(ident)[:min(FRAMES_MAX, left)]):
                left -= 1
                self.write_frame(rows, number, getattr(known, "native_id", None), thread_name(ident), False, depth, frame, frame.f_lineno)
        exceptions.append(number, "exception", words, clip(message_of(error)), tid, name, at[0], at[1], at[2], clip(text))
        _probing.keep_rows(KEEP_MS)

    def write_frame(self, rows, number, tid, name, failed, depth, frame, line):
        code = frame.f_code
        rows.append(number, tid, name, failed, depth, "python", code.co_name, code.co_filename, line or None,
                    describe_locals(frame, failed))


def message_of(error):
    try:
        return str(error)
    except Exception as failed:
        return "<its __str__ raises %s>" % type(failed).__name__


def thread_name(ident):
    known = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
    return getattr(known, "name", None) or ("MainThread" if ident == _probing.main_ident() else "?")


class Mortem(_pause.Pause):
    """A thread that an exception has ended, held so that a client can inspect its frames."""

    help, can_step, ended = HELP, False, True

    def __init__(self, catch, why, frames, lines, error):
        _pause.Pause.__init__(self, catch.limit_ms)
        self.catch, self.why, self.frames, self.lines, self.error = catch, why, frames, lines, error

    def line_of(self, frame):
        return self.lines.get(id(frame)) or frame.f_lineno or 0

    def lent(self):
        return {"error": self.error}

    def serve(self):
        """Returns when the thread may end. A signal's exception (Ctrl-C) means that too."""
        held = held_threads()
        try:
            held.append(self)
            if self.catch.said and sys.stderr is not None:
                sys.stderr.write("probing: %s; it is held for %g s: %s\n" % (self.why, self.limit_ms / 1000, self.catch.said))
                sys.stderr.flush()
            self.hold(self.frames)
        except BaseException as raised:
            note("a failing frame was not served to the end: %s: %s" % (type(raised).__name__, raised))
        finally:
            if self in held:
                held.remove(self)
            if not self.over:
                self.finish()
            self.frames = self.error = None


def held_threads():
    return _probing.shared.setdefault("mortems", [])


# --- in threads of the agent

def stop():
    catch = _probing.shared.pop("catch", None)
    if catch is not None:
        catch.remove()
    for mortem in list(held_threads()):
        mortem.go_on("continue")
    return catch is not None


def serve_control(arguments, channel):
    """`probing catch`: arguments are "on PROMPT LIMIT_MS HOW TO CONNECT", or "off"."""
    words = arguments.decode().split(" ", 3)
    was_on = stop()
    if words[0] == "on":
        catch = Catch(words[1] == "1", int(words[2]), words[3] if len(words) > 3 else "")
        _probing.shared["catch"] = catch
        at_detach("catch", stop)
        catch.install()
    channel.write(b"ok %s\n" % (b"on" if words[0] == "on" else b"was on" if was_on else b"was off"))


def serve_client(arguments, channel):
    """A connection to the address that `probing catch` named."""
    typed = _prompt.admit(arguments, channel)
    if typed is None:
        return
    held = [mortem for mortem in held_threads() if not mortem.over]
    _pause.talk_in(held[0] if held else None, channel, typed, b"no thread has failed, or the program has gone on\n")
