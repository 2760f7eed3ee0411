"""Values of the program as a debugger shows them: a line of text each, parts on demand and in pages.

Tensors and arrays are shown by shape and type: their elements may be on a device that does not answer. For other objects that are not built in
the program's own __repr__ is called, in the stopped thread, where a client can interrupt it. Numbers (variablesReference) refer to values that
have parts; they are forgotten when their thread continues.
"""
import sys

TEXT_MAX, ITEMS_MAX, NESTED_MAX, PAGE_MAX = 400, 12, 2, 1000
PLAIN = (int, float, complex, bool, type(None), type(Ellipsis), range, slice)
SEQUENCES, SETS = (list, tuple), (set, frozenset)


def render(value, level=0, full=False):
    """A bounded text. full: a string is not cut."""
    kind = type(value)
    if kind is int and value.bit_length() > 4000:
        return "<int of %d bits>" % value.bit_length()
    if kind in PLAIN:
        return repr(value)
    if kind in (str, bytes, bytearray):
        return repr(value) if full or len(value) <= TEXT_MAX else repr(value[:TEXT_MAX]) + "..."
    if kind in SEQUENCES + SETS or kind is dict:
        return render_items(value, kind, level)
    text = render_tensor(value, kind)
    if text is not None:
        return text
    if kind.__repr__ is object.__repr__:
        return "<%s>" % class_name(kind)
    text = repr(value)
    return text if full or len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."


def render_items(value, kind, level):
    if level >= NESTED_MAX and len(value):
        return "<%s of %d>" % (kind.__name__, len(value))
    begin, end = {list: ("[", "]"), tuple: ("(", ",)" if len(value) == 1 else ")"), dict: ("{", "}"), set: ("{", "}"),
                  frozenset: ("frozenset({", "})")}[kind]
    if not value and kind in SETS:
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
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", kind.__name__)
    return name if module in ("builtins", "__main__") or type(module) is not str else "%s.%s" % (module, name)


def is_tensor(value, kind):
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    tensor, array = getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None)
    return (isinstance(tensor, type) and issubclass(kind, tensor)) or (isinstance(array, type) and issubclass(kind, array))


def render_tensor(value, kind):
    """Reads none of its memory, on whichever device that is."""
    if not is_tensor(value, kind):
        return None
    try:
        words = [kind.__name__, "shape=%s" % (tuple(value.shape),), "dtype=%s" % str(value.dtype).replace("torch.", "")]
        if hasattr(kind, "device") and not isinstance(value.device, str):
            words.append("device=%s" % value.device)
        if getattr(value, "requires_grad", False):
            words.append("requires_grad")
        return "<%s>" % " ".join(words)
    except Exception as error:
        return "<%s whose shape raises %s>" % (kind.__name__, type(error).__name__)


def is_a(value, *kinds):
    """Like isinstance, without asking the object for its __class__: that of a proxy may raise."""
    return issubclass(type(value), kinds)


def part_counts(value):
    """(named parts, indexed parts)."""
    kind = type(value)
    if value is None or kind in PLAIN or kind in (str, bytes, bytearray):
        return 0, 0
    if is_a(value, type) or kind.__name__ in ("function", "builtin_function_or_method", "method"):
        return 0, 0
    if is_a(value, list, tuple, dict, set, frozenset):
        return len(own_names(value)), container_len(value)
    return len(own_names(value)), 0


def container_len(value):
    for base in (list, tuple, dict, set, frozenset):
        if is_a(value, base):
            return base.__len__(value)
    return 0


def own_names(value):
    """Names and values of an object's own attributes; properties are not called."""
    kind = type(value)
    if is_tensor(value, kind):
        names = ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "_version", "strides", "nbytes", "grad")
        found = {}
        for name in names:
            if hasattr(kind, name):
                try:
                    found[name] = getattr(value, name)
                except Exception:
                    continue
        return found
    found = {}
    fields = getattr(kind, "_fields", ())
    if is_a(value, tuple) and type(fields) is tuple:
        found.update((name, item) for name, item in zip(fields, tuple.__iter__(value)) if type(name) is str)
    for each in reversed(kind.__mro__):
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if type(slots) is str else tuple(slots):
            member = each.__dict__.get(name)
            if type(member).__name__ == "member_descriptor":
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
                    expression = "%s[%s]" % (self.expression, render(key, full=True)) if type(key) in (int, str, bytes, bool, float) else ""
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
