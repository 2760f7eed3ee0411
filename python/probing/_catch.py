"""`probing catch`: keeps the scene of an uncaught exception, and serves a prompt in the failing frame, post mortem.

Hooks are set where Python ends a thread: sys.excepthook, threading.excepthook (before 3.8, which has none, the function by which threading
formats the traceback of a thread) and sys.unraisablehook for threads of _thread. They are C functions (src/agent/crash/catch_hook.c), which have the scene
described here, in a thread of ours, and then call the former hook. In a child of fork, after a detach and after `catch --stop` they only call that.
The agent handles fatal signals (src/agent/crash/crash.c).

No code of the program runs for a scene, also not __str__ of the exception, and the files of its source are read without import hooks. A value is
described by its type here, and only values of Python's own types by their contents: the repr of a tensor would wait for a device that may just
have failed, and a program that dies must not hang instead.
"""
import sys

import _probing
from . import _by_type, _helpers, _pause, _prompt, _values
from ._by_type import PLAIN, before, full_name, message_of, name_by_ident, name_of, parts_of, trace_of
from ._own import make_table
from ._program import at_detach, import_threading, leave_before_the_end

TEXT_MAX, VALUE_MAX, ITEMS_MAX, FRAMES_MAX, LOCALS_MAX = 3500, 200, 8, 200, 100
ROWS_MAX = 3000  # of one scene: the thread waits for them
CHAIN_MAX, LINES_MAX, SOURCE_MAX = 20, 400, 1 << 20
KEEP_MS = 500
FUNCTION, BUILTIN, MODULE = type(lambda: 0), type(len), type(sys)

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
    if kind is str or kind is bytes:
        return repr(value) if len(value) <= VALUE_MAX else repr(value[:VALUE_MAX]) + "..."
    if kind is int and value.bit_length() > 1000:
        return "<int of %d bits>" % value.bit_length()
    if id(kind) in PLAIN:
        return repr(value)
    if kind is list or kind is tuple or kind is set or kind is frozenset or kind is dict:
        return describe_items(value, kind, depth)
    tensor = _values.tensor_text(value)
    if tensor is not None:
        return tensor
    if issubclass(kind, type):
        return "<class %s>" % full_name(value)
    if kind is FUNCTION or kind is BUILTIN:
        return "<%s %s>" % (name_of(kind), kind.__dict__["__name__"].__get__(value))
    if kind is MODULE:
        return "<module %s>" % _by_type.exact_text(MODULE.__dict__["__dict__"].__get__(value).get("__name__", "?"))
    return "<%s at %#x>" % (full_name(kind), id(value))


def describe_items(value, kind, depth):
    opened, closed = "[]" if kind is list else "()" if kind is tuple else "{}"
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
    if type(name) is str and (type(value) is str or type(value) is bytes) and _probing.is_secret(name):
        return "***"
    return describe_value(value, depth)


def describe_locals(frame, ended):
    """Lines of "name = value"; None: none, or they cannot be read."""
    lines, size = [], 0
    try:
        found = _helpers.frame_locals(frame, ended)
        if not issubclass(type(found), dict):  # the namespace of a class that its metaclass has made
            return None
        for name, value in list(dict.items(found))[:LOCALS_MAX]:
            if type(name) is not str or frame.f_code.co_name == "<module>" and (name.startswith("__") or type(value) is MODULE):
                continue
            try:
                line = "%s = %s" % (name, describe_named(name, value))
            except Exception:
                line = "%s = <%s>" % (name, name_of(type(value)))
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


# --- the traceback as a text

class Sources:
    """Lines of source files. own_files: this thread has left the descriptors of the program and may open files."""

    def __init__(self, own_files):
        self.own_files, self.known = own_files, {}

    def line(self, path, number):
        if path not in self.known:
            self.known[path] = self.cached(path) or (self.read(path) if self.own_files else [])
        lines = self.known[path]
        return lines[number - 1].strip() if number and 0 < number <= len(lines) else ""

    def cached(self, path):
        """What linecache has, also of code without a file."""
        cache = sys.modules["linecache"].__dict__.get("cache") if "linecache" in sys.modules else None
        entry = cache.get(path) if type(cache) is dict else None
        return entry[2] if type(entry) is tuple and len(entry) == 4 and type(entry[2]) is list else None

    def read(self, path):
        """Not by linecache: an import of it may pass through hooks of the program, and a file may be a pipe."""
        found = None if path.startswith("<") else _probing.read_source(path, SOURCE_MAX)
        return found.decode("utf-8", "replace").splitlines() if found else []


