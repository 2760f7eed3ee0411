"""Loads the files of this package inside a program without listing them in sys.modules: the first file that the agent runs.

The agent carries all files (src/agent/python/embed.h) and gives this one _probing, the module that it makes, as a global. The files import each other as
in any package (`from . import _streams`), and find _probing by name. Each gets its own copy of builtins with another __import__, which the import
statement calls: our own modules come from here, all others from Python's import.
"""
import builtins
import sys
from _frozen_importlib import BuiltinImporter, ModuleSpec
from _imp import create_builtin, exec_builtin
from posix import getpid

PACKAGE = "probing"
OFTEN_PATCHED = ("_thread", "time")


def original(module, names):
    """What these names of a module were before gevent replaced them: its locks and its sleep would give a thread of ours an event loop, with
    descriptors of the program, that stays when the thread has ended."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey.get_original(module.__name__, names) if hasattr(monkey, "get_original") else [getattr(module, name) for name in names]


RLock, allocate_lock, get_ident = original(builtins.__import__("_thread"), ["RLock", "allocate_lock", "get_ident"])
_modules = {}  # name inside the package -> module
_loading = RLock()
_patience = [3]  # how often other threads may use up the whole switch interval
HELD_MS, LONG_MS = 1, 4


def leave_before_the_end():
    """The end waits for us from our first line on: a thread that waits for the GIL of an interpreter that is gone crashes, and without a GIL one that is
    refused its return keeps locks that the end wants. The program does not find atexit imported by us. Before 3.10 each import of it would replace the
    program's functions: there _program.py does this, for code that may import."""
    shared = _probing.shared
    if sys.version_info < (3, 10) or shared.get("atexit") == getpid() or "atexit" not in sys.builtin_module_names:
        return
    shared["atexit"] = getpid()
    atexit = sys.modules.get("atexit")
    if atexit is None:
        atexit = create_builtin(ModuleSpec("atexit", BuiltinImporter, origin="built-in"))
        exec_builtin(atexit)
    atexit.register(_probing.ending)


def load(name):
    """The module of this package, evaluated on first use; "": the package itself."""
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
    """Compiles a file function by function: the compiler holds the GIL for the whole text it is given, some 5 ms for a large file; between two
    parts other threads get the GIL. If a part does not compile (a text that looks like code), the file is compiled as a whole."""
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
    """Lets other threads take the GIL before they have to request it, which takes each of them 5 ms: threads that hand it to each other all the
    time would lose that at every turn. A program that keeps the GIL until we request it is not given way again and again, since we would make no
    progress. Returns when we last gave way."""
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
    if level == 0:  # also for our own package by its full name, which may be another installation: a normal import
        module = _probing if name == "_probing" else builtins.__import__(name, names, local, wanted, level)
        return unpatched(module) if name in OFTEN_PATCHED and "gevent.monkey" in sys.modules else module
    if name:
        return load(name)
    holder = type(sys)(PACKAGE)  # from . import a, b
    for each in wanted:
        setattr(holder, each, load(each))
    return holder


def unpatched(module):
    copy, names = type(sys)(module.__name__), list(vars(module))
    vars(copy).update(zip(names, original(module, names)))
    return copy


_builtins = dict(builtins.__dict__, __import__=_import)
leave_before_the_end()
