"""Programs of the harm suite whose own code may be called: tools that see events of Python, functions that give rows,
objects and exceptions that tell when they are looked at. bodies.py starts them."""
import os
import sys
import threading
import time

import kit


def gives_rows():
    """Tables by functions of the program, one of which never returns: its query has a deadline."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python"))
    import probing
    lock = threading.Lock()

    @probing.register("stuck", namespace="harm")
    def stuck():
        while True:
            time.sleep(0.01)

    @probing.register("waits", namespace="harm")
    def waits():
        with lock:
            return [{"i": i} for i in range(3)]

    @probing.register("loud", namespace="harm")
    def loud():
        raise SystemExit(3)

    while kit.going():
        with lock:
            kit.work()
        kit.work()
        time.sleep(0.001)


def count_events(counts):
    """What the tools of a debugger, a profiler and a coverage see of a call of `work`, each counting for itself."""
    import bdb

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            counts["lines of bdb"] += 1

        def user_call(self, frame, arguments):
            counts["calls of bdb"] += 1

    def trace(frame, event, _):
        counts["trace " + event] += 1
        return trace

    def profile(frame, event, _):
        counts["profile " + event] += frame.f_code is kit.work.__code__

    Debugger().runcall(kit.work, 40)
    sys.settrace(trace)
    kit.work(40)
    sys.settrace(None)
    sys.setprofile(profile)
    kit.work(40)
    sys.setprofile(None)


def count_by_monitoring(counts, tool):
    """The same by tools of sys.monitoring: events of one function, then of all, which are turned off where they are."""
    monitoring, code = sys.monitoring, kit.work.__code__
    events = monitoring.events

    def counter(name, result=None):
        def callback(seen, *_):
            counts[name] += seen is code
            return result
        return callback

    monitoring.use_tool_id(tool, "counts")
    for name in ("PY_START", "PY_RETURN", "LINE", "JUMP"):
        monitoring.register_callback(tool, getattr(events, name), counter("monitoring " + name))
    monitoring.set_local_events(tool, code, events.PY_START | events.PY_RETURN | events.LINE | events.JUMP)
    kit.work(40)
    monitoring.set_local_events(tool, code, 0)
    monitoring.set_events(tool, events.PY_START | events.PY_RETURN)
    kit.work(40)
    monitoring.set_events(tool, 0)
    for name in ("PY_START", "PY_RETURN", "LINE", "JUMP"):
        monitoring.register_callback(tool, getattr(events, name), None)
    monitoring.free_tool_id(tool)


def traced_by_others():
    """A debugger, trace functions, a profile and tools of sys.monitoring of its own, which see the same."""
    from collections import Counter
    first = None
    while kit.going():
        counts = Counter()
        count_events(counts)
        if hasattr(sys, "monitoring"):
            for tool in (1, 2, 5):
                count_by_monitoring(counts, tool)
        first = first or counts
        if counts != first:
            kit.complain("its tools saw %s" % ", ".join("%s %d, not %d" % (name, counts[name], first[name])
                                                        for name in sorted(set(counts) | set(first))
                                                        if counts[name] != first[name]))
        kit.say()


class Watchful(type):
    """Each use of the class or of an object of it that the program did not make itself is told."""

    def __eq__(cls, other):
        kit.complain("__eq__ of a metaclass was called")
        return type.__eq__(cls, other)

    def __hash__(cls):
        kit.complain("__hash__ of a metaclass was called")
        return type.__hash__(cls)

    def __getattribute__(cls, name):
        kit.complain("%s of a class was asked for" % name)
        return type.__getattribute__(cls, name)


def make_odd():
    def tell(name):
        def method(self, *arguments):
            kit.complain("%s of an object was called" % name)
            return getattr(object, name)(self, *arguments)
        return method
    return Watchful("Odd", (), {name: tell(name) for name in ("__getattribute__", "__repr__", "__str__", "__eq__",
                                                              "__hash__", "__dir__", "__reduce_ex__")})


def odd_arguments():
    """Calls with objects that tell when anybody looks at them by their own code."""
    made = make_odd()
    odd = made()
    while kit.going():
        kit.work(odd=odd)
        kit.work(odd=made)


def fails():
    """Threads that fail with exceptions whose text is code, and a hook of the program's own that is called once for
    each."""
    class Loud(Exception):
        def __str__(self):
            kit.complain("__str__ of an exception was called")
            raise SystemExit(0)
        __repr__ = __str__

    seen = []
    threading.excepthook = lambda arguments: seen.append(arguments.exc_type)

    def fail():
        raise Loud("loud")

    while kit.going():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        if seen != [Loud]:
            kit.complain("its hook was called %d times" % len(seen))
        del seen[:]
        kit.work()
