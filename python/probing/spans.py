"""What a program says it is doing: spans, events, steps, roles.

    with probing.span("forward", phase="train", batch=3): ...
    @probing.span("load")  or  @probing.probe()            # a span for each call, coroutines and generators included
    probing.event("checkpoint", path=path)
    probing.record_span("copy", start, end, bytes=n)       # both ends known; seconds or ns since 1970
    with probing.trace("epoch"): ...                       # the same, and a row of the table `epoch` too

All are rows of python.trace_event: with ids, the span around them (of the thread or the asyncio task), attributes as JSON and a phase. A span that is
open is a row already, whose `ended` is NULL.
"""
import sys
from os import environ

from ._agent import agent, recording, warn

_ROLES = {"tp": "TENSOR_MODEL", "pp": "PIPELINE_MODEL", "dp": "DATA", "ep": "EXPERT_MODEL", "cp": "CONTEXT"}
_role = []  # the last argument of set_role
_batches = [int(environ["PROBING_MICRO_BATCHES"]) if environ.get("PROBING_MICRO_BATCHES", "").isdigit() else 1, 0]
_traced = {}


_agent = agent()
_agent.shared["decorate"] = lambda *given: _decorate(*given)
_agent.first_use(recording)
span = _agent.span  # directly, without a function around it: half of a span's cost

if environ.get("PROBING_SPAN_LOCATION", "").lower() in ("1", "true", "yes", "on"):
    def span(*name, **attributes):
        if "location" not in attributes and not (name and callable(name[0])):
            frame = sys._getframe(1)
            attributes["location"] = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        return _agent.span(*name, **attributes)


def event(name, attributes=None, **named):
    """A row in the span that is open. attributes: more of them, as a dict, or a list of dicts or pairs."""
    for each in attributes.items() if isinstance(attributes, dict) else attributes or ():
        named.update(each if isinstance(each, dict) else [each])
    recording().event(name, **{str(key): value for key, value in named.items()})


def record_span(name, start=None, end=None, duration_ns=None, attrs=None, **attributes):
    """A span that has ended: from start to end, or of so many ns until now."""
    if duration_ns is not None:
        from time import time

        end = int(time() * 1e9)
        start = end - max(int(duration_ns), 0)
    recording().record_span(name, start, end, **dict(attrs or {}, **attributes))


def step(*number, **more):
    """step(n): rows from now on belong to step n; step(): to the next one. micro_batches=k: to the next one after each k calls."""
    micro_batches = more.pop("micro_batches", None)
    if more:
        raise TypeError("step takes a number and micro_batches, not %s" % ", ".join(sorted(more)))
    if micro_batches is not None:
        _batches[:] = [max(int(micro_batches), 1), 0]
        if not number:
            return None
    if not number and _batches[0] > 1:
        _batches[1] = (_batches[1] + 1) % _batches[0]
        if _batches[1]:
            return None
    return agent().step(*number)


def set_role(*role, **ranks):
    """The place of this process among the others: tp=0, pp=1, dp=3, or a dict, or "dp=3,pp=1,tp=0", which it returns. An event too."""
    given = dict(role[0], **ranks) if role and isinstance(role[0], dict) else ranks
    text = role[0].strip() if role and isinstance(role[0], str) else _text_of(given)
    _role[:] = [text]
    recording().event("role", **dict(part.split("=", 1) for part in text.split(",") if "=" in part) if not given else given)
    return text


def current_role():
    """The role given to set_role, or in the environment (TP_RANK, PROBING_PP_RANK, PROBING_ROLE_NAME, ...): dp=3,pp=1,tp=0."""
    if _role:
        return _role[0]
    found = {name[len("PROBING_ROLE_"):].lower(): value for name, value in environ.items() if name.startswith("PROBING_ROLE_")}
    for short, long in _ROLES.items():
        for name in (long + "_PARALLEL_RANK", short.upper() + "_RANK", "PROBING_%s_RANK" % short.upper()):
            if environ.get(name, "").strip():
                found[short] = environ[name].strip()
                break
    return _text_of({name: int(value) for name, value in found.items() if value.isdigit()})


def clear_role():
    """Goes back to the role in the environment."""
    del _role[:]


def _text_of(ranks):
    return ",".join("%s=%s" % (name, ranks[name]) for name in sorted(ranks) if ranks[name] is not None)


def probe(name=None, phase=None, watch=(), depth=1):
    """A span for each call of the decorated function, or around a block. watch: its variables whose changes become rows of python.variables;
    depth: so many levels of calls, the function itself being the first: deeper ones are rows of python.trace_event, and their variables of these
    names are watched too."""
    if callable(name):
        return _decorate(name, None, None, None)
    return _Probe(name, phase, watch, depth)


