"""`probing watch`: each change of a variable of a function is a row of python.variables.

The value is read before each line of the function and at its end (_places.py), so a change was made by the line before. No code of the program is
called for a variable; an expression (self.lr, groups[0]["lr"]) has its own side effects. Two values are compared by kind: numbers and texts by
value, tensors by identity, torch's count of changes and the number that they are, containers by the recorded outline, other objects by identity.
No value is kept alive: weak references tell whether it is another object at the same address.
"""
import sys

from _weakref import ref

import _probing
from . import _helpers, _hooks, _places, _trace, _values
from ._expressions import Names
from ._hooks import MONITORED, Nothing, Refused
from ._operations import operations_of
from ._own import make_table
from ._program import main_globals

RATE, OLD_MS = 1000, 60000
FRAMES_MAX, EXACT_MAX, ARRAY_MAX, NAMES_MAX = 1000, 1000, 4096, 20
REACHED = frozenset(["Expression", "Name", "Attribute", "Subscript", "Constant", "Num", "Str", "Index", "Load", "UnaryOp", "USub"])
UNBOUND = object()


class Rate:
    """At most so many rows a second. Without a lock: the bound is approximate if threads meet."""

    def __init__(self, most):
        self.most, self.since, self.n, self.left_out = most, 0, 0, 0

    def take(self):
        """(whether a row is allowed, a note for it or None)."""
        now = _probing.milliseconds()
        if now - self.since >= 1000:
            self.since, self.n = now, 0
        self.n += 1
        if self.n > self.most:
            self.left_out += 1
            return False, None
        left_out, self.left_out = self.left_out, 0
        return True, "%d before it were not recorded: more than %d a second" % (left_out, self.most) if left_out else None


# --- values

class Seen:
    """The state kept of a value: enough to notice a change."""

    __slots__ = ("kind", "which", "state", "number", "text", "why", "is_final")

    def __init__(self, value):
        kind = type(value)
        self.kind, self.number, self.text, self.why, self.is_final = kind, None, None, None, False
        if id(kind) in _values.SCALARS:
            self.state = exact(value, kind)
            self.which = None
            self.number = _values.number_of(value, kind)[0] if _values.is_one(kind, (int, float, bool)) else None
            return
        self.which = identity(value)
        if id(kind) in _values.CONTAINERS:
            self.state = self.text = _values.text_of(_values.plain(value))
        else:
            self.state, self.number, self.why, self.is_final = of_library(value, kind)

    def differs(self, before):
        """How it differs from the state before; None: it does not."""
        if self.kind is before.kind and self.state == before.state and (self.which is before.which or id(self.kind) in _values.CONTAINERS):
            return None
        same = self.which is not None and self.which is before.which
        return "in place" if same else "assigned"

    def is_still(self, value):
        """Whether it is the same value, which cannot have changed."""
        return self.is_final and self.is_known() and self.which is identity(value)

    def is_known(self):
        """Whether `which` is of this object alone: the number of another one can be the same after its end."""
        return type(self.which) is ref


def identity(value):
    """The same object as long as it is the same value: a weak reference kept in the state."""
    try:
        return ref(value)
    except TypeError:
        return known_number(id(value))


def known_number(number, known={}):
    """Equal numbers as one object, for `is`."""
    if len(known) > 10000:
        known.clear()
    return known.setdefault(number, number)


def exact(value, kind):
    if (kind is str or kind is bytes) and len(value) > EXACT_MAX:
        return len(value), hash(value)
    return value if value == value else "nan"


def of_library(value, kind):
    """(state, number, why it has none, whether they stay so) of torch's and numpy's own types; (None, None, None, False): others."""
    found = _values.tensor(value)
    try:
        if found is not None and found.is_jax:  # it never changes; its number may be computed later
            number = _values.tensor_number(value, found)
            number = None if number is None else float(number)
            return (), number, found.why if found.shape is None else None, found.shape is not None and (found.count != 1 or number is not None)
        if found is not None:  # torch counts no changes in inference mode, and none that numpy makes
            number, why = _values.number_of(value, kind) if found.shape is None or found.count == 1 else (None, None)
            return (found.version, repr(number)), number, why, False
        number, why = _values.number_of(value, kind)
        if kind is _values.known("numpy", "ndarray"):
            return (hash(value.tobytes()) if value.nbytes <= ARRAY_MAX else None), number, why, False
        return (None if number is None else repr(number)), number, why, False
    except Exception:  # an array of objects can raise anything
        return None, None, None, False


