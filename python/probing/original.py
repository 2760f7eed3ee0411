"""Names of the tool that this one takes over from, for what is here too: scripts written for it run. docs/python.md has the list; ours are the documented ones.

Imported when one of the names is asked for.
"""
from ._agent import agent, recording, warn


class Outcome:
    """The result of a query: rows, or the error. True if there are rows."""

    def __init__(self, rows, error):
        self.rows, self.error = rows, error
        self.ok, self.notes = error is None, getattr(rows, "notes", [])

    def __bool__(self):
        return self.ok


def query_outcome(sql, target=None, timeout=30):
    """probing.query without an exception: an Outcome."""
    from . import _query

    try:
        return Outcome(_query.query(sql, target, timeout), None)
    except _query.Error as error:
        return Outcome(None, str(error))


def phase():
    """The phase of the span that is open here, or `idle`."""
    return agent().phase() or "idle"


_attached = []


def attach_training_phases(model=None, optimizer=None, **others):
    """Forward, backward, optimizer and steps are recorded from now on: those of the whole process, by the torch probe (docs/torch.md)."""
    from . import config

    try:
        config.set("probing.torch.profiling", "on")
        _attached[:] = [True]
    except (KeyError, OSError) as error:
        warn("phases are not recorded: %s" % error)
    return model


def owns_training_phases(model=None, optimizer=None, module=None):
    return bool(_attached)


def load_extension(statement):
    """Imports pkg.mod, or what pkg.mod.name names; pkg.mod.init() calls it."""
    import importlib

    path, called = (statement[:-2], True) if statement.endswith("()") else (statement, False)
    parts, at = path.split("."), 1
    found = importlib.import_module(parts[0])
    for part in parts[1:]:
        at += 1
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:at]))
        found = getattr(found, part)
    return found() if called else found


def enable_tracer(*given, **named):
    """Reading stacks needs nothing to be turned on here."""


disable_tracer = enable_tracer


class ExternalTable:
    """A table whose columns get their types from the first row: ExternalTable("loss", ["step", "loss"]).append([1, 0.5]). In SQL python.loss."""

    _known = {}

    def __init__(self, name, columns, chunk_size=None, discard_threshold=None, discard_strategy=None):
        self.name, self._columns, self._table = name if "." in name else "python." + name, list(columns), None
        for each in columns:
            if not agent().is_name(each, False):
                raise ValueError("%r is no name for a column" % (each,))
        self._known[self.name] = self

    @classmethod
    def get(cls, name):
        found = cls._known.get(name if "." in name else "python." + name)
        if found is None:
            raise ValueError("there is no table %s" % name)
        return found

    @classmethod
    def get_or_create(cls, name, columns, *more, **named):
        return cls._known.get(name if "." in name else "python." + name) or cls(name, columns, *more, **named)

    @classmethod
    def drop(cls, name):
        """Its rows stay until newer ones of other tables need the room."""
        cls._known.pop(name if "." in name else "python." + name, None)

    def names(self):
        return list(self._columns)

    def append(self, values):
        if self._table is None:
            from .tables import table

            kinds = [type(each) if type(each) in (bool, int, str, bytes) else str if each is None else float for each in values]
            columns = [name if name.lower() != "timestamp" else "time" for name in self._columns]
            self._table = table(self.name, list(zip(columns, kinds)))
        self._table.append(*values)

    def append_many(self, rows):
        for each in rows:
            self.append(each)

    def take(self, limit=None):
        """The newest rows first: (time in us since 1970, values)."""
        from . import _query

        recording(True)
        found = [list(row.values()) for row in _query.query("SELECT epoch_us(timestamp), * EXCLUDE (timestamp) FROM %s" % self.name)]
        found.sort(key=lambda values: values[0])  # stable: rows of one microsecond stay as they were appended
        return [(values[0], values[1:]) for values in found[::-1][:limit]]
