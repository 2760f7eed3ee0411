"""`probing trace`: which functions are traced.

The agent records a call (src/agent/module/module_trace.c); _values.py describes its arguments.
"""
import sys

import _probing
from . import _helpers, _hooks
from ._program import is_of_program, main_globals
from ._hooks import GENERATOR, MONITORED, Refused
from ._values import class_name, is_one, own_name, plain, text_of

ARGUMENTS, RESULT, LOCALS = 0, 1, 2                                  # enum capture of module_trace.c
WANT_ARGUMENTS, WANT_LOCALS, IS_GENERATOR, IS_INNER = 1, 2, 4, 8     # its flags
NAMED_MAX = 20
OLD_MS = 10000  # lifetime of a trace function before 3.12
MOST_COST, NOTED_COST = 0.1, 0.01  # shares of the time
FUNCTION = type(lambda: 0)
CODE = type((lambda: 0).__code__)
METHOD = type((lambda self: 0).__get__(0))


class Traced:
    def __init__(self, code, name, options, root):
        self.code, self.name, self.options, self.root = code, name, options, root
        self.until = options["until"]
        self.level = 1  # of calls, from the function that a person named


# --- finding functions

def find(text):
    """The code object and the full name of MODULE:FUNCTION."""
    found, at, _ = find_with_names(text)
    return found, at


def find_with_names(text):
    """The same, and the global names that the function sees."""
    module, colon, path = text.partition(":")
    if not colon:
        module, path = split(text)
    holder = sys.modules.get(module)
    if holder is None:
        raise Refused("the process has not imported the module %s" % module)
    names = getattr(holder, "__dict__", {})
    found, at = None, module
    for number, part in enumerate(path.split(".")):
        try:
            found = names[part] if number == 0 else member(found, part)
        except (KeyError, LookupError):
            there = functions_of(names if number == 0 else found)
            raise Refused("%s has no %s%s" % (at, part, "; it has " + ", ".join(there) if there else "")) from None
        at += (":" if number == 0 else ".") + part
        found = bare(found)
    if type(found) is FUNCTION:
        found, names = found.__code__, found.__globals__
    if type(found) is not CODE:
        what = "a class: name a method of it, such as %s.__init__" % text if is_class(found) else "no function that is written in Python"
        raise Refused("%s is %s" % (text, what))
    return found, at, names


def functions_of(holder):
    """The names of its functions and classes, for a person who has misspelt one."""
    if type(holder) is FUNCTION:
        holder = holder.__code__
    if type(holder) is CODE:
        names = [each.co_name for each in holder.co_consts if type(each) is CODE]
    else:
        members = holder if type(holder) is dict else type.__dict__["__dict__"].__get__(holder if is_class(holder) else type(holder))
        names = [name for name, each in list(members.items()) if type(name) is str and (is_class(each) or type(bare(each)) is FUNCTION)]
    names = [name for name in names if name.isidentifier() and not name.startswith("_")]
    return names[:NAMED_MAX] + ["..."] * (len(names) > NAMED_MAX)


def split(text):
    """A name without a colon: of the program itself, or of the longest module that it begins with."""
    if text.split(".")[0] not in main_globals():
        for at in range(len(text) - 1, 0, -1):
            if text[at] == "." and text[:at] in sys.modules:
                return text[:at], text[at + 1:]
    return "__main__", text


def member(holder, name):
    """The attribute of a class, an object or a function, without calling anything of the program."""
    if type(holder) is FUNCTION:
        holder = holder.__code__
    if type(holder) is CODE:
        for each in holder.co_consts:
            if type(each) is CODE and each.co_name == name:
                return each
        raise LookupError(name)
    kind = holder if is_class(holder) else type(holder)
    if kind is not holder:
        try:
            return object.__getattribute__(holder, "__dict__")[name]
        except (AttributeError, KeyError):
            pass
    for each in type.__dict__["__mro__"].__get__(kind):
        if name in type.__dict__["__dict__"].__get__(each):
            return type.__dict__["__dict__"].__get__(each)[name]
    raise LookupError(name)