def shown(name, value, seen):
    if _values.is_one(type(value), (str, bytes)) and _probing.is_secret(name):
        return '"***"'
    return seen.text or _values.text_of(_values.plain(value))


class Change:
    __slots__ = ("line", "old", "new", "old_number", "new_number", "how", "operation", "why")


# --- a variable

class State:
    __slots__ = ("seen", "shown", "line", "begins")

    def __init__(self, line):
        self.seen, self.shown, self.line = None, None, line
        self.begins = True  # what was seen is of the call before


class Watch:
    """One EXPR@FUNCTION. changed(frame, change) is called for each change, otherwise it becomes a row."""

    def __init__(self, text, rate, until, changed=None, code=None):
        self.expression, at, function = text.rpartition("@")
        if not at or not self.expression.strip() or not function.strip():
            raise Refused("what is watched is VARIABLE@FUNCTION, such as loss@train, not %r" % text)
        self.text, self.expression = text, self.expression.strip()
        self.code, self.function, names = (code, function.strip(), None) if code is not None else find_function(function.strip())
        self.evaluated = None if self.expression.isidentifier() else compile_path(self.expression)
        if names is not None:
            check_name(self.expression, self.code, self.function, names)
        self.operations = operations_of(self.code, self.expression)
        self.rate, self.changed, self.changes = Rate(rate), changed or self.write, 0
        self.table = None if changed else make_table("python.variables")
        self.place = _places.Place([self.code], None, self.at_line, self.at_end, until)
        self.states = {}  # of each frame, by its address
        self.last = {}  # of each thread: the state that its last call left

    # --- in threads of the program

    def at_line(self, frame, line):
        state = self.states.get(id(frame))
        if state is None:
            if len(self.states) > FRAMES_MAX:
                self.states.clear()
            state = self.states[id(frame)] = State(line)
            state.seen, state.shown = self.last.get(_probing.thread_id(), (None, None))
        self.look(frame, state)
        state.line = line

    def at_end(self, frame, _):
        state = self.states.pop(id(frame), None)
        if state is not None:
            self.look(frame, state)
            if len(self.last) > FRAMES_MAX:
                self.last.clear()
            self.last[_probing.thread_id()] = state.seen, state.shown

    def value(self, frame):
        if self.evaluated is not None:
            try:
                return eval(self.evaluated, Names(frame))
            except Exception:
                return UNBOUND
        if sys.version_info >= (3, 13):
            found = frame.f_locals
        else:
            found = _helpers.frame_locals(frame, True)
        return found[self.expression] if self.expression in found else frame.f_globals.get(self.expression, UNBOUND)

    def look(self, frame, state):
        value = self.value(frame)
        if value is UNBOUND:
            return
        if state.seen is not None and state.seen.is_still(value):
            state.begins = False
            return
        seen, begins, state.begins = Seen(value), state.begins, False
        how = "first" if state.seen is None else seen.differs(state.seen)
        if how is None:
            state.seen = seen if seen.is_final else state.seen  # its number has been computed since
            return
        if how == "in place" and begins and not seen.is_known():  # another object at the same address
            how = "assigned"
        change = Change()
        change.line, change.how, change.old, change.new = state.line, how, state.shown, shown(self.expression, value, seen)
        change.operation = self.operations.get(state.line) if how == "in place" and not begins else None
        change.why = seen.why
        change.old_number, change.new_number = state.seen and state.seen.number, seen.number
        state.seen, state.shown = seen, change.new
        value = None
        self.changes += how != "first"
        self.changed(frame, change)

    def write(self, frame, change):
        ok, note = self.rate.take()
        if ok:
            code = frame.f_code
            self.table.append(self.expression, code.co_name, code.co_filename, change.line, change.old, change.new, change.old_number, change.new_number,
                              change.how, _probing.thread_id(), note or change.why, change.operation)

    # --- in threads of the agent

    def describe(self):
        return "%s (%s:%d): %d change%s" % (self.text, self.code.co_filename, self.code.co_firstlineno, self.changes, "" if self.changes == 1 else "s")


def check_name(expression, code, function, names):
    """Refuses a variable that the function cannot have."""
    length = 0
    while expression[:length + 1].isidentifier() and length < len(expression):
        length += 1
    root = expression[:length]  # "": it begins with something else
    own = list(code.co_varnames + code.co_cellvars + code.co_freevars)
    used = [name for name in code.co_names if name in names]
    if not root or root in own or root in names or code.co_name == "<module>" and root in code.co_names:
        return
    found = own + [name for name in used if not _values.is_one(type(names[name]), (_trace.FUNCTION, _values.MODULE, type))]
    raise Refused("%s has no variable %s; it has %s" % (function, root, ", ".join(found[:NAMES_MAX]) + (", ..." if len(found) > NAMES_MAX else "")
                                                        if found else "none"))