def format_frames(trace, sources):
    lines = []
    while trace is not None and len(lines) < LINES_MAX:
        code, number = trace.tb_frame.f_code, trace.tb_lineno
        path = _by_type.exact_text(code.co_filename)
        lines.append('  File "%s", line %s, in %s\n' % (path, number, _by_type.exact_text(code.co_name)))
        source = sources.line(path, number)
        if source:
            lines.append("    %s\n" % source)
        trace = trace.tb_next
    return (["Traceback (most recent call last):\n"] if lines else []) + lines + (["  ...\n"] if trace is not None else [])


def format_error(error, sources, seen):
    """As Python prints it, with the exceptions before it and those of a group; each once."""
    chain = []
    while error is not None and id(error) not in seen and len(seen) < CHAIN_MAX:
        seen[id(error)] = error
        lines = format_frames(trace_of(error), sources)
        message = message_of(error, describe_value)
        lines.append("%s%s\n" % (full_name(type(error), "__main__"), ": " + message if message else ""))
        for each in parts_of(error):
            lines += ["  | " + line for line in format_error(each, sources, seen)] or ["  | ...\n"]
        error, between = before(error)
        chain.insert(0, lines)
        if error is not None and id(error) not in seen and len(seen) < CHAIN_MAX:
            chain.insert(0, [between])
    return [line for lines in chain for line in lines]


# --- the hooks

def ends_program(frame):
    """Whether Python calls sys.excepthook at its end. A prompt of the program (code.interact, python -i) calls it for typed code, and a library
    to print something; both go on."""
    if "ps1" in sys.__dict__:
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