def is_class(thing):
    """Not isinstance, which asks the object for its __class__."""
    return issubclass(type(thing), type)


def bare(found):
    """The function itself, without its wrappers."""
    for _ in range(20):
        kind = type(found)
        if is_one(kind, (staticmethod, classmethod, METHOD)):
            found = found.__func__
        elif kind is property:
            found = found.fget
        elif class_name(kind) in ("functools.partial", "functools.partialmethod", "functools.cached_property"):
            found = found.func
        else:
            inside = getattr(found, "__wrapped__", None) if kind is FUNCTION or own_name(kind) == "_lru_cache_wrapper" else None
            if inside is None:
                return found
            found = inside
    return found


def code_of(function):
    """The code that a call of this object runs; None: not Python code."""
    kind = type(function)
    if kind is CODE:
        return function
    if kind is FUNCTION:
        return function.__code__
    if kind is METHOD:
        return code_of(function.__func__)
    try:
        inner = member(function, "__init__") if is_class(function) else member(kind, "__call__")
    except LookupError:
        return None
    return inner.__code__ if type(inner) is FUNCTION else None


def argument_names(code):
    n = code.co_argcount + code.co_kwonlyargcount
    return code.co_varnames[:n + bool(code.co_flags & 4) + bool(code.co_flags & 8)]


def capture(what, code, frame, value):
    """Called by the agent in the thread of the call, at its beginning or end. A text, or None."""
    try:
        if what == RESULT:
            return text_of(plain(value))
        traced = _probing.shared["traced"].get(id(code))
        names = argument_names(code) if what == ARGUMENTS else traced.options["locals"]
        seen = _helpers.frame_locals(frame)
        return text_of({name: plain(seen[name]) for name in names if name in seen})
    except BaseException as error:
        if is_of_program(error):
            raise
        return None


# --- what is traced

def traced_functions():
    return _probing.shared.setdefault("traced", {})


def shared_text(text):
    """The agent keeps names without a reference: they must stay."""
    return _probing.shared.setdefault("texts", {}).setdefault(text, text)


def begin(traced):
    """A sentence for a person, or ""."""
    code, options = traced.code, traced.options
    flags = WANT_ARGUMENTS * options["args"] | WANT_LOCALS * bool(options["locals"]) | IS_GENERATOR * bool(code.co_flags & GENERATOR) | \
        IS_INNER * (not traced.root)
    place = shared_text("%s:%d" % (code.co_filename.encode("utf-8", "replace").decode(), code.co_firstlineno))
    traced_functions()[id(code)] = traced
    if not _probing.trace_add(code, shared_text(traced.name.encode("utf-8", "replace").decode()), place, flags, options["depth"]):
        traced_functions().pop(id(code), None)
        raise Refused("too many functions are traced; trace --stop ends some")

    def change(hooked):
        hooked.calls = True
        hooked.callees = (lambda function: follow(traced, function)) if traced.level < options["depth"] else None

    try:
        warning = _hooks.hook(code, change, traced.root)
    except Refused:
        end(traced)
        raise
    if warning is None:
        traced_functions().pop(id(code), None)
        _probing.trace_remove(code)
    return warning


def follow(caller, function):
    """A traced function calls another one, which is traced too, where the call is within the depth."""
    code = code_of(function)
    if code is None or code.co_filename.startswith("<probing>"):
        return
    known = traced_functions().get(id(code))
    if known is not None and (known.root or known.level <= caller.level + 1):
        return
    traced = Traced(code, getattr(code, "co_qualname", code.co_name), caller.options, False)
    traced.level, traced.until = caller.level + 1, caller.until
    try:
        begin(traced)
        if caller.options.get("watch"):
            from . import _watch

            caller.options["started"] += _watch.begin_in(code, traced.name, [each for each in caller.options["watch"] if each in code.co_varnames])
    except Refused:
        pass


