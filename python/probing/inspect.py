"""Traced functions from the program's own code: probing.inspect.trace("pkg.mod:Class.method"), untrace(...), and the decorator probe.

The same as `probing -t PID trace`: rows of python.trace_event.
"""
import os

from ._agent import recording
from .spans import probe


def _ask(*words):
    from . import _query

    recording(True)
    status, out, errors = _query._run([_query._program(), "-t", str(os.getpid()), "trace"] + list(words), b"")
    out.close()
    if status != 0:
        raise ValueError(errors.strip().replace("probing: trace: ", "", 1))


def trace(function, watch=(), depth=1):
    """Records each call of a function, given by its name or itself; watch: names of its locals, depth: levels of the calls that it makes."""
    words = [_name_of(function), "--depth", str(depth)]
    _ask(*(words + (["--locals", ",".join(watch)] if watch else [])))


def untrace(function=None):
    """Stops that; of all functions unless one is given."""
    _ask("--stop", *([_name_of(function)] if function is not None else []))


def _name_of(function):
    if isinstance(function, str):
        return function
    return "%s:%s" % (function.__module__, function.__qualname__)


__all__ = ["probe", "trace", "untrace"]