class Catch:
    """One `probing catch`, until it is stopped."""

    def __init__(self, prompt, limit_ms, connect_hint):
        self.prompt, self.limit_ms, self.connect_hint = prompt, limit_ms, connect_hint
        self.set = []  # (holder, name, former hook, our hook)
        self.tables = make_table("python.exceptions"), make_table("python.crash_frames")
        numbers = _probing.shared.setdefault("catch numbers", [0])
        numbers[0] += 1
        self.number = numbers[0]

    def put(self, holder, name, describe, prints_first=False, only_with=None):
        if hasattr(holder, name):
            former = getattr(holder, name)
            ours = _probing.catch_hook(self.number, former, describe, prints_first, only_with)
            setattr(holder, name, ours)
            self.set.append((holder, name, former, ours))

    def install(self):
        leave_before_the_end()  # a thread of ours describes what fails last
        import_threading()
        threading = sys.modules.get("threading")
        self.put(sys, "excepthook", self.of_program, sys.excepthook is sys.__excepthook__)
        self.put(threading, "excepthook" if hasattr(threading, "excepthook") else "_format_exc", self.of_thread)
        self.put(sys, "unraisablehook", self.of_thread, True, "thread started by")
        _probing.catch_on(self.number)

    def remove(self):
        """Restores the hooks that are still ours. A hook set after ours stays; ours only calls the former one then."""
        _probing.catch_on(0)
        for holder, name, former, ours in self.set:
            if getattr(holder, name, None) is ours:
                setattr(holder, name, former)
        del self.set[:]

    # --- in a thread of ours, while the thread that fails waits. Each returns what serves a prompt in it, or None.

    def of_program(self, failure, own_files):
        """sys.excepthook(kind, error, trace)."""
        arguments, frame, ident, tid, _ = failure
        if len(arguments) != 3 or not ends_program(frame):
            return None
        return self.keep(arguments[1], arguments[2], ident, tid, None, own_files)

    def of_thread(self, failure, own_files):
        """threading.excepthook(args) and sys.unraisablehook(args), whose fields begin alike; threading._format_exc()."""
        arguments, _, ident, tid, handled = failure
        if len(arguments) == 1 and issubclass(type(arguments[0]), tuple):
            fields = tuple.__getitem__(arguments[0], slice(0, 4))
            return self.keep(fields[1], fields[2], ident, tid, _by_type.thread_name(fields[3]), own_files)
        return self.keep(handled, handled and trace_of(handled), ident, tid, None, own_files)

    def keep(self, error, trace, ident, tid, name, own_files):
        """Writes the scene."""
        kind = type(error)
        if not issubclass(kind, BaseException) or kind is SystemExit:
            return None
        try:
            frames, lines = [], {}
            while trace is not None:
                frames.append(trace.tb_frame)
                lines[id(trace.tb_frame)] = trace.tb_lineno
                trace = trace.tb_next
            frames = [frame for frame in reversed(frames) if not str.startswith(frame.f_code.co_filename, "<probing>")]
            name = name or name_by_ident(ident, _probing.main_ident())
            self.write(error, frames, lines, ident, tid, name, own_files)
            if not self.prompt or not frames or not issubclass(kind, Exception):
                return None
            return Mortem(self, "%s ended thread %s" % (name_of(kind), name), frames, lines, error)
        except Exception as failed:
            note("the scene of %s could not be kept: %s: %s" % (name_of(kind), type(failed).__name__, failed))
            return None

    def write(self, error, frames, lines, ident, tid, name, own_files):
        exceptions, rows = self.tables
        number, main = _probing.crash_number(), _probing.main_ident()
        for depth, frame in enumerate(frames[:FRAMES_MAX]):
            self.write_frame(rows, number, tid, name, True, depth, frame, lines[id(frame)])
        left = ROWS_MAX
        for other, _ in _helpers.live_threads():
            if other == ident:
                continue
            native = _by_type.native_id(other)
            for depth, frame in enumerate(_helpers.frames_of(other)[:min(FRAMES_MAX, left)]):
                left -= 1
                self.write_frame(rows, number, native, name_by_ident(other, main), False, depth, frame, frame.f_lineno)
        at = (frames[0].f_code.co_name, frames[0].f_code.co_filename, lines[id(frames[0])]) if frames else (None, None, None)
        text = "".join(format_error(error, Sources(own_files), {}))
        exceptions.append(number, "exception", full_name(type(error), "__main__"), clip(message_of(error, describe_value)), tid, name,
                          at[0], at[1], at[2], clip(text))
        _probing.keep_rows(KEEP_MS)

    def write_frame(self, rows, number, tid, name, failed, depth, frame, line):
        code = frame.f_code
        rows.append(number, tid, name, failed, depth, "python", code.co_name, code.co_filename, line or None,
                    describe_locals(frame, failed))


class Mortem(_pause.Pause):
    """A thread that an exception has ended, held so that a client can inspect its frames."""

    help, word, can_step, ended = HELP, "catch", False, True

    def __init__(self, catch, why, frames, lines, error):
        _pause.Pause.__init__(self, catch.limit_ms)
        self.connect_hint = catch.connect_hint
        self.catch, self.why, self.frames, self.lines, self.error = catch, why, frames, lines, error

    def line_of(self, frame):
        return self.lines.get(id(frame)) or frame.f_lineno or 0

    def scene(self, stack):
        code = stack[0].f_code
        return " ".join((name_of(type(self.error)), code.co_name, str(self.line_of(stack[0])), code.co_filename)).replace("'", "?")

    def lent(self):
        return {"error": self.error}

    def hand_over(self, error):
        """The thread that is held has ended: there is no code of the program that could be interrupted."""

    def serve(self):
        """In the thread that fails; returns when it may end. A signal's exception (Ctrl-C) means that too."""
        held = held_threads()
        try:
            held.append(self)
            self.hold(self.frames)
        except BaseException as raised:
            note("a failing frame was not served to the end: %s" % name_of(type(raised)))
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
    channel.write(b"ok %s\n" % (b"on" if words[0] == "on" else b"was_on" if was_on else b"was_off"))


def serve_client(arguments, channel):
    """A connection to the address that `probing catch` named."""
    typed = _prompt.admit(arguments, channel)
    if typed is None:
        return
    held = [mortem for mortem in held_threads() if not mortem.over]
    _pause.talk_in(held[0] if held else None, channel, typed, b"no thread has failed, or the program has gone on\n")
