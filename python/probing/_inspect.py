"""`probing inspect`: describes one object of the program without calling code of the program.

The answer is a line for the tool, then a text for a person or JSON. The contents of a tensor or an array are not read here: the line has the
address of its data, and the tool reads them from outside, while the channel is open and keeps the object alive. So nothing is allocated, no
operation of torch runs, nothing waits for a GPU, and memory freed meanwhile is only a failed read.
"""
import sys

import _probing
from _thread import get_ident

from . import _dap_json, _helpers, _owners, _prompt, _streams, _trace, _values, _watch
from ._hooks import Refused
from ._program import gc_module

METHOD_OF_C = type(object.__dict__["__sizeof__"])
FIELDS_MAX, REFERRERS_MAX, MODULES_MAX, KEEP_MS = 40, 12, 20000, 600000
IMMORTAL = 1 << 29  # objects that Python never frees have at least as many references
OURS = 3  # references during the description: of getrefcount, of describe, of serve_control
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")
DTYPES = frozenset("""uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 bool float8_e5m2 float8_e4m3fn
    complex64 complex128""".split())


class Silent:
    """Used as a front: the output of an expression is not part of the answer."""

    def output(self, stream, text):
        return True


# --- which object

def resolve(channel, text):
    expression, at, function = text.rpartition("@")
    if at and (function == "<module>" or all(part.isidentifier() for part in function.split("."))):
        return in_function(expression.strip(), function)
    session = _prompt.Session(channel)
    session.front = Silent()
    given = _prompt.Input(session, text)
    _streams.sinks[get_ident()] = given
    try:
        given.prepare(session.names)
        if len(given.steps) != 1 or not given.steps[0][1]:
            raise Refused("%r is no expression" % text)
        return session.evaluate(given, given.steps[0][0])
    finally:
        given.finish()


def in_function(expression, function):
    """The innermost running call of that function, the main thread's first."""
    code = _watch.compile_path(expression)
    for ident, _ in _helpers.live_threads():
        for frame in _helpers.frames_of(ident):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            if function in (frame.f_code.co_name, name):
                return eval(code, _watch.Names(frame))
    raise Refused("no function %s runs now" % function)


def in_held(text):
    """A variable, or a path from one, of the thread that is held; LookupError: none is, or it has no such name."""
    from . import _pause

    held = _pause.current
    frames = list(held.frames) if held is not None else []  # it may go on meanwhile
    if frames:
        held.last_input = _probing.milliseconds()  # somebody looks after it
    try:
        code = _watch.compile_path(text) if frames else None
    except Refused:
        code = None
    if code is None or code.co_names[:1] and not any(code.co_names[0] in _watch.Names(frame) for frame in frames):
        raise LookupError
    return eval(code, next(names for names in map(_watch.Names, frames) if not code.co_names or code.co_names[0] in names))


# --- the facts about it

class Facts:
    """Pairs of a name and a value, in order; a list is a table of rows."""

    def __init__(self):
        self.pairs = []

    def add(self, name, value):
        if value is not None:
            self.pairs.append((name, value))

    def json(self):
        return _dap_json.encode(dict((name.replace(" ", "_"), value) for name, value in self.pairs))

    def text(self):
        lines = []
        for name, value in self.pairs:
            if type(value) is not list:
                lines.append("%-12s %s" % (name, short(value)))
                continue
            lines.append(name)
            columns = [[short(cell) for cell in column] for column in zip(*[row.values() for row in value])]
            widths = [max(map(len, column)) for column in columns]
            lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in zip(*columns)]
        return "\n".join(lines) + "\n"


def short(value):
    if type(value) is dict:
        return ", ".join("%s %s" % pair for pair in value.items())
    text = value if type(value) is str else str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 200 else text[:200] + "..."


def fact_of(name, value):
    """A field as a text; possible secrets are masked."""
    if type(name) is str and _values.is_one(type(value), (str, bytes)) and _probing.is_secret(name):
        return '"***"'
    return _values.text_of(_values.plain(value))


