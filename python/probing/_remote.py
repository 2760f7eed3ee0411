"""The code inside the target for `probing eval` and `probing execute`.

The agent carries this file in itself and, in a thread it started for one request, calls begin, takes the code from compiled, evaluates it, and
calls show and end; for a channel it calls serve. The agent itself evaluates the code, so that none of our frames are below it, and only this code
may be interrupted (KeyboardInterrupt from outside), so that end always undoes begin. Works on every CPython from 3.6 on.

The state of Python belongs to the program. Code that only reads (names, attributes, operators) changes nothing that the program could notice: no
module is imported, no stream replaced, no thread known to threading. The modules imported here are in every process.

This file and those that it imports are not in sys.modules (_boot.py); _probing is the module that the agent makes (src/agent/module/module.c).
"""
import sys

import _probing
from _thread import get_ident
from posix import getpid

from . import _elsewhere, _live, _streams
from ._channels import serve  # called by the agent, as begin is
from ._errors import forget_lines, format_error, remember_lines
from ._names import Names
from ._program import forget_thread, import_for_us, import_threading, leave_before_the_end, main_globals, with_own_files
from ._streams import ERR, OUT, TRACEBACK, VALUE

CHUNK = 1 << 16
ONLY_AST = 0x400  # a flag of compile: as ast.parse does it, without the module
SCALARS = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice)

# The nodes of a syntax tree that only read. A call of print is allowed too, since print is ours then.
LOOKS = frozenset("""Module Interactive Expression Expr Name Attribute Subscript Index Slice ExtSlice Constant Num Str Bytes NameConstant
    Ellipsis JoinedStr FormattedValue TemplateStr Interpolation Tuple List Dict Set Starred UnaryOp BinOp BoolOp Compare IfExp Lambda
    arguments arg ListComp SetComp DictComp GeneratorExp comprehension keyword Load Store And Or Add Sub Mult MatMult Div Mod Pow LShift RShift
    BitOr BitXor BitAnd FloorDiv Invert Not UAdd USub Eq NotEq Lt LtE Gt GtE Is IsNot In NotIn""".split())
DEFINES = frozenset(["FunctionDef", "AsyncFunctionDef", "ClassDef", "Lambda", "GeneratorExp"])
# Functions that read the dict of globals itself and not through its __getitem__: see Names.
INSIDE = frozenset(["exec", "eval", "globals", "locals", "vars", "dir", "compile"])
STREAMS = frozenset(["stdout", "stderr", "__stdout__", "__stderr__", "redirect_stdout", "redirect_stderr"])


class _Interrupt(KeyboardInterrupt):
    """The exception that stops running code.

    Not KeyboardInterrupt itself: one that passes through exec() of a text, as in namedtuple and dataclass during imports, makes Python end by
    SIGINT much later, when the program ends (3.8 and later)."""


_Interrupt.__name__ = _Interrupt.__qualname__ = "KeyboardInterrupt"
_Interrupt.__module__ = "builtins"
_probing.shared.setdefault("interrupt", _Interrupt)


class _Request:
    """One piece of code, its names, and the connection to the client."""

    def __init__(self, number, source, filename):
        self.prefix = number.to_bytes(8, "little")
        self.source = source
        self.filename = filename
        self.ended = self.streams_replaced = self.only_looks = self.defines = False
        self.parts = self.error = self.lines = self.names = None

    def send(self, stream, text):
        """Waits for room. When the client is gone the text is dropped: it is not the program's."""
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        for at in range(0, len(text), CHUNK):  # else 100 MB would be in memory three times
            if not _probing.emit(self.prefix + bytes([stream]) + text[at:at + CHUNK].encode("utf-8", "backslashreplace")):
                return

    def replace_streams(self):
        if not self.streams_replaced:
            self.streams_replaced = True
            _streams.install(self)

    def print(self, *values, **options):
        """print for the request's code: to its client, whatever sys.stdout of the program is."""
        if options.get("file") is not None or not options.keys() <= {"sep", "end", "file", "flush"}:
            self.replace_streams()
            print(*values, **options)
            return
        sep, end = options.get("sep"), options.get("end")
        for name, text in (("sep", sep), ("end", end)):
            if text is not None and not isinstance(text, str):
                raise TypeError("%s must be None or a string, not %s" % (name, type(text).__name__))
        if not all(map(_is_plain, values)):  # its __str__ may print
            self.replace_streams()
        text = (" " if sep is None else sep).join(map(str, values))
        self.send(OUT, text + ("\n" if end is None else end))


def begin(number, source, filename, keep_value):
    if _streams.owner[0] != getpid():
        _streams.forget_parent()
    filename, _, thread = filename.partition("\n")  # of `execute --thread`: the thread and the time for it
    request = _Request(number, source.decode("utf-8", "replace"), filename)
    _streams.sinks[get_ident()] = request
    try:
        _prepare(request, bool(keep_value), thread)
        if thread:
            request.parts = _elsewhere.parts(request, thread)
    except BaseException as error:  # a syntax error, say: raised again when the code would run
        request.error = error
    return request


