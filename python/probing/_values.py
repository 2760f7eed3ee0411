"""Values of the program as texts, JSON and numbers, without calling code of the program.

Numbers and texts are shown as such, containers in outline, tensors and arrays by shape and type, all else by its class. A type is compared by
identity: `==` and `in` would call the __eq__ of its metaclass, which may be the program's. Tensors are read by layout (src/agent/python/tensor.c): a mode
of torch, a subclass or a profiler would see each call of torch's functions, and one may be a collective or wait for a device.
"""
import sys

import _probing

TEXT_MAX, ITEMS_MAX, NESTED_MAX, ALL_MAX = 200, 8, 2, 2000
SCALARS = frozenset(map(id, (int, float, bool, complex, str, bytes, type(None))))  # by id: a set of types would call the __hash__ of a metaclass
CONTAINERS = frozenset(map(id, (list, tuple, dict, set, frozenset)))
MODULE = type(sys)
NUMBERS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}  # kinds of numpy's types
SHARDED = "it is sharded over ranks, and only a collective knows all of it"


def is_one(kind, kinds):
    for each in kinds:
        if kind is each:
            return True
    return False


def known(module, name):
    """A name of a module that is imported, or None. Not getattr: a module may have a __getattr__."""
    found = sys.modules.get(module)
    return object.__getattribute__(found, "__dict__").get(name) if type(found) is MODULE else None


def plain(value, level=0):
    """A value as JSON has them."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value.bit_length() <= 64 else "<int of %d bits>" % value.bit_length()
    if kind is float:
        return value if value - value == 0 else str(value)
    if kind is str:
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "..."
    if id(kind) in CONTAINERS:
        return outline(value, kind, level)
    if kind is bytes or kind is bytearray:
        return "<%s of %d>" % (kind.__name__, len(value))
    return of_tensor(value, kind) or "<%s>" % class_name(kind)


def outline(value, kind, level):
    if level >= NESTED_MAX:
        return "<%s of %d>" % (kind.__name__, len(value))
    items = []
    for item in value.items() if kind is dict else value:
        if len(items) == ITEMS_MAX:
            break
        items.append(item)
    more = len(value) - len(items)
    if kind is dict:
        shown = {key if type(key) is str else str(plain(key, NESTED_MAX)): plain(item, level + 1) for key, item in items}
        if more:
            shown["..."] = "%d more" % more
        return shown
    return [plain(item, level + 1) for item in items] + (["... %d more" % more] if more else [])


def own_name(kind):
    return type.__dict__["__qualname__"].__get__(kind)


def class_name(kind):
    module = type.__dict__["__module__"].__get__(kind)
    return "%s.%s" % (module, own_name(kind)) if type(module) is str else own_name(kind)


def mro(kind):
    return type.__dict__["__mro__"].__get__(kind)


def names_of(kind):
    """The names in a class, without those of its bases."""
    return type.__dict__["__dict__"].__get__(kind)


def find_in(kind, name):
    """What an object of that type finds under a name; None: nothing."""
    return next((names_of(each)[name] for each in mro(kind) if name in names_of(each)), None)


def own_field(value, name):
    """An attribute that an object has itself, in its __dict__ or __slots__; None: it has none of that name."""
    try:
        return object.__getattribute__(value, "__dict__")[name]
    except (AttributeError, KeyError, TypeError):
        pass
    member = find_in(type(value), name)
    try:
        return member.__get__(value, type(value)) if type(member) is MEMBER else None
    except AttributeError:
        return None


# --- tensors and arrays

def local_of(value):
    """(the tensor that this rank has of a DTensor, whether that is all of it); (None, True): it is no DTensor."""
    kind = type(value)
    if kind is not (known("torch.distributed.tensor", "DTensor") or known("torch.distributed._tensor", "DTensor")):
        return None, True
    local, spec = own_field(value, "_local_tensor"), own_field(value, "_spec")
    placements, meta = own_field(spec, "placements"), own_field(spec, "tensor_meta")
    places = {own_name(type(each)) for each in placements} if type(placements) is tuple else {"?"}
    if places <= {"Replicate"}:
        return local, True
    found = _probing.tensor(local)
    shape = meta[0] if issubclass(type(meta), tuple) and tuple.__len__(meta) else None
    return local, found is not None and places <= {"Replicate", "Shard"} and issubclass(type(shape), tuple) and list(tuple.__iter__(shape)) == found[0]


class Tensor:
    """What is read of a tensor; shape is None where its class alone knows it, count is of its elements."""

    __slots__ = ("shape", "dtype", "device", "version", "count", "why", "address", "size", "steps", "nbytes", "is_jax", "is_shard")


MEMBER = type(Tensor.shape)  # what __slots__ puts into a class


def tensor(value):
    """None: neither a tensor nor an array of JAX."""
    found = _probing.tensor(value)
    if found is None:
        return None
    read, is_whole = Tensor(), True
    if found[0] is None:
        local, is_whole = local_of(value)
        inner = _probing.tensor(local) if local is not None else None
        if inner is not None:
            found = inner[:3] + [found[3]] + inner[4:]  # changes are counted where they are made: in the DTensor
    read.shape, read.dtype, read.device, read.version, read.count, read.why, read.address, read.size, read.steps, read.nbytes, read.is_jax = found
    read.is_shard = not is_whole
    if read.is_shard:
        read.why = SHARDED
    return read


def tensor_number(value, read):
    """The value of a tensor with one element; None: it has more, or cannot be read. read: what `tensor` gave for it."""
    if read.count != 1 or read.why is not None:
        return None
    local, _ = local_of(value)
    return _probing.tensor_number(value if local is None else local)


def squares(value):
    """The sum of the squares of its elements, or why there is none; and whether that is of a shard only."""
    local, is_whole = local_of(value)
    return _probing.tensor_squares(value if local is None else local), not is_whole


def squares_of_gradient(parameter):
    """The same of its gradient; None: it has none."""
    grad = _probing.tensor_gradient(parameter)
    return (grad, False) if is_one(type(grad), (type(None), float, str)) else squares(grad)


def array_type(dtype):
    """float64. Not str(dtype), which is code in Python of numpy's."""
    return "%s%d" % (NUMBERS[dtype.kind], 8 * dtype.itemsize) if dtype.kind in NUMBERS and dtype.kind != "b" else NUMBERS.get(dtype.kind, dtype.str)


