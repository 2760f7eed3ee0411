"""What the program is made of: its main module, its standard library, and threads as threading knows them."""
import sys

import _frozen_importlib
import _probing
import posix
from _thread import allocate_lock as _allocate_lock, get_ident
from posix import getpid

from ._by_type import trace_of


def main_globals():
    main = sys.modules.get("__main__")
    return {} if main is None else main.__dict__


def gc_module():
    import gc

    return gc


def stdlib():
    """The folder of the standard library with a slash at its end; "": not known."""
    path = getattr(sys.modules.get("os") or sys.modules.get("encodings"), "__file__", None) or ""
    folder = path.replace("/encodings/", "/").rpartition("/")[0]
    return folder + "/" if folder else ""


def is_library(file):
    """Whether it is Python's own or an installed package's, rather than the program's."""
    folder = stdlib()
    return _probing.is_library(file) or bool(folder) and file.startswith(folder)


_KNOWN_FINDERS = ("_distutils_hack", "_frozen_importlib", "_frozen_importlib_external", "importlib._bootstrap", "importlib._bootstrap_external", "six", "zipimport")


def with_own_files(function):
    """Calls it in a thread without the program's descriptors: for our own imports and reads (own_files.c)."""
    for finder in list(sys.meta_path) + list(sys.path_importer_cache.values()):
        kind = finder if isinstance(finder, type) else type(finder)
        # A finder of the program may keep its files open, and would look for them among the program's descriptors later.
        if finder is not None and kind.__module__ not in _KNOWN_FINDERS and not kind.__module__.startswith("__editable__"):
            return function()
    return _probing.own_files(function)


def watch_forks():
    """A child of fork has none of our threads: it would wait for ever for a module that one of them was importing."""
    if not _probing.shared.get("forks"):  # once per interpreter: it cannot be unregistered
        _probing.shared["forks"] = True
        if hasattr(posix, "register_at_fork"):
            posix.register_at_fork(after_in_child=_forget_imports)
        else:
            _probing.shared["after_fork"] = _forget_imports  # 3.6: called by the agent


def _forget_imports():
    """In the child, before its code runs on: interrupted imports begin again."""
    for name, reference in list(_frozen_importlib._module_locks.items()):
        lock = reference()
        owner = getattr(lock, "owner", None)
        if owner is not None and owner != get_ident() and _probing.left_behind(owner):
            _frozen_importlib._module_locks.pop(name, None)
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                sys.modules.pop(name, None)


def import_for_us(*names):
    """Imports modules that the program may not have imported."""
    watch_forks()
    if not all(name in sys.modules for name in names):
        with_own_files(lambda: [__import__(name) for name in names])


def lines_of_file(path):
    """The lines of a source file, [] where there is none."""
    import_for_us("linecache", "tokenize")
    import linecache

    known = linecache.cache.get(path, ())
    return known[2] if len(known) == 4 else with_own_files(lambda: linecache.getlines(path))


def import_threading():
    """Imports threading, which the program may not have done, as if the main thread had."""
    watch_forks()
    if "threading" not in sys.modules and hasattr(sys, "stderr"):  # without sys.stderr nobody can import it
        with_own_files(_import_threading)


def _import_threading():
    """Before 3.13 the thread that first imports it is recorded as the main thread: the program fails an assertion when it exits, or waits for
    this thread. So that record is corrected before anybody can see it."""
    main_ident = _probing.main_ident()
    if sys.version_info < (3, 13) and main_ident != 0:
        import _frozen_importlib_external

        spec = _frozen_importlib_external.PathFinder.find_spec("threading")
        if spec is not None:
            threading = _frozen_importlib.module_from_spec(spec)
            spec.loader.exec_module(threading)
            _name_main_thread(threading, main_ident)
            sys.modules.setdefault("threading", threading)
    import threading  # also if nothing was found: by the program's own way


def _name_main_thread(threading, main_ident):
    main = threading._main_thread
    sentinel, main._tstate_lock = main._tstate_lock, _allocate_lock()
    main._tstate_lock.acquire()  # as exit expects: held, and released by exit itself
    getattr(threading, "_shutdown_locks", set()).discard(sentinel)
    main._ident = main_ident
    if hasattr(main, "_native_id"):
        main._native_id = getpid()
    with threading._active_limbo_lock:
        threading._active.pop(get_ident(), None)
        threading._active[main_ident] = main


def leave_before_the_end():
    """Makes the interpreter's end wait a moment for our threads: one that runs while modules and locks are destroyed can crash."""
    if _probing.shared.get("atexit") != getpid():  # a forked child may have dropped its parent's
        _probing.shared["atexit"] = getpid()
        import_for_us("atexit")
        import atexit

        atexit.register(_probing.ending)


def at_detach(name, function):
    """Registers a function that the agent calls at detach, in a thread of ours: restores what was replaced in the program. Once for a name."""
    _probing.shared.setdefault("at_detach functions", {})[name] = function
    _probing.shared["at_detach"] = _call_at_detach


def _call_at_detach():
    functions = _probing.shared.pop("at_detach functions", {})
    for function in functions.values():
        try:
            function()
        except Exception:  # the others are called all the same
            pass


def forget_thread():
    """At the end of a thread that Python did not start: removes what code in it may have left behind for it, which is the _DummyThread of
    current_thread() and the event loop of gevent."""
    threading = sys.modules.get("threading")
    ident = getattr(threading, "get_ident", get_ident)()  # gevent has its own
    if ident in getattr(threading, "_active", ()):
        with threading._active_limbo_lock:
            if isinstance(threading._active.get(ident), threading._DummyThread):
                del threading._active[ident]
    hub = getattr(sys.modules.get("gevent._hub_local"), "get_hub_if_exists", int)()
    if hub and is_thread_of_ours():
        hub.destroy(destroy_loop=True)


def is_thread_of_ours():
    """Whether this thread began in a file of ours, and not in the program, which may have been held."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith("<probing>")


def is_of_program(error):
    """Whether a signal handler of the program raised it, while it was in our code."""
    trace = trace_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    ours = trace is not None and trace.tb_frame.f_code.co_filename.startswith("<probing>")
    return issubclass(type(error), KeyboardInterrupt) or not ours
