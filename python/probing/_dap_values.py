"""Values of the program as a debugger shows them: a line of text each, parts on demand and in pages.

Tensors and arrays are shown by shape and type: their elements may be on a device that does not answer. For other objects that are not built in
the program's own __repr__ is called, in the stopped thread, where a client can interrupt it. Numbers (variablesReference) refer to values that
have parts; they are forgotten when their thread continues.
"""
from . import _values
from ._values import is_one

TEXT_MAX, ITEMS_MAX, NESTED_MAX, PAGE_MAX = 400, 12, 2, 1000
PLAIN = (int, float, complex, bool, type(None), type(Ellipsis), range, slice)
TEXTS = (str, bytes, bytearray)


def render(value, level=0, full=False):
    """A bounded text. full: a string is not cut."""
    kind = type(value)
    if kind is int and value.bit_length() > 4000:
        return "<int of %d bits>" % value.bit_length()
    if is_one(kind, PLAIN):
        return repr(value)
    if is_one(kind, TEXTS):
        return repr(value) if full or len(value) <= TEXT_MAX else repr(value[:TEXT_MAX]) + "..."
    if id(kind) in _values.CONTAINERS:
        return render_items(value, kind, level)
    text = render_tensor(value, kind)
    if text is not None:
        return text
    if _values.find_in(kind, "__repr__") is object.__repr__:
        return "<%s>" % class_name(kind)
    text = repr(value)
    return text if full or len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."


def render_items(value, kind, level):
    if level >= NESTED_MAX and len(value):
        return "<%s of %d>" % (kind.__name__, len(value))
    begin, end = {list: ("[", "]"), tuple: ("(", ",)" if len(value) == 1 else ")"), dict: ("{", "}"), set: ("{", "}"),
                  frozenset: ("frozenset({", "})")}[kind]
    if not value and (kind is set or kind is frozenset):
        return kind.__name__ + "()"
    texts, size = [], 0
    for item in first_items(value, kind):
        text = "%s: %s" % (render(item[0], level + 1), render(item[1], level + 1)) if kind is dict else render(item, level + 1)
        texts.append(text)
        size += len(text)
        if size > TEXT_MAX:
            break
    more = ["... %d more" % (len(value) - len(texts))] if len(value) > len(texts) else []
    return begin + ", ".join(texts + more) + end


def first_items(value, kind):
    """Without copying everything; ends early if another thread changes it meanwhile."""
    found = []
    try:
        for item in value.items() if kind is dict else value:
            found.append(item)
            if len(found) == ITEMS_MAX:
                break
    except RuntimeError:
        pass
    return found


def class_name(kind):
    name = _values.class_name(kind)
    return _values.own_name(kind) if name.startswith(("builtins.", "__main__.")) else name


def render_tensor(value, kind):
    """Reads none of its memory, on whichever device that is."""
    found, array = _values.tensor(value), _values.array(value, kind)
    if found is None and array is None:
        return None
    name = _values.own_name(kind)
    if array is not None:
        return "<%s shape=%s dtype=%s>" % (name, array[0], array[1])
    if found.shape is None:
        return "<%s>" % name
    words = [name, "shape=%s" % (tuple(found.shape),), "dtype=%s" % found.dtype, "device=%s" % (found.device or "?")]
    return "<%s>" % " ".join(words + (["requires_grad"] if not found.is_jax and _values.field(value, "requires_grad") else []))


def is_a(value, *kinds):
    """Like isinstance, without asking the object for its __class__: that of a proxy may raise."""
    return issubclass(type(value), kinds)


def part_counts(value):
    """(named parts, indexed parts)."""
    kind = type(value)
    if is_one(kind, PLAIN + TEXTS):
        return 0, 0
    if is_a(value, type) or _values.own_name(kind) in ("function", "builtin_function_or_method", "method"):
        return 0, 0
    if is_a(value, list, tuple, dict, set, frozenset):
        return len(own_names(value)), container_len(value)
    return len(own_names(value)), 0


def container_len(value):
    for base in (list, tuple, dict, set, frozenset):
        if is_a(value, base):
            return base.__len__(value)
    return 0


def tensor_names(value, read):
    found = {} if read.shape is None else {"shape": tuple(read.shape), "dtype": read.dtype, "device": read.device, "strides": tuple(read.steps),
                                           "nbytes": read.nbytes}
    found.update((name, item) for name, item in (("_version", read.version), ("value", _values.tensor_number(value, read))) if item is not None)
    if not read.is_jax:
        found.update((name, _values.field(value, name)) for name in ("requires_grad", "is_leaf"))
    if found.get("is_leaf"):
        found["grad"] = _values.field(value, "grad")
    return found