def array(value, kind):
    """(shape, type) of an array of numpy or a class derived from it; None: it is none."""
    base = known("numpy", "ndarray")
    if base is None or not issubclass(kind, base):
        return None
    names = names_of(base)
    return names["shape"].__get__(value), array_type(names["dtype"].__get__(value))


def field(value, name):
    """requires_grad, is_leaf or grad of a tensor, which torch's own C function reads in it."""
    with known("torch._C", "DisableTorchFunction")():
        return known("torch._C", "TensorBase").__dict__[name].__get__(value)


def of_tensor(value, kind):
    """A tensor or an array as JSON has them; None: it is neither."""
    found = tensor(value)
    if found is not None and found.shape is not None:
        body = {"array" if found.is_jax else "tensor": found.shape, "dtype": found.dtype, "device": found.device}
        if found.is_shard:
            body["of"] = "a shard"
        return body
    if found is None and kind is known("numpy", "ndarray"):
        shape, dtype = array(value, kind)
        return {"array": list(shape), "dtype": dtype}
    return None


def number_of(value, kind):
    """(number, why not): of a number, a tensor or an array with one element; (None, None): it is none of these."""
    if issubclass(kind, float):
        return float.__float__(value), None
    if issubclass(kind, int):
        try:
            return float(int.__int__(value)), None
        except OverflowError:
            return None, "it is too large"
    found = tensor(value)
    if found is not None:
        number = tensor_number(value, found)
        return (float(number), None) if number is not None else (None, found.why or "it has several elements, or is no number")
    numpy = known("numpy", "ndarray")
    if kind is numpy and value.size == 1 and value.dtype.kind in "biuf" or \
            numpy is not None and issubclass(kind, known("numpy", "generic")) and class_name(kind).startswith("numpy.") and value.dtype.kind in "biuf":
        return float(value.item()), None
    return None, None


def tensor_text(value):
    """A line for a tensor or an array: with its number, or the range of a small one. None: it is neither."""
    kind, found = type(value), tensor(value)
    if found is not None and found.shape is None:
        return "<%s>" % class_name(kind)
    if found is not None:
        words = [class_name(kind), "(%s)" % ", ".join(map(str, found.shape)) if len(found.shape) != 1 else "(%d,)" % found.shape[0], found.dtype]
        words += [found.device] if found.device else []
        return "<%s%s%s>" % (" ".join(words), " shard" if found.is_shard else "", "" if found.is_shard else range_text(value, found))
    if kind is known("numpy", "ndarray"):
        return "<numpy.ndarray %s %s>" % array(value, kind)
    return None


def range_text(value, read):
    found = _probing.tensor_range(value)
    if found is None:  # also where its memory cannot be read, as that of a file that has become shorter
        return ""
    number = tensor_number(value, read)
    if number is not None:
        return ": %r" % number
    least, most, nans = found
    parts = ["%.6g to %.6g" % (least, most)] if least <= most else []
    return ": " + ", ".join(parts + (["%d NaN" % nans] if nans else []))


# --- JSON

def as_json(plain_value):
    """The result of plain, as JSON. Not by the json module: the program may not have it, and it would load a library."""
    if plain_value is None or plain_value is True or plain_value is False:
        return {None: "null", True: "true", False: "false"}[plain_value]
    kind = type(plain_value)
    if kind is dict:
        return "{%s}" % ", ".join("%s: %s" % (quoted(name), as_json(value)) for name, value in plain_value.items())
    if kind is list:
        return "[%s]" % ", ".join([as_json(value) for value in plain_value])
    return quoted(plain_value) if kind is str else repr(plain_value)


def quoted(text):
    return '"%s"' % "".join([char if " " <= char < "\x7f" and char not in '"\\' else escaped(ord(char)) for char in text])


def escaped(code):
    if code < 0x80:
        return {0x22: '\\"', 0x5c: "\\\\", 0x0a: "\\n", 0x09: "\\t", 0x0d: "\\r"}.get(code, "\\u%04x" % code)
    return "\\u%04x" % code if code < 0x10000 else "\\u%04x\\u%04x" % (0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff))


def text_of(plain_value):
    text = as_json(plain_value)
    return text if len(text) <= ALL_MAX else as_json({"...": "%d bytes" % len(text)})