class _Probe:
    def __init__(self, name, phase, watch, depth):
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueError("depth is a number of levels, 1 or more, not %r" % (depth,))
        self.name, self.phase, self.depth = name, phase, depth
        self.watch = [watch] if isinstance(watch, str) else list(watch) if isinstance(watch, (list, tuple, set, frozenset)) else [watch]
        if not all(isinstance(each, str) for each in self.watch):
            raise TypeError("watch is a list of names of variables, not %r" % (watch,))
        self.blocks = []

    def follow(self, code, name):
        """What the agent began, or None. A program never fails because of us."""
        try:
            module = recording()
            return module.is_recording() and module.part("_probe").begin(code, name, self.watch, self.depth) or None
        except Exception as error:
            warn("%s is not watched: %s" % (name, error))

    def __call__(self, function):
        code = getattr(_unwrapped(function), "__code__", None)
        if not self.watch and self.depth == 1:
            return _decorate(function, self.name, self.phase, None)
        if code is None:
            raise TypeError("%r has no Python code to watch" % (function,))
        _check_names(code, self.watch)
        started, name = [], getattr(function, "__qualname__", code.co_name)

        def begin_span(*args, **named):
            opened = span(*args, **named)
            generation = agent().detached() if agent().is_recording() else None
            if started != [generation]:
                started[:] = [generation]
                self.follow(code, name)
            return opened
        return _decorate(function, self.name, self.phase, None, None, begin_span)

    def __enter__(self):
        code = sys._getframe(1).f_code
        _check_names(code, self.watch)
        opened = span(self.name or code.co_name, **({"phase": self.phase} if self.phase is not None else {})).__enter__()
        self.blocks.append((opened, self.follow(code, code.co_name) if self.watch or self.depth > 1 else None))
        return opened

    def __exit__(self, *error):
        opened, started = self.blocks.pop()
        if started is not None:
            try:
                agent().part("_probe").end(started, sys._getframe(1))
            except Exception as failed:
                warn("watching did not end: %s" % failed)
        return opened.__exit__(*error or (None, None, None))


def _unwrapped(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__func__", function)


def _check_names(code, watch):
    names = code.co_varnames + code.co_cellvars + code.co_freevars + code.co_names
    for each in watch:
        if each.replace("[", ".").partition(".")[0].strip() not in names:
            raise ValueError("%s has no variable %s; there are %s" % (code.co_name, each, ", ".join(names) or "none"))


def _decorate(function, name, phase, json, attributes=None, span=span):
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
    elif inspect.isasyncgenfunction(function):
        async def probed(*args, **named):
            inner = function(*args, **named)
            with span(name, **how) as opened:
                proceed, given = inner.asend, None
                while True:
                    try:
                        got = await proceed(given)
                    except StopAsyncIteration:
                        return
                    opened.suspend()
                    try:
                        proceed, given = inner.asend, (yield got)
                    except GeneratorExit:
                        opened.resume()
                        await inner.aclose()
                        raise
                    except BaseException as error:
                        proceed, given = inner.athrow, error
                    opened.resume()
    elif inspect.isgeneratorfunction(function):
        def probed(*args, **named):  # like yield from, except for the span, in which the caller is not
            inner = function(*args, **named)
            with span(name, **how) as opened:
                proceed, given = inner.send, None
                while True:
                    try:
                        got = proceed(given)
                    except StopIteration as end:
                        return end.value
                    opened.suspend()
                    try:
                        proceed, given = inner.send, (yield got)
                    except GeneratorExit:
                        opened.resume()
                        inner.close()
                        raise
                    except BaseException as error:
                        proceed, given = inner.throw, error
                    opened.resume()
    else:
        def probed(*args, **named):
            with span(name, **how):
                return function(*args, **named)
    return functools.wraps(function)(probed)


class trace:
    """A span that is also a row of the table of its name, with times and attributes. Where a table of that name has other columns it is a
    span alone. Inside of trace("memory_usage") that table gets a row every 10 ms, and one at both ends; inside of trace("collective_ops") that
    table gets a row for each collective and transfer of torch.distributed."""

    def __init__(self, name, **attributes):
        self.name, self.attributes = name, attributes

    def __enter__(self):
        self.span = span(self.name, **self.attributes).__enter__()
        _tell_block(self.name, 1)
        self.started = _clock()
        return self.span

    def __exit__(self, *error):
        duration = (_clock() - self.started) * 1e3
        _tell_block(self.name, -1)
        done = self.span.__exit__(*error or (None, None, None))
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


def _tell_block(name, by):
    """A block begins (1) or ends (-1) that changes what the agent records."""
    if name == "memory_usage":
        recording().finer_memory(by)
    elif name == "collective_ops":
        why = recording().comm_block(by)
        if why:
            warn("no collectives are recorded: %s" % why)


def _clock():
    from time import perf_counter

    return perf_counter()


def _traced_table(name):
    if name == "collective_ops":
        return None
    if name not in _traced:
        from .tables import table

        try:
            _traced[name] = table(name, [("span_id", "int64"), ("duration_ms", "float64", "ms"), ("error", "string")],
                                  "spans of probing.trace, a row at the end of each")
        except (TypeError, ValueError):
            _traced[name] = None
    return _traced[name]
