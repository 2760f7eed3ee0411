"""Probing from Python: what a program says of itself, and what is known of it or of another process, as tables.

    import probing

    steps = probing.table("steps", {"step": int, "loss": float})   # a table of one's own
    steps.append(1, 0.5)                                           # from any thread, 0.1 us
    probing.log(epoch=1, loss=0.5)                                 # a row of training_logs
    with probing.span("forward", batch=3): ...                     # a row of python.trace_event, also while it is open

    rows = probing.query("SELECT func, lineno FROM python.backtrace")           # of this process
    rows = probing.query("SELECT * FROM memory_usage", target=4711)             # of another one
    rows[0]["func"]; rows.to_pandas(); rows.to_polars(); rows.to_arrow()

The first thing recorded starts the agent in this process, unless PROBING=0; PROBING=1 starts it with the program. Where it cannot be
had everything here does nothing, and messages() says why. Standard library only; 3.6 and newer.
"""
import sys

from ._agent import is_enabled, messages, start
from .spans import clear_role, current_role, event, probe, record_span, set_role, span, step, trace
from .tables import log, register, table, unregister

__all__ = ["Error", "Rows", "clear_role", "current_role", "event", "is_enabled", "log", "messages", "probe", "query", "record_span", "register",
           "set_role", "span", "start", "step", "table", "trace", "unregister"]

_ORIGINAL = ("ExternalTable", "attach_training_phases", "disable_tracer", "enable_tracer", "load_extension", "owns_training_phases", "phase", "query_outcome")


def query(sql, target=None, timeout=30):
    from . import _query

    return _query.query(sql, target, timeout)


def __getattr__(name):
    """Modules that are slow to import are imported on first use."""
    if name in ("Rows", "Error"):
        from . import _query

        return getattr(_query, name)
    if name in ("VERSION", "__version__"):
        from ._agent import version

        return version()
    if name in _ORIGINAL:
        from . import original

        return getattr(original, name)
    if name in ("config", "inspect", "tracing"):
        if "__load__" in globals():  # the agent's own files (_boot.py)
            return __load__(name)
        from importlib import import_module

        return import_module("probing." + name)
    raise AttributeError("module 'probing' has no attribute %r" % name)


if sys.version_info < (3, 7):  # which asks a module's type, not the module
    class _Module(type(sys)):
        def __getattr__(self, name):
            return __getattr__(name)

    if __name__ in sys.modules:  # not where the agent loads this file past it
        sys.modules[__name__].__class__ = _Module
