"""Tables of a program's own.

    steps = probing.table("steps", {"step": int, "loss": float, "note": str})
    steps.append(1, 0.5, note="warm-up")

    @probing.table
    @dataclass
    class Step:
        step: int
        loss: float
    Step.append(1, 0.5); Step.append(Step(2, 0.4))

Names: letters, digits and underscores, not beginning with a digit; a table may be SCHEMA.NAME. Types: int, float, str, bool, bytes, or a
name: int8 ... int64, uint8 ... uint64, float32, float64, string, bytes, bool, timestamp (an int is ns, a float s since 1970), or as SQL spells
them (BIGINT, DOUBLE, VARCHAR, ...). Optional[T] is T: every cell may be NULL. The first column is always `timestamp`, when the row was appended.
"""
from ._agent import recording, warn

# The numbers are those of the format (enum pb_type, src/table/layout.h).
_CODES = {"int8": 1, "int16": 2, "int32": 3, "int64": 4, "uint8": 5, "uint16": 6, "uint32": 7, "uint64": 8,
          "float32": 9, "float64": 10, "bool": 11, "timestamp": 12, "string": 13, "bytes": 14}
_OTHERS = {"int": "int64", "integer": "int32", "float": "float64", "double": "float64", "real": "float32", "str": "string", "text": "string",
           "varchar": "string", "blob": "bytes", "boolean": "bool", "tinyint": "int8", "smallint": "int16", "bigint": "int64",
           "utinyint": "uint8", "usmallint": "uint16", "uinteger": "uint32", "ubigint": "uint64", "datetime": "timestamp"}


def _code(kind):
    """The format's number for a type."""
    options = [each for each in getattr(kind, "__args__", None) or () if each is not type(None)]
    if len(options) == 1:  # Optional[int], int | None
        return _code(options[0])
    name = (kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))).strip()
    if name.startswith("Optional[") and name.endswith("]"):  # from __future__ import annotations
        name = name[len("Optional["):-1]
    name = name.replace("| None", "").strip().lower()
    code = _CODES.get(_OTHERS.get(name, name))
    if code is None:
        raise TypeError("a column cannot be of type %s; there are int, float, str, bool, bytes and %s" % (name, ", ".join(sorted(_CODES))))
    return code


def _columns(given):
    """[(name, code, unit, comment)] from {name: type} or [(name, type[, unit[, comment]])] or ["name type"]."""
    found = []
    for each in given.items() if hasattr(given, "items") else given:
        if isinstance(each, str):
            each = tuple(each.split(None, 1))
        name, kind, unit, comment = (tuple(each) + (None, None, None))[:4]
        found.append((name, _code(float if kind is None else kind), unit, comment))
    return found


def table(name, columns=None, comment=None):
    """A table with append; see the module. As a decorator it makes one of a dataclass, named after it."""
    if isinstance(name, type):
        return _of_class(name, None)
    if columns is None:
        return lambda cls: _of_class(cls, name)
    return recording().table(name, _columns(columns), comment)


def _of_class(cls, name):
    fields = list(getattr(cls, "__dataclass_fields__", None) or getattr(cls, "__annotations__", {}))
    kinds = getattr(cls, "__annotations__", {})
    if not fields or not all(each in kinds for each in fields):
        raise TypeError("%s has no fields: @probing.table goes above @dataclass" % cls.__name__)
    made = recording().table(name or _snake(cls.__name__), _columns([(each, kinds[each]) for each in fields]), cls.__doc__ and
                             cls.__doc__.splitlines()[0])

    def append(*values, **named):
        if len(values) == 1 and isinstance(values[0], cls):
            row = values[0]
            values = [getattr(row, each) for each in fields]
        made.append(*values, **named)

    cls.append = staticmethod(append)
    cls.__probing_table__ = made
    return cls


def _snake(name):
    return "".join("_" + letter.lower() if letter.isupper() and i else letter.lower() for i, letter in enumerate(name))


def log(**values):
    """A row of training_logs with these values, and a column for each new name. Numbers are DOUBLE, but those that count (epoch, step, ...) BIGINT.
    A value that does not fit its column is left out, and a line says so once."""
    left_out = recording().log(**values)
    if left_out:
        warn("log: left out %s: of another type than before, or no name for a column" % ", ".join(left_out))


def register(name, kind="table", namespace=None, function=None, columns=None):
    """A table whose rows come from a function at the moment of a query: NAMESPACE.NAME in SQL.

    The function takes nothing and gives dicts, objects with fields, or tuples where `columns` names them ({name: type}; wanted too where it may give no
    rows). It is called in a thread of ours, with the deadline of the query, which says so where the function raises or takes too long. kind is a word
    for people. As a decorator: @probing.register("queue", namespace="loader")."""
    if function is None:
        return lambda given: register(name, kind, namespace, given, columns) or given
    full = "%s.%s" % (namespace, name) if namespace else name
    module = recording()
    if not module.is_name(full, True):
        raise ValueError("%r is no name for a table: letters, digits and underscores, not beginning with a digit" % full)
    module.shared.setdefault("registered", {})[full] = (kind, function, columns and {each[0]: each[1] for each in _columns(columns)})
    _tell(module, full, kind, function, True)


def unregister(name, namespace=None):
    full = "%s.%s" % (namespace, name) if namespace else name
    module = recording()
    entry = module.shared.get("registered", {}).pop(full, None)
    if entry is not None:
        _tell(module, full, entry[0], entry[1], False)


def _tell(module, full, kind, function, active):
    """Adds a row by which a query finds the table, for this agent and the next."""
    from ._live import name_of

    module.tell_registered(full, str(kind), name_of(function), active)