def describe(facts, value, referrers):
    kind = type(value)
    facts.add("type", _values.class_name(kind))
    where = ""
    read, module = _values.tensor(value), _values.known("torch.nn.modules.module", "Module")
    if read is not None:
        where = describe_tensor(facts, value, kind, read)
    elif kind is _values.known("numpy", "ndarray"):
        where = describe_array(facts, value)
    elif module is not None and issubclass(kind, module):
        describe_module(facts, value)
    else:
        facts.add("value", fact_of(None, value))
    if type(_values.find_in(kind, "__sizeof__")) is METHOD_OF_C:  # else it would be code of the program
        facts.add("own bytes", sys.getsizeof(value))
    references = sys.getrefcount(value) - OURS
    facts.add("references", references if references < IMMORTAL else None)
    facts.add("fields", fields_of(value, kind) or None)
    if referrers:
        facts.add("referrers", find_referrers(value) or [{"what": "none that the garbage collector knows"}])
    return where


def line_of(value):
    """A value in a line, such that equal ones give equal lines."""
    kind, facts, read = type(value), Facts(), _values.tensor(value)
    if read is not None and read.shape is not None:
        where = describe_tensor(facts, value, kind, read)
    elif kind is _values.known("numpy", "ndarray"):
        where = describe_array(facts, value)
    else:
        return fact_of(None, value), ""
    known = dict(facts.pairs)
    parts = [_values.class_name(kind).rpartition(".")[2], known["dtype"], "x".join(map(str, known["shape"])) or "scalar"]
    return " ".join(parts + [known[name] for name in ("device", "values") if known.get(name, "cpu") != "cpu"]), where


def describe_tensor(facts, value, kind, read):
    """The address and layout of its data, for the tool; "": not read."""
    if read.shape is not None:
        facts.add("shape", tuple(read.shape))
        facts.add("dtype", read.dtype)
        facts.add("device", read.device)
        facts.add("elements", read.count)
        facts.add("bytes", read.nbytes if read.size else None)
    if not read.is_jax:
        facts.add("requires grad", bool(_values.field(value, "requires_grad")))
    if is_plain(kind):
        made_by = _values.field(value, "grad_fn")
        facts.add("made by", None if made_by is None else _values.own_name(type(made_by)))
        grad = _values.tensor(_values.field(value, "grad")) if _values.field(value, "is_leaf") else None
        facts.add("gradient", None if grad is None or grad.shape is None else tuple(grad.shape))
    why = unread(read, kind)
    if why:
        facts.add("values", "not read: " + why)
        return ""
    return where_line(read.address, read.dtype, read.size, read.shape, [step * read.size for step in read.steps]) if read.address else ""


def is_plain(kind):
    return _values.is_one(kind, (_values.known("torch", "Tensor"), _values.known("torch.nn.parameter", "Parameter")))


def unread(read, kind):
    if read.why is not None and read.count:
        return read.why + ("; eval can" if read.device not in ("cpu", None) and not read.is_jax else "")
    if not is_plain(kind) and not read.is_jax:
        return "of a class of its own"
    if read.dtype not in DTYPES:
        return "of a type that is not known here"
    return None


def describe_array(facts, value):
    shape, dtype = _values.array(value, type(value))
    facts.add("shape", tuple(shape))
    facts.add("dtype", dtype)
    facts.add("bytes", value.nbytes)
    if dtype not in DTYPES or not value.dtype.isnative:
        facts.add("values", "not read: of a type that is not known here")
        return ""
    return where_line(value.__array_interface__["data"][0], dtype, value.itemsize, shape, value.strides)


def where_line(address, dtype, size, shape, strides):
    if len(shape) > 64 or 0 in shape:
        return ""
    return "%d %s %d %d %s" % (address, dtype, size, len(shape), " ".join("%d %d" % pair for pair in zip(shape, strides)))


