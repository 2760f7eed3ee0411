"""Tables whose rows come from a function at the moment somebody asks: probing.register.

A query that names such a table sends the name to the agent, which calls the function and sends lines back (src/ask/registered.c reads
them):

    T name          a table begins
    C name type     a column of it, in order; the type is the format's number
    R cell ...      a row; \\N is NULL; \\\\ \\t \\n \\0 stand for those characters; bytes are hexadecimal digits
    E name text     the function failed, and how
"""
from _thread import get_ident

from . import _by_type

FILENAME = "<probing live>"
OBJECTS = "objects "  # before the name of a table of live objects (_objects.py)
MOST_ROWS = 100000
MOST_BYTES = 32 << 20
MOST_CALLS = 4  # of a function at a time: one that waits for ever must not take all threads for code
INT64, FLOAT64, BOOL, TIMESTAMP, STRING, BYTES = 4, 10, 11, 12, 13, 14


def functions():
    import _probing

    return _probing.shared.setdefault("registered", {})  # full name -> (kind, function, columns or None)


def name_of(function):
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None) or repr(function)
    return "%s.%s" % (module, name) if module else name


def send(request):
    """Runs as the request's code: may be interrupted at any point."""
    import _probing

    if request.source.startswith(OBJECTS):
        from . import _objects

        return _objects.send(request, request.source.split()[1:])
    wanted = request.source.lower()
    for full, (_, function, columns) in sorted(functions().items()):
        if wanted not in (full.lower(), "." + full.rpartition(".")[2].lower()):  # .name: of any schema
            continue
        calls = _probing.shared.setdefault("registered calls", {}).setdefault(full, [])
        if len(calls) >= MOST_CALLS and _still_run(calls):
            request.send(1, "E\t%s\tthe function %s runs for %d queries already, and has not returned\n"
                         % (full, _escape(name_of(function)), len(calls)))
            continue
        own = get_ident()
        try:
            calls.append(own)
            text = _table(full, function, columns)
        except _probing.shared["interrupt"]:  # by the agent: the query's time is over
            request.send(1, "E\t%s\tthe function %s did not return in time\n" % (full, _escape(name_of(function))))
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt end the function, not the tables after it
            from ._catch import describe_value

            raised = _by_type.name_of(type(error)), _by_type.message_of(error, describe_value)
            text = "E\t%s\tthe function %s raised %s\n" % (full, _escape(name_of(function)), _escape(": ".join(filter(None, raised))))
        finally:
            if own in calls:
                calls.remove(own)
        request.send(1, text)


def _still_run(calls):
    """Whether so many still do. An interrupt may have kept a thread from taking itself out of the list; it is out when it has ended."""
    from ._helpers import all_threads

    there = {ident for ident, _ in all_threads()} - {get_ident()}
    calls[:] = [ident for ident in calls if ident in there]
    return len(calls) >= MOST_CALLS


def _table(full, function, columns):
    names, rows = _rows(function(), columns)
    kinds = [columns[name] if columns else _kind([row[i] for row in rows]) for i, name in enumerate(names)]
    lines = ["T\t%s\n" % full] + ["C\t%s\t%d\n" % pair for pair in zip(names, kinds)]
    size = 0
    for row in rows:
        line = "R\t%s\n" % "\t".join(_cell(value, kind) for value, kind in zip(row, kinds))
        size += len(line)
        if size > MOST_BYTES:
            raise ValueError("its rows are larger than %d MB" % (MOST_BYTES >> 20))
        lines.append(line)
    return "".join(lines)


def _rows(given, columns):
    """Column names, and a list of values for each row: from dicts, objects with fields, or tuples if the columns are known."""
    if isinstance(given, dict):
        given = [given]
    found, names = [], list(columns or ())
    for row in given or ():
        if len(found) == MOST_ROWS:
            raise ValueError("it gave more than %d rows" % MOST_ROWS)
        if hasattr(row, "_asdict"):
            row = row._asdict()
        elif not isinstance(row, (dict, tuple, list)):
            row = dict(vars(row))
        if isinstance(row, dict):
            names += [name for name in row if name not in names] if not columns else []
            found.append(row)
        elif columns:
            found.append(dict(zip(columns, row)))
        else:
            raise TypeError("a row is a dict, unless register was given columns")
    import _probing

    for name in names:
        if not _probing.is_name(name, False):
            raise ValueError("%r is no name for a column" % (name,))
    return names, [[row.get(name) for name in names] for row in found]


def _kind(values):
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return BOOL
    if kinds == {int} and all(-1 << 63 <= value < 1 << 63 for value in values if value is not None):
        return INT64
    if kinds and kinds <= {int, float}:
        return FLOAT64
    if kinds == {bytes}:
        return BYTES
    if kinds and all(hasattr(kind, "timestamp") for kind in kinds):
        return TIMESTAMP
    return STRING


def _cell(value, kind):
    if value is None:
        return "\\N"
    if kind == BOOL:
        return "1" if value else "0"
    if kind == TIMESTAMP:
        return str(int(value.timestamp() * 10 ** 6) * 1000 if hasattr(value, "timestamp") else int(value))
    if kind == FLOAT64:
        return repr(float(value))
    if kind == BYTES:
        return bytes(value).hex()
    if kind == STRING:
        return _escape(value if isinstance(value, str) else str(value))
    return str(int(value))


def _escape(text):
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