def own_names(value):
    """Names and values of an object's own attributes; properties are not called."""
    kind = type(value)
    read, array = _values.tensor(value), _values.array(value, kind)
    if read is not None:
        return tensor_names(value, read)
    if array is not None:
        return {"shape": array[0], "dtype": array[1]}
    found = {}
    fields = _values.find_in(kind, "_fields")
    if is_a(value, tuple) and type(fields) is tuple:
        found.update((name, item) for name, item in zip(fields, tuple.__iter__(value)) if type(name) is str)
    for each in reversed(_values.mro(kind)):
        slots = _values.names_of(each).get("__slots__", ())
        for name in (slots,) if type(slots) is str else tuple(slots):
            member = _values.names_of(each).get(name)
            if type(member) is _values.MEMBER:
                try:
                    found[name] = member.__get__(value, kind)
                except AttributeError:
                    continue
    try:
        names = object.__getattribute__(value, "__dict__")
    except Exception:
        names = None
    if type(names) is dict:
        found.update((name, item) for name, item in list(names.items()) if type(name) is str)
    return found


def indexed_items(value, start, count):
    """(name, value, key) of parts of a container from that index on."""
    if is_a(value, list, tuple):
        base = list if is_a(value, list) else tuple
        items = base.__getitem__(value, slice(start, start + count))
        return [("[%d]" % (start + at), item, start + at) for at, item in enumerate(items)]
    if not is_a(value, dict, set, frozenset):
        return []
    found, at = [], 0
    is_dict = is_a(value, dict)
    try:
        for item in dict.items(value) if is_dict else (set if is_a(value, set) else frozenset).__iter__(value):
            if at >= start + count:
                break
            if at >= start:
                found.append(("[%s]" % render(item[0], 1), item[1], item[0]) if is_dict else ("[%d]" % at, item, None))
            at += 1
    except RuntimeError:  # another thread changed it
        pass
    return found


class Holder:
    """What a number refers to: an object whose parts are shown, or the names of a frame."""

    def __init__(self, value, expression="", names=None):
        self.value, self.expression = value, expression
        self.names = names  # of a scope: a dict of the visible names, and how to assign

    def parts(self, what, start, count):
        """(name, value, expression)."""
        found = []
        if what in (None, "named"):
            named = sorted(self.named().items()) if self.names is None else list(self.named().items())
            if what == "named":
                named = named[start:start + count]
            for name, item in named:
                expression = name if self.names is not None else "%s.%s" % (self.expression, name) if self.expression else ""
                found.append((name, item, expression))
        if what in (None, "indexed") and self.names is None:
            for name, item, key in indexed_items(self.value, start, count):
                if is_a(self.value, set, frozenset) or not self.expression:
                    expression = ""
                else:
                    expression = "%s[%s]" % (self.expression, render(key, full=True)) if is_one(type(key), (int, str, bytes, bool, float)) else ""
                found.append((name, item, expression))
        return found

    def named(self):
        return self.names.seen_names() if self.names is not None else own_names(self.value)

    def assign(self, name, value):
        """Assigns a new value to a part."""
        if self.names is not None:
            self.names.assign(name, value)
        elif name.startswith("[") and is_a(self.value, list):
            self.value[int(name[1:-1])] = value
        elif name.startswith("[") and is_a(self.value, dict):
            for key in list(self.value):
                if "[%s]" % render(key, 1) == name:
                    self.value[key] = value
                    return
            raise KeyError(name)
        elif name.startswith("["):
            raise TypeError("parts of a %s cannot be assigned" % type(self.value).__name__)
        else:
            setattr(self.value, name, value)


class Scope:
    """Locals or globals of a frame."""

    def __init__(self, frame_names, is_globals):
        self.frame_names, self.is_globals = frame_names, is_globals

    def seen_names(self):
        frame = self.frame_names.frame
        found = frame.f_globals if self.is_globals else self.frame_names.fresh_locals()
        return {name: found[name] for name in sorted(name for name in list(found) if type(name) is str)}

    def assign(self, name, value):
        if self.is_globals:
            self.frame_names.frame.f_globals[name] = value
        else:
            self.frame_names[name] = value
