"""Loads the files of this package inside a program without a trace in sys.modules: the first file that the agent runs.

The agent carries all files (src/agent/embed.h) and gives this one _probing, the module that it makes, as a global. The files import each other as those
of any package do (`from . import _streams`), and find _probing by name. Each gets builtins of its own, a copy with another __import__, which the
import statement asks: what belongs to us comes from here, all else from Python's own.
"""
import builtins
import sys
from _thread import RLock, allocate_lock, get_ident

PACKAGE = "probing"
_modules = {}  # name inside the package -> module
_loading = RLock()
_patience = [3]  # how often a turn of others may take all of the switch interval
HELD_MS, LONG_MS = 1, 4


def load(name):
    """The module of this package, evaluated when it is asked for the first time; "": the package itself."""
    with _loading:
        module = _modules.get(name)
        if module is None:
            source = _probing.source(name or "__init__")
            module = _modules[name] = type(sys)(PACKAGE + "." + name if name else PACKAGE)
            module.__package__ = PACKAGE
            module.__builtins__ = _builtins
            module.__load__ = load
            filename = "<probing>/%s.py" % (name or "__init__")
            try:
                for code in compiled_parts(source, filename):
                    exec(code, module.__dict__)
            except BaseException:
                del _modules[name]
                raise
        return module


def compiled_parts(source, filename):
    """The code of a file, function by function: the compiler keeps the GIL for all that it is given, some 5 ms for a large file, and between
    two parts others have their turn. Where a part is none (a text that looks like code), the file is compiled as it is."""
    text = source if isinstance(source, str) else bytes(source).decode()
    lines, begins = text.split("\n"), [0]
    for number, line in enumerate(lines):
        if line.startswith(("def ", "class ", "async def ")) and not lines[number - 1].startswith("@"):
            begins.append(number)
    parts, since = [], _probing.milliseconds()
    try:
        for begin, end in zip(begins, begins[1:] + [len(lines)]):
            parts.append(compile("\n" * begin + "\n".join(lines[begin:end]) + "\n", filename, "exec", 0, True))
            since = give_way(since)
        return parts
    except SyntaxError:
        return [compile(source, filename, "exec", 0, True)]


def give_way(since):
    """Has others take the GIL before they have to ask for it, which takes each of them 5 ms: threads that hand it to each other all the time would
    wait so at every turn. A program that keeps it until we ask is not given way to again and again, since then we would not get on. When we
    last gave way."""
    now = _probing.milliseconds()
    if now - since <= HELD_MS or _patience[0] <= 0 or get_ident() == _probing.main_ident():
        return since
    wait = allocate_lock()
    wait.acquire()
    wait.acquire(True, 0.00005)
    since = _probing.milliseconds()
    if since - now >= LONG_MS:
        _patience[0] -= 1
    return since


def _import(name, names=None, local=None, wanted=(), level=0):
    if level == 0:  # also of our own package by its whole name, which may be another's: as anybody's import
        return _probing if name == "_probing" else builtins.__import__(name, names, local, wanted, level)
    if name:
        return load(name)
    holder = type(sys)(PACKAGE)  # from . import a, b
    for each in wanted:
        setattr(holder, each, load(each))
    return holder


_builtins = dict(builtins.__dict__, __import__=_import)
