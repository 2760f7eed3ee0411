"""What `probing.probe` asks of the agent: variables of one function that are watched, and calls that it makes, so many levels deep."""
import sys

import _probing
from . import _hooks, _trace, _watch
from ._hooks import MONITORED, Refused


def begin(code, name, watch, depth):
    """Returns what `end` takes. In the thread of the program that is about to run the function, or runs it."""
    _hooks.settle_generation()
    options = {"args": False, "locals": (), "depth": depth, "until": 0, "watch": tuple(watch), "started": []}
    try:
        options["started"] += _watch.begin_in(code, name, watch)
        if depth > 1 and id(code) not in _trace.traced_functions():
            _probing.trace_hooks(*_probing.shared.setdefault("trace hooks", (sys.monitoring.DISABLE if MONITORED else None, _trace.capture)))
            _trace.begin(_trace.Traced(code, name, options, True))
    except Refused:
        end(options)
        raise
    if not MONITORED and sys.gettrace() is None:
        sys.settrace(_hooks.tracing().in_thread)
    _hooks.reach_frames()
    return options


def end(options, frame=None):
    """frame: the block that ends is in it; what its last line changed was not seen yet."""
    for each in options["started"]:
        if frame is not None and each.code is frame.f_code:
            each.at_end(frame, False)
    for each in list(_trace.traced_functions().values()):
        if each.options is options:
            _trace.end(each)
    _watch.end_those(options["started"])