def describe_module(facts, module):
    """Reads the dicts that torch keeps for a module: named_parameters() may be overridden by the program."""
    parts, seen, own, todo = 0, {}, [], [("", module)]
    met = set()
    while todo and parts < MODULES_MAX:
        path, part = todo.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        parts += 1
        names = object.__getattribute__(part, "__dict__")
        for name, parameter in list((names.get("_parameters") or {}).items()):
            if parameter is not None:
                seen[id(parameter)] = parameter
                if len(own) < FIELDS_MAX:
                    own.append({"name": path + name, "fact": fact_of(None, parameter)})
        todo += [(path + name + ".", each) for name, each in list((names.get("_modules") or {}).items())[::-1] if each is not None]
    names = object.__getattribute__(module, "__dict__")
    read = [(each, _values.tensor(each)) for each in list(seen.values())]
    kept = [(each, found) for each, found in read if found is not None and found.shape is not None]
    facts.add("parameters", sum(found.nbytes // found.size for _, found in kept))
    facts.add("trainable", sum(found.nbytes // found.size for each, found in kept if _values.field(each, "requires_grad")))
    facts.add("bytes", sum(found.nbytes for _, found in kept))
    facts.add("placed", ", ".join(sorted({"%s %s" % (found.device, found.dtype) for _, found in kept})) or None)
    facts.add("modules", parts)
    facts.add("training", bool(names.get("training")))
    hooks = [{"kind": name.strip("_"), "function": function_text(hook)} for name in HOOKS for hook in list((names.get(name) or {}).values())]
    facts.add("hooks", hooks or None)
    facts.add("tensors", own or None)
    facts.add("name", _probing.torch_name(module) or None)


def function_text(function):
    function = function.__func__ if type(function) is _trace.METHOD else function
    if type(function) is not _trace.FUNCTION:
        return _values.class_name(type(function))
    return "%s (%s:%d)" % (function.__qualname__, function.__code__.co_filename, function.__code__.co_firstlineno)


def fields_of(value, kind):
    """The attributes of an object, the first items of a container; no __getattr__ is called."""
    rows = []
    if issubclass(kind, dict):
        rows = [(_values.text_of(_values.plain(key)), key, item) for key, item in first(dict.items(value))]
    elif issubclass(kind, (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        rows = [("[%d]" % number, None, item) for number, item in enumerate(first(base.__iter__(value)))]
    try:
        names = object.__getattribute__(value, "__dict__")
    except Exception:
        names = None
    if type(names) is dict:
        ours = "_parameters" in names and "_modules" in names  # torch's own fields of a module are shown above
        rows += [(str(name), name, item) for name, item in first(list(names.items())) if not (ours and str(name).startswith("_"))]
    for base in _values.mro(kind)[:-1]:
        for name, member in list(_values.names_of(base).items()):
            if type(member) is _values.MEMBER and type(name) is str:
                try:
                    rows.append((name, name, member.__get__(value, kind)))
                except Exception:
                    continue
    return [{"name": name, "value": fact_of(key, item)} for name, key, item in rows[:FIELDS_MAX]]


def first(items):
    found = []
    for item in items:
        if len(found) == FIELDS_MAX:
            break
        found.append(item)
    return found


def find_referrers(value):
    """The collector's walk over its objects, with the GIL: some 50 ms for a million. Variables of running functions are not included. Of each, the
    variable that leads to it, where one does."""
    flat = _probing.referrers(gc_module().get_referrers, value, REFERRERS_MAX)
    whose = _owners.find(flat[1::2])
    return [{"what": what + (": " + whose[address] if address in whose else "")} for what, address in zip(flat[::2], flat[1::2])]


def find(channel, options):
    if options.get("line") == "1":
        try:
            return in_held(options["object"])
        except LookupError:
            pass
    return resolve(channel, options["object"])


def serve_control(arguments, channel):
    options = dict(line.partition("=")[::2] for line in arguments.decode("utf-8", "surrogateescape").splitlines())
    try:
        value, facts = find(channel, options), Facts()
        if options.get("line") == "1":
            body, where = line_of(value)
        else:
            where = describe(facts, value, options.get("referrers") == "1")
            body = facts.json() + "\n" if options.get("json") == "1" else facts.text()
    except Refused as error:
        channel.close(str(error), 1)
        return
    except Exception as error:
        channel.close("%s: %s" % (type(error).__name__, error), 1)
        return
    except KeyboardInterrupt:
        return
    name = next((item for name, item in facts.pairs if name == "name"), "")
    channel.write(("ok %s\n%s\n%s\0" % (where, name.replace("\n", " "), body)).encode("utf-8", "backslashreplace"))
    if where:
        try:
            channel.read(KEEP_MS)  # until the tool has read the data: this keeps the object alive
        except KeyboardInterrupt:
            pass
    value = None