def _prepare(request, keep_value, thread):
    if request.filename == _live.FILENAME:  # not code but the SQL of a query, for tables with rows from functions
        leave_before_the_end()
        import_threading()
        request.parts = compile("send(request)", "<probing>/_live.py", "exec", 0, True), None, {"send": _live.send, "request": request}
        return
    tree = compile(request.source, request.filename, "exec", ONLY_AST, True)
    if not thread and _elsewhere.wants_stack(tree):
        request.parts = _elsewhere.stack_parts(request)
        return
    looks, inside, streams, request.defines = _survey(tree)
    request.only_looks = looks and not ("print" in main_globals() and "print" in request.source)
    request.names = Names(inside, None if streams else request.print)
    if not request.only_looks:
        leave_before_the_end()
        import_threading()
        make_importable(request.source, tree)
        request.replace_streams()
        remember_lines(request)
    last = None
    if keep_value and tree.body and type(tree.body[-1]).__name__ == "Expr":
        expression = compile("0", request.filename, "eval", ONLY_AST, True)
        expression.body = tree.body.pop().value
        last = compile(expression, request.filename, "eval", 0, True)
    request.parts = compile(tree, request.filename, "exec", 0, True), last, request.names


def _imports_us(tree):
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif hasattr(node, "_fields"):
            names = [each.name for each in node.names] if type(node).__name__ == "Import" else [getattr(node, "module", None) or ""]
            if any(name.split(".")[0] == "probing" for name in names):
                return True
            todo.extend(getattr(node, field, None) for field in node._fields)
    return False


def make_importable(source, tree):
    """For code that imports probing: the installed package, which finds this agent; without one, our own files."""
    if "probing" not in source or not _imports_us(tree):
        return
    sys.modules.setdefault("_probing", _probing)
    if "probing" in sys.modules:
        return
    import_for_us("importlib.machinery")
    from importlib.machinery import PathFinder

    if with_own_files(lambda: PathFinder.find_spec("probing")) is None:
        package = __load__("")
        package.__path__ = []
        if hasattr(package, "_Module"):  # 3.6
            package.__class__ = package._Module
        for name in ("_agent", "spans", "tables", "config", "inspect", "tracing"):
            sys.modules["probing." + name] = __load__(name)
            setattr(package, name, __load__(name))
        sys.modules["probing"] = package


def _survey(tree):
    """Whether the code only reads, needs its names copied, uses the streams, defines something that may be called later."""
    looks, inside, streams, defines, todo = True, False, False, False, [tree]
    while todo:
        node = todo.pop()
        kind = type(node).__name__
        if isinstance(node, list):
            todo.extend(node)
            continue
        if not hasattr(node, "_fields"):
            continue
        if kind == "Call":
            looks = looks and getattr(node.func, "id", None) == "print"
        elif kind not in LOOKS:
            looks = False
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
        inside = inside or kind in ("ClassDef", "Global") or name in INSIDE
        streams = streams or name in STREAMS
        defines = defines or kind in DEFINES
        todo.extend(getattr(node, field, None) for field in node._fields)
    return looks, inside, streams, defines


def compiled(request):
    """(code to execute, code whose value is shown or None, the names for both)."""
    if request.error is not None:
        raise request.error
    return request.parts


def show(request, value):
    if value is not None:
        if not _is_plain(value):  # its __repr__ may print
            request.replace_streams()
        request.send(VALUE, repr(value) + "\n")


def _is_plain(value):
    """Made of built-in types only, whose repr runs no code of the program."""
    todo, seen = [value], 0
    while todo and seen < 1000:
        item = todo.pop()
        seen += 1
        if any(type(item) is each for each in (list, tuple, set, frozenset)):
            todo.extend(item)
        elif type(item) is dict:
            todo.extend(item.keys())
            todo.extend(item.values())
        elif not any(type(item) is each for each in SCALARS):
            return False
    return not todo


def settle():
    """Code in which a late interrupt may strike."""
    for _ in range(100):
        pass


def end(request, kind, error, trace):
    """Undoes begin. error: what the code raised, or None. Returns 0, or 1 when it raised; its traceback has been sent."""
    try:
        if kind is _elsewhere.Refused:
            request.send(TRACEBACK, "%s\n" % error)
        elif kind is not None:
            request.send(TRACEBACK, format_error(request, kind, error, trace))
            if issubclass(kind, NameError) and "free-threading" in sys.version:
                request.send(ERR, "note: a free-threaded Python has no moment at which locals of running code could be read\n")
        kept = request.names.end() if request.names is not None else ()
        if kept:
            text = "note: %s: a local of running code, or a name lent by probing; the assignment ended with this code\n"
            request.send(ERR, text % ", ".join(kept))
    finally:
        request.ended = True
        request.error = request.parts = None
        _streams.sinks.pop(get_ident(), None)
        if request.streams_replaced:
            _streams.uninstall(request)
        if not request.defines:
            forget_lines(request)
        forget_thread()
    return 0 if kind is None else 1