def find_function(name):
    """Finds the function as trace does, with the global names that it sees; <module> is the script itself, while it runs."""
    if name != "<module>":
        return _trace.find_with_names(name)
    for _, frame in _helpers.all_threads():
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals is main_globals():
                return frame.f_code, "<module>", frame.f_globals
            frame = frame.f_back
    raise Refused("the script itself does not run any more")


def compile_path(text):
    try:
        tree = compile(text, "<watch>", "eval", 0x400, True)  # ast.PyCF_ONLY_AST
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Refused("%r is no expression" % text) from None
    todo = [tree]
    while todo:
        node = todo.pop()
        if hasattr(node, "_fields"):
            if type(node).__name__ not in REACHED:
                raise Refused("%r: names, attributes and subscripts can be watched, nothing that calls" % text)
            todo.extend(getattr(node, field, None) for field in node._fields)
    return compile(tree, "<watch>", "eval", 0, True)


# --- in threads of the agent

def all_watches():
    return _probing.shared.setdefault("watches", {})


def end_watches(now_ms):
    for text, each in list(all_watches().items()):
        if each.place.until and now_ms >= each.place.until:
            all_watches().pop(text, None)
            _places.remove(each.place)
    return _hooks.earliest(each.place for each in list(all_watches().values()))


def start(options, names):
    duration = int(options.get("duration_ms", 0 if MONITORED else OLD_MS))
    until = _probing.milliseconds() + duration if duration else 0
    found, lines, warning = [Watch(name, int(options.get("rate", RATE)), until) for name in names], [], ""
    for watch in found:
        if watch.text in all_watches():
            _places.remove(all_watches().pop(watch.text).place)
        all_watches()[watch.text] = watch
        try:
            warning = _places.add(watch.place) or warning
        except BaseException:
            all_watches().pop(watch.text, None)
            raise
        lines.append("watching %s (%s:%d)%s" % (watch.text, watch.code.co_filename, watch.code.co_firstlineno,
                                                ", for %g s" % (duration / 1000) if duration else ""))
    _hooks.at_end(end_watches)
    return "\n".join(lines + ([warning] if warning else []))


def begin_in(code, name, expressions):
    """Watches variables of a function that is at hand, where it has them. Returns those that were not watched yet."""
    started = []
    for each in expressions:
        text = "%s@%s" % (each, name)
        if has_variable(code, each) and text not in all_watches():
            watch = all_watches()[text] = Watch(text, RATE, 0, None, code)
            started.append(watch)
            try:
                _places.add(watch.place)
            except BaseException:
                end_those(started)
                raise
    return started


def end_those(watches):
    for each in watches:
        if all_watches().get(each.text) is each:
            del all_watches()[each.text]
            _places.remove(each.place)


def has_variable(code, expression):
    return expression.replace("[", ".").partition(".")[0].strip() in code.co_varnames + code.co_cellvars + code.co_freevars + code.co_names


def stop(names):
    chosen = [each for each in list(all_watches().values()) if not names or each.text in names]
    if not chosen:
        raise Nothing("that is not watched" if names else "nothing is watched")
    for each in chosen:
        all_watches().pop(each.text, None)
        _places.remove(each.place)
    return "\n".join(each.describe() for each in chosen)


def listing():
    return "\n".join(each.describe() for each in list(all_watches().values())) or "nothing is watched"


def answer(arguments, channel, functions):
    """Lines of NAME=VALUE, of which name= may be several; the answer is "ok " and lines for a person."""
    options, names = {}, []
    for line in arguments.decode("utf-8", "surrogateescape").splitlines():
        name, _, value = line.partition("=")
        names.append(value) if name == "name" else options.__setitem__(name, value)
    try:
        _hooks.settle_generation()
        answer = functions[options["do"]](options, names)
    except Refused as error:
        channel.close(str(error), error.status)
        return
    channel.write(("ok %s\n" % answer).encode("utf-8", "replace"))


def serve_control(arguments, channel):
    answer(arguments, channel, {"start": start, "stop": lambda options, names: stop(names), "list": lambda options, names: listing(),
                                "rows": lambda options, names: _trace.table((each.text, each.code.co_filename, each.code.co_firstlineno, each.changes)
                                                                            for each in list(all_watches().values()))})
