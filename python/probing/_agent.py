"""Finds the agent of this process: already loaded, or in a library that is loaded now.

`agent()` returns the module _probing (src/agent/module/module.c): that of an agent that was injected or started before, or the library of this
installation, loaded as an extension module. `recording()` starts it too. If neither is available a stand-in is
returned that does nothing: a program never fails because of us. What went wrong is kept for `messages()`, and written to the file that PROBING_LOG
names: a program's stdout and stderr are its own.
"""
import os
import sys
from _thread import RLock

START_S = 3
_known = [None]  # the module, or its stand-in


class _Nothing:
    """Stands in for _probing where there is none: accepts everything, does nothing."""

    shared = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __call__(self, function):
        return function

    def id(self):
        return 0

    def suspend(self):
        return None

    resume = suspend

    def append(self, *values, **named):
        return None

    def table(self, name, columns, comment):
        return self

    def span(self, *name, **attributes):
        return name[0] if name and callable(name[0]) else self

    def first_use(self, function):
        function()

    def event(self, name, **attributes):
        return None

    def record_span(self, name, start, end, **attributes):
        return None

    def log(self, **values):
        return None

    def step(self, number=0):
        return number

    def finer_memory(self, by):
        return None

    def comm_block(self, by):
        return ""

    def phase(self):
        return None

    def is_name(self, name, table):
        return True

    def tell_registered(self, name, kind, function, active):
        return None

    def is_recording(self):
        return False


_messages = []
MESSAGES_MAX = 100


def messages():
    """What went wrong with probing in this process, the oldest first."""
    return list(_messages)


def warn(text):
    """Keeps it, once for each text, as a row of probing.log too where an agent is; never an exception."""
    try:
        if text in _messages or len(_messages) >= MESSAGES_MAX:
            return
        _messages.append(text)
        if os.environ.get("PROBING_LOG"):
            file = os.open(os.environ["PROBING_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
            try:
                os.write(file, ("probing: process %d: %s\n" % (os.getpid(), text)).encode("utf-8", "backslashreplace"))
            finally:
                os.close(file)
        if is_enabled():
            _known[0].note("python", text)
    except Exception:
        pass


def _is_musl():
    if "musl" in getattr(sys.implementation, "_multiarch", ""):
        return True
    try:
        with open("/proc/self/maps", "rb") as maps:
            return b"/ld-musl-" in maps.read()
    except OSError:
        return False


def _folder():
    """That of this file; None where the agent carries it."""
    file = globals().get("__file__")
    return file and os.path.dirname(os.path.abspath(file))


def libraries():
    """Where the library may be: PROBING_LIBRARY, the environment's, that of the tree of this file."""
    name = "libprobing-%s.so" % ("musl" if _is_musl() else "glibc")
    here = _folder()
    yield os.environ.get("PROBING_LIBRARY", "")
    yield os.path.join(sys.prefix, "lib", "probing", name)
    # site-packages of lib/pythonX.Y, also if sys.prefix is another (--user, --target, a custom path)
    yield os.path.join(here, "..", "..", "..", "probing", name)
    yield os.path.join(here, "..", "..", name)  # lib/probing/python/probing: what `probing launch` uses
    yield os.path.join(here, "..", "..", "build", "release", "lib", "probing", name)


def _load():
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        raise ImportError("only CPython on Linux can be probed")
    for path in libraries():
        if path and os.path.exists(path):
            try:  # as importlib.machinery does, which takes 0.3 ms to import
                from _frozen_importlib import ModuleSpec
                from _frozen_importlib_external import ExtensionFileLoader
            except ImportError:
                from importlib.machinery import ExtensionFileLoader, ModuleSpec

            loader = ExtensionFileLoader("_probing", path)
            module = loader.create_module(ModuleSpec("_probing", loader, origin=path))
            loader.exec_module(module)
            return module
    raise ImportError("its library is not in this installation")


def agent():
    found = _known[0]
    if found is None:
        try:
            import _probing as found  # if the agent itself has loaded our files
        except ImportError:
            found = sys.modules.get("_probing")
        try:
            if found is None:
                found = _load()
                sys.modules["_probing"] = found
        except Exception as error:
            warn("nothing is recorded: %s" % error)
            found = _Nothing()
        _known[0] = found
    return found


def _is_off():
    value = os.environ.get("PROBING", os.environ.get("PROBE", ""))
    return value == "0"


def recording(asked=False):
    """The module, with the agent started, unless the environment forbids it (asked: even then)."""
    found = agent()
    if _asked[0] != DONE and not found.is_recording() and (asked or not _is_off()):
        _start_once()
    return found


NOT_YET, UNDER_WAY, DONE = range(3)
_asked = [NOT_YET]  # whether the agent was started: only once, so that the next row does not undo a detach
_starting = [0, None]  # process and lock


def _start_once():
    """Makes threads that record something wait while another thread starts the agent: their rows would be lost. Not a signal handler that
    interrupts the start, nor a child forked meanwhile."""
    if _starting[0] != os.getpid():
        _starting[:] = [os.getpid(), RLock()]
    lock = _starting[1]
    if not lock.acquire(True, START_S):
        return
    try:
        if _asked[0] == NOT_YET:
            _asked[0] = UNDER_WAY
            start()
            _asked[0] = DONE
    finally:
        lock.release()


def start(**options):
    """Starts the agent in this process if there is none. Returns True when it records; messages() has the reason of a failure."""
    found = agent()
    if found.is_recording() or isinstance(found, _Nothing):
        return found.is_recording()
    tree = _folder()
    if tree and os.path.exists(os.path.join(tree, "..", "..", "CMakeLists.txt")):  # a development tree: its sources as they are
        options.setdefault("python_dir", tree)
    error = found.start("".join("%s=%s\n" % (name, value) for name, value in options.items()))
    if error:
        warn("it could not be started: %s" % error)
    return not error


def find_tool():
    """The program of this installation: PROBING_PROGRAM, the one that brought the agent in, the environment's, the build's, that in PATH. None: there
    is none."""
    here = _folder()
    folders = [os.path.join(sys.prefix, "bin"), here and os.path.join(here, "..", "..", "build", "release", "bin")]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    for path in [os.environ.get("PROBING_PROGRAM"), None if here else agent().program()] + [os.path.join(folder, "probing") for folder in folders if folder]:
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def is_enabled():
    """Whether this process records."""
    return _known[0] is not None and bool(_known[0].is_recording())


def version():
    return getattr(agent(), "version", "")
