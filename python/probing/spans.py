"""What a program says it is doing: spans, events, steps, roles.

    with probing.span("forward", phase="train", batch=3): ...
    @probing.span("load")  or  @probing.probe()            # a span for each call, coroutines and generators included
    probing.event("checkpoint", path=path)
    probing.record_span("copy", start, end, bytes=n)       # both ends known; seconds or ns since 1970
    with probing.trace("epoch"): ...                       # the same, and a row of the table `epoch` too

All are rows of python.trace_event: with ids, the span around them (of the thread or the asyncio task), attributes as JSON and a phase. A span that is
open is a row already, whose `ended` is NULL.
"""
from ._agent import agent, recording

_ROLES = ("tp", "pp", "dp", "ep", "cp")
_role = {}
_traced = {}


_agent = agent()
_agent.shared["decorate"] = lambda *given: _decorate(*given)
_agent.first_use(recording)
span = _agent.span  # itself, and no function around it: half of what a span would take


def event(name, **attributes):
    recording().event(name, **attributes)


def record_span(name, start, end, **attributes):
    recording().record_span(name, start, end, **attributes)


def step(*number):
    """step(n): rows from now on belong to step n; step(): to the next one."""
    return agent().step(*number)


def set_role(**ranks):
    """The place of this process among the others, such as tp=0, pp=1, dp=3: an event, and for current_role."""
    _role.update(ranks)
    recording().event("role", **_role)


def current_role():
    return dict(_role)


def clear_role():
    _role.clear()


def probe(name=None, **attributes):
    """A span for each call of the decorated function."""
    if callable(name):
        return _decorate(name, None, None, None)
    return lambda function: _decorate(function, name, attributes.pop("phase", None), None, attributes)


def _decorate(function, name, phase, json, attributes=None):
    import functools
    import inspect

    code = getattr(function, "__code__", None)
    how = dict(attributes or {})
    if code is not None:
        how["location"] = "%s:%d" % (code.co_filename, code.co_firstlineno)
    if phase is not None:
        how["phase"] = phase
    if json is not None:
        how["json"] = json
    name = name or getattr(function, "__qualname__", None) or repr(function)

    if inspect.iscoroutinefunction(function):
        async def probed(*args, **named):
            with span(name, **how):
                return await function(*args, **named)
    elif inspect.isgeneratorfunction(function):
        def probed(*args, **named):
            with span(name, **how):
                return (yield from function(*args, **named))
    else:
        def probed(*args, **named):
            with span(name, **how):
                return function(*args, **named)
    return functools.wraps(function)(probed)


class trace:
    """A span that is also a row of the table of its name, with times and attributes. Where a table of that name has other columns
    (memory_usage) it is a span alone."""

    def __init__(self, name, **attributes):
        self.name, self.attributes = name, attributes

    def __enter__(self):
        self.span = span(self.name, **self.attributes).__enter__()
        self.begun = _clock()
        return self.span

    def __exit__(self, *error):
        duration = (_clock() - self.begun) * 1e3
        done = self.span.__exit__(*error)
        made = _traced_table(self.name)
        if made is not None:
            made.append(self.span.id(), duration, error[0].__name__ if error and error[0] else None)
        return done

    def __call__(self, function):
        import functools

        @functools.wraps(function)
        def traced(*args, **named):
            with trace(self.name, **self.attributes):
                return function(*args, **named)
        return traced


def _clock():
    from time import perf_counter

    return perf_counter()


def _traced_table(name):
    if name not in _traced:
        from .tables import table

        try:
            _traced[name] = table(name, [("span_id", "int64"), ("duration_ms", "float64", "ms"), ("error", "string")],
                                  "spans of probing.trace, a row at the end of each")
        except (TypeError, ValueError):
            _traced[name] = None
    return _traced[name]
