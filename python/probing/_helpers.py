"""The functions of the prompt besides the names of the program: threads(), frames(), frame(), modules(), tensors(), source(), help().

They change nothing. Results are shown as tables; rows describe a tensor, module or frame without holding a reference, so that a shown value does
not keep the program's memory.
"""
import sys

from _thread import get_ident

import _probing
from ._by_type import fields_of, known_threads, name_by_ident
from ._program import import_for_us

VALUE_MAX, ROWS_MAX = 300, 200
CO_OPTIMIZED = 1

HELP = """\
Python in the running process. Names are those of __main__, then the locals of the main thread's user code, then:
  threads()               the threads of the program
  frames(thread)          what a thread executes, innermost first; a thread is a number or a name of threads(), else the main thread
  frame(thread, depth)    one of them: .locals, .globals, .function, .file, .line
  modules()               torch modules that are not part of another
  tensors()               torch tensors, the largest first
  source(object)          its source
  help(object)            its documentation
  notes()                 what probing has to tell, such as of a pause that ended by itself
  exit()                  leaves the prompt; the program goes on
_ is the last value that was shown. await works where an event loop runs. Assignments reach __main__.
"""


class Table(list):
    """Rows (objects with the columns as attributes) that are shown as a table."""

    def __init__(self, columns, rows):
        list.__init__(self, rows)
        self.columns = columns

    def __repr__(self):
        cells = [[str(getattr(row, name)) for name in self.columns] for row in self[:ROWS_MAX]]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [self.columns] + cells]
        if len(self) > ROWS_MAX:
            lines.append("... and %d more" % (len(self) - ROWS_MAX))
        return "\n".join(lines) if self else "(none)"


class Text(str):
    def __repr__(self):
        return str(self).rstrip("\n")


class Row:
    """Facts about an object, and a weak reference to it."""

    def __init__(self, weak, **seen):
        self.__dict__.update(seen)
        self._thing = weak

    def get(self):
        """The object, None if it is gone."""
        return self._thing and self._thing()

    def __repr__(self):
        return ", ".join("%s=%s" % item for item in self.__dict__.items() if item[0] != "_thing")


def short(value):
    """A value as a text of a bounded length."""
    if isinstance(value, (str, bytes)) and len(value) > VALUE_MAX:
        return repr(value[:VALUE_MAX]) + "..."
    try:
        text = repr(value)
    except Exception as error:
        return "<%s whose repr raises %s>" % (type(value).__name__, type(error).__name__)
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "..."


class Thread:
    def __init__(self, number, ident, frame):
        fields = fields_of(known_threads().get(ident)) or {}
        self.number, self.ident = number, ident
        self.name = name_by_ident(ident, _probing.main_ident())
        self.daemon = dict.get(fields, "_daemonic") is True
        self.at = "%s:%d %s" % (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name) if frame is not None else "(not in Python)"

    def __repr__(self):
        return "thread %d %s, %s" % (self.number, self.name, self.at)


class Frame:
    """A frame of the program at this moment; its function may go on meanwhile."""

    def __init__(self, frame, depth):
        self.depth, self.function, self.file, self.line = depth, frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno
        self._frame = frame

    @property
    def locals(self):
        return frame_locals(self._frame)

    @property
    def globals(self):
        return self._frame.f_globals

    def __repr__(self):
        lines = ["%s:%s %s" % (self.file, self.line, self.function)]
        lines += ["  %s = %s" % (name, short(value)) for name, value in self.locals.items()]
        return "\n".join(lines)


def live_threads():
    """(ident, frame or None) of the threads of the program, the main thread first, without those that run a prompt."""
    main, own = _probing.main_ident(), set(_sinks())
    own.add(get_ident())
    found = [item for item in all_threads() if item[0] not in own]
    return sorted(found, key=lambda item: (item[0] != main, item[0]))


def all_threads(which=None):
    """(ident, innermost frame or None) of every thread; None for this one, whose frame would refer to itself and so keep what it sees alive until a
    garbage collection. Without a GIL Python itself must stop them, which is impossible beside another
    interpreter. The agent checks its layout of frames against this function, whose first local is its argument."""
    if "free-threading" in sys.version:
        others = {"_interpreters", "_xxsubinterpreters", "concurrent.interpreters"}.intersection(sys.modules)
        flat = [] if others else [part for pair in sys._current_frames().items() for part in pair]
    else:
        flat = _probing.threads(which)
    own = get_ident()
    try:
        return [(ident, None if ident == own else frame) for ident, frame in zip(flat[::2], flat[1::2])]
    finally:
        del flat[:]


def frames_of(ident):
    """The frames of a thread, innermost first. As all_threads."""
    if "free-threading" not in sys.version:
        return _probing.stack(ident)
    stack, frame = [], dict(all_threads()).get(ident)
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack


def frame_locals(frame, ended=False):
    """The variables of a frame, for a function in a new dict. f_locals of a function would up to 3.12 overwrite what exec() left. ended: its
    function has ended, so they do not change meanwhile."""
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return frame.f_globals if frame.f_code.co_name == "<module>" else frame.f_locals
    if sys.version_info >= (3, 13):
        if "free-threading" in sys.version and not ended and not is_own_frame(frame):
            raise LookupError("a free-threaded Python has no moment at which locals of running code could be read")
        return dict(frame.f_locals)
    found = _probing.frame_locals(frame)
    return dict(frame.f_locals) if found is None else found


def is_own_frame(frame):
    own = sys._getframe()
    while own is not None and own is not frame:
        own = own.f_back
    return own is frame


def _sinks():
    return list(_probing.shared.get("sinks", ()))


def threads():
    return Table(["number", "name", "ident", "daemon", "at"], [Thread(i, ident, frame) for i, (ident, frame) in enumerate(live_threads())])


def stack_of(thread):
    """The frames of a thread, innermost first."""
    found = live_threads()
    if isinstance(thread, Thread):
        thread = thread.ident
    for number, (ident, frame) in enumerate(found):
        if thread in (number, ident) and not isinstance(thread, str) or thread == Thread(number, ident, None).name:
            return frames_of(ident)
    raise LookupError("there is no thread %r (threads() lists them)" % (thread,))


def frames(thread=0):
    return Table(["depth", "function", "file", "line"], [Frame(frame, depth) for depth, frame in enumerate(stack_of(thread))])


def frame(thread=0, depth=0):
    stack = stack_of(thread)
    if not -len(stack) <= depth < len(stack):
        raise LookupError("thread %r has %d frames" % (thread, len(stack)))
    return Frame(stack[depth], depth)


def torch_of(what):
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        raise LookupError("%s needs torch, which this program has not imported" % what)
    return torch


def tensors():
    from . import _objects

    found, rows = _objects.Found(torch_of("tensors()"), True), []
    for address, record in found.tensors.items():
        fields = record.split("\t")
        if len(fields) > 1:  # not of another class
            rows.append(Row(found.refs[address], bytes=int(fields[4]), shape=_objects.sizes_of(fields[1]), dtype=fields[2], device=fields[3], grad=fields[5] == "1"))
    return Table(["bytes", "shape", "dtype", "device", "grad"], sorted(rows, key=lambda row: -row.bytes))


def modules():
    from . import _objects

    found, rows = _objects.Found(torch_of("modules()"), True), []
    for name, _, _, _, _, parameters, _, _, _, training, _, address, _, _ in _objects.modules(found, roots_alone=True):
        parts = sum(1 for _ in found.visit(address)) - 1
        rows.append(Row(found.refs[address], name=name, parameters=parameters, parts=parts, training=training == "1"))
    return Table(["name", "parameters", "parts", "training"], sorted(rows, key=lambda row: -row.parameters))


def notes():
    """Messages about events while no client was connected."""
    return Text("\n".join(_probing.shared.get("notes", ())) or "(none)")


def source(thing):
    import_for_us("inspect")
    import inspect

    if isinstance(thing, Frame):
        thing = thing._frame.f_code
    elif not hasattr(thing, "__code__") and not isinstance(thing, type) and not inspect.ismodule(thing) and not inspect.iscode(thing) \
            and not inspect.isframe(thing) and not inspect.ismethod(thing):
        thing = type(thing)
    return Text(inspect.getsource(thing))


def refuse_input(prompt=""):
    raise RuntimeError("there is no input here: it would be that of the program")


class Leave:
    """exit and quit: those of the site module would close the program's stdin."""

    def __repr__(self):
        return "exit() leaves the prompt; the program goes on"

    def __call__(self, code=None):
        raise SystemExit(code)


def make(session):
    def help(*things):
        """Help on the prompt, or on an object."""
        if not things:
            return Text(session.help())
        import_for_us("pydoc")
        import pydoc

        return Text(pydoc.plain(pydoc.render_doc(things[0])))

    return {"threads": threads, "frames": frames, "frame": frame, "modules": modules, "tensors": tensors, "source": source, "help": help,
            "notes": notes,
            "exit": Leave(), "quit": Leave(), "input": refuse_input}


def running_loop():
    """The asyncio loop that runs in this process, that of the main thread if there are several."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    from . import _objects

    loops = [weak() for weak in _objects.references(asyncio.AbstractEventLoop)]
    loops = [loop for loop in loops if loop is not None and loop.is_running()]
    loops.sort(key=lambda loop: getattr(loop, "_thread_id", None) != _probing.main_ident())
    return loops[0] if loops else None