def end(traced):
    code = traced.code
    traced_functions().pop(id(code), None)
    _probing.trace_remove(code)

    def change(hooked):
        hooked.calls, hooked.callees = False, None

    _hooks.change_hook(code, change)


def end_traces(now_ms):
    for traced in list(traced_functions().values()):
        if traced.until and now_ms >= traced.until:
            end(traced)
    return _hooks.earliest(traced_functions().values())


def start(options, names):
    found = [find(name) for name in names]
    _probing.trace_hooks(*_probing.shared.setdefault("trace hooks", (sys.monitoring.DISABLE if MONITORED else None, capture)))
    duration = int(options.get("duration_ms", 0 if MONITORED else OLD_MS))
    chosen = {"args": "args" in options, "locals": tuple(name.strip() for name in options.get("locals", "").split(",") if name.strip()),
              "depth": int(options.get("depth", 1)), "until": _probing.milliseconds() + duration if duration else 0}
    warning, lines = "", []
    for code, name in found:
        if id(code) in traced_functions():
            end(traced_functions()[id(code)])
        warning = begin(Traced(code, name, chosen, True)) or warning
        lines.append("tracing %s (%s:%d)%s" % (name, code.co_filename, code.co_firstlineno, ", for %g s" % (duration / 1000) if duration else ""))
    _hooks.at_end(end_traces)
    return "\n".join(lines + ([warning] if warning else []))


def start_and_measure(options, names):
    """Before 3.12 every call of the program is seen: what that costs is measured, and much of it has to be wanted."""
    report = start(options, names)
    if MONITORED:
        return report
    from . import _tracing

    share, calls = _tracing.measure()
    much = "%.0f%% of the time of this program: before Python 3.12 a trace function sees each of its %d calls a second" % (100 * share, calls)
    if share > MOST_COST and "yes" not in options:
        stop(names)
        raise Refused("not traced: it takes %s (--yes traces all the same)" % much)
    return "%s\nit takes %s" % (report, much) if share > NOTED_COST else report


def stop(names):
    chosen = {id(find(name)[0]) for name in names}
    roots = [each for each in traced_functions().values() if each.root and (not chosen or id(each.code) in chosen)]
    if not roots:
        return "nothing is traced"
    lines = [describe(each) for each in roots]
    options = [each.options for each in roots]
    for each in list(traced_functions().values()):
        if each in roots or (not each.root and any(each.options is one for one in options)):
            end(each)
    return "\n".join(lines)


def describe(traced):
    calls, errors, taken = _probing.trace_counts(traced.code) or (0, 0, 0)
    mean = ", %.3g ms each" % (taken / calls / 1e6) if calls else ""
    return "%s: %d call%s%s%s" % (traced.name, calls, "" if calls == 1 else "s", mean, ", %d ended by an exception" % errors if errors else "")


def listing():
    return "\n".join(describe(each) for each in traced_functions().values()) or "nothing is traced"


def table(rows):
    """For programs (do=rows): a line per row with tabs between its cells; None is an empty one."""
    return "\n".join("\t".join("" if cell is None else str(cell).replace("\t", " ").replace("\n", " ") for cell in row) for row in rows)


def rows():
    for traced in list(traced_functions().values()):
        calls, errors, taken = _probing.trace_counts(traced.code) or (0, 0, 0)
        yield traced.name, calls, errors, "%.6g" % (taken / calls / 1e6) if calls else None


def serve_control(arguments, channel):
    """`probing trace`: lines of NAME=VALUE; the answer is "ok " and lines for a person."""
    options, names = {}, []
    for line in arguments.decode("utf-8", "surrogateescape").splitlines():
        name, _, value = line.partition("=")
        names.append(value) if name == "function" else options.__setitem__(name, value)
    try:
        _hooks.settle_generation()
        functions = {"start": lambda: start_and_measure(options, names), "stop": lambda: stop(names), "list": listing, "rows": lambda: table(rows())}
        answer = functions[options["do"]]()
    except Refused as error:
        channel.close(str(error), error.status)
        return
    channel.write(("ok %s\n" % answer).encode("utf-8", "replace"))
