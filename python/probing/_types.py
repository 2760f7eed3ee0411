"""Converts SQL values to Python values, and columns of them for pandas, polars and arrow.

A type comes as SQL spells it: BIGINT, DECIMAL(10,2), VARCHAR[], STRUCT("a" INTEGER, "b" DATE), MAP(VARCHAR, DOUBLE). A value comes as JSON: texts
for all types that JSON lacks. A value that Python's own type cannot hold (an interval with months, infinity as a date, a year beyond 9999,
nanoseconds) stays the text of SQL. Standard library only; 3.6 and newer.
"""
import datetime
import decimal
import json
import re
import uuid

INTEGERS = {"TINYINT": "int8", "SMALLINT": "int16", "INTEGER": "int32", "BIGINT": "int64",
            "UTINYINT": "uint8", "USMALLINT": "uint16", "UINTEGER": "uint32", "UBIGINT": "uint64"}
FLOATS = {"FLOAT": "float32", "DOUBLE": "float64"}
TIMES = {"TIMESTAMP": "us", "TIMESTAMP_S": "s", "TIMESTAMP_MS": "ms", "TIMESTAMP_NS": "ns", "TIMESTAMPTZ": "us"}
_BLOCK = 1000  # lines that are read at once
TOKEN = re.compile(r'\s*(?:"((?:[^"]|"")*)"|(\w+)|(.))')
WHEN = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6})0*)?)?(?:\+00)?$")
CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?$")
SPAN = re.compile(r"(?:(-?\d+) days? ?)?(?:(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?$")


class Type:
    """A parsed type: name, members as (name or None, Type), numbers (of DECIMAL)."""

    def __init__(self, name, members=(), numbers=()):
        self.name, self.members, self.numbers = name, members, numbers

    def is_any(self, *names):
        return self.name in names or any(member.is_any(*names) for _, member in self.members)


class Parser:
    def __init__(self, text):
        self.tokens = TOKEN.findall(text)
        self.at = 0

    def peek(self, sign):
        return self.at < len(self.tokens) and self.tokens[self.at][2] == sign

    def next(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def type(self):
        name, members, numbers = self.next()[1], [], []
        while self.peek("(") or (members and self.peek(",")) or (numbers and self.peek(",")):
            self.next()
            if self.tokens[self.at][1].isdigit():
                numbers.append(int(self.next()[1]))
            elif name in ("STRUCT", "UNION"):
                members.append((self.next()[0].replace('""', '"'), self.type()))
            else:
                members.append((None, self.type()))
        if members or numbers:
            self.next()
        found = Type(name, members, numbers)
        while self.peek("["):
            while not self.peek("]"):
                self.next()
            self.next()
            found = Type("LIST", [(None, found)])
        return found


def parse(text):
    return Parser(text).type()


# --- values ---

def _micros(digits):
    return int((digits or "0").ljust(6, "0"))


def _when(text):
    found = WHEN.match(text)
    if not found:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    return datetime.datetime(year, month, day, hour, minute, second, _micros(found.group(7)))


def _timestamp(text):
    try:
        return _when(text) or text
    except ValueError:
        return text


def _timestamptz(text):
    when = _timestamp(text)
    return when if isinstance(when, str) else when.replace(tzinfo=datetime.timezone.utc)


def _date(text):
    when = _timestamp(text)
    return when if isinstance(when, str) else when.date()


def _time(text):
    found = CLOCK.match(text)
    if not found or int(found.group(2)) > 23:
        return text
    return datetime.time(int(found.group(2)), int(found.group(3)), int(found.group(4)), _micros(found.group(5)))


def _interval(text):
    found = SPAN.match(text)
    if not found:
        return text
    days, sign, hours, minutes, seconds, digits = found.groups()
    clock = datetime.timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0), microseconds=_micros(digits))
    try:
        return datetime.timedelta(days=int(days or 0)) + (-clock if sign else clock)
    except OverflowError:
        return text


def _blob(text):
    return re.sub(rb"\\x([0-9A-F]{2})", lambda found: bytes([int(found.group(1), 16)]), text.encode("ascii"))


PLAIN = {"FLOAT": float, "DOUBLE": float, "DECIMAL": decimal.Decimal, "BLOB": _blob, "UUID": uuid.UUID, "DATE": _date,
         "TIME": _time, "INTERVAL": _interval, "TIMESTAMPTZ": _timestamptz,
         **{name: _timestamp for name in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")}}


def _map_reader(key, value):
    def read(pairs):
        pairs = [(key(k), value(v)) for k, v in (pairs.items() if isinstance(pairs, dict) else pairs)]
        try:
            return dict(pairs)
        except TypeError:  # keys that are lists or structs
            return pairs
    return read


def _same(value):
    return value


def reader(kind):
    """The conversion from a JSON value to a Python value; _same if none is needed."""
    inner = [reader(member) for _, member in kind.members]
    if kind.name == "LIST":
        read = lambda values: [inner[0](value) for value in values]  # noqa: E731
    elif kind.name == "STRUCT":
        names = [name for name, _ in kind.members]
        read = lambda values: {name: member(values[name]) for name, member in zip(names, inner)}  # noqa: E731
    elif kind.name == "MAP":
        read = _map_reader(*inner)
    elif kind.name in PLAIN:
        read = PLAIN[kind.name]
    else:
        return _same
    return lambda value: None if value is None else read(value)


def read_rows(lines, kinds):
    """Rows of values, from lines that are JSON arrays."""
    readers = [(i, reader(kind)) for i, kind in enumerate(kinds) if reader(kind) is not _same]
    exact = {"parse_float": decimal.Decimal} if any(kind.is_any("DECIMAL") for kind in kinds) else {}
    for at in range(0, len(lines), _BLOCK):
        for row in json.loads("[%s]" % ",".join(lines[at:at + _BLOCK]), **exact):
            for i, read in readers:
                row[i] = read(row[i])
            yield row


# --- columns ---

def _as_text(value):
    return value if value is None or isinstance(value, str) else str(value)


def pandas_series(pandas, kind, values):
    """int64 stays exact beside NULL; types that pandas lacks stay objects."""
    null = any(value is None for value in values)
    if kind.name in INTEGERS:
        wanted = [INTEGERS[kind.name].replace("i", "I", 1).replace("u", "U", 1) if null else INTEGERS[kind.name]]
    elif kind.name in FLOATS:
        wanted = [FLOATS[kind.name]]
    elif kind.name == "BOOLEAN":
        wanted = ["boolean" if null else "bool"]
    elif kind.name == "TIMESTAMPTZ":
        wanted = ["datetime64[us, UTC]", "datetime64[ns, UTC]"]
    elif kind.name in TIMES:
        wanted = ["datetime64[us]", "datetime64[ns]"]
    elif kind.name == "INTERVAL":
        wanted = ["timedelta64[us]", "timedelta64[ns]"]
    else:
        wanted = []
    for dtype in wanted:
        try:
            return pandas.Series(values, dtype=dtype)
        except (TypeError, ValueError, OverflowError):
            pass  # a text for a value that has no equivalent there, or an older pandas
    return pandas.Series(values, dtype=object)


def arrow_type(arrow, kind):
    inner = [arrow_type(arrow, member) for _, member in kind.members]
    if kind.name in INTEGERS or kind.name in FLOATS:
        return getattr(arrow, {**INTEGERS, **FLOATS}[kind.name])()
    if kind.name in TIMES:
        return arrow.timestamp("us", "UTC" if kind.name == "TIMESTAMPTZ" else None)
    if kind.name == "DECIMAL":
        return arrow.decimal128(*kind.numbers)
    if kind.name in ("HUGEINT", "UHUGEINT"):
        return arrow.decimal256(39, 0)
    if kind.name == "LIST":
        return arrow.list_(inner[0])
    if kind.name == "STRUCT":
        return arrow.struct([(name, member) for (name, _), member in zip(kind.members, inner)])
    if kind.name == "MAP":
        return arrow.map_(*inner)
    plain = {"BOOLEAN": "bool_", "DATE": "date32", "BLOB": "binary"}
    if kind.name in plain:
        return getattr(arrow, plain[kind.name])()
    return {"TIME": arrow.time64("us"), "INTERVAL": arrow.duration("us")}.get(kind.name, arrow.string())


def _for_arrow(kind, value):
    """For pyarrow and polars: maps as pairs, unsupported types as text."""
    if value is None:
        return None
    if kind.name == "LIST":
        return [_for_arrow(kind.members[0][1], item) for item in value]
    if kind.name == "STRUCT":
        return {name: _for_arrow(member, value[name]) for name, member in kind.members}
    if kind.name == "MAP":
        pairs = value.items() if isinstance(value, dict) else value
        return [(_for_arrow(kind.members[0][1], k), _for_arrow(kind.members[1][1], v)) for k, v in pairs]
    if kind.name in ("HUGEINT", "UHUGEINT"):
        return decimal.Decimal(value)
    if kind.name == "UNION":
        return value if isinstance(value, str) else json.dumps(value, default=str)
    return str(value) if kind.name == "UUID" else value


def arrow_array(arrow, kind, values):
    try:
        return arrow.array([_for_arrow(kind, value) for value in values], arrow_type(arrow, kind))
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, TypeError, OverflowError):
        return arrow.array([_as_text(value) for value in values], arrow.string())


def polars_type(polars, kind):
    inner = [polars_type(polars, member) for _, member in kind.members]
    if kind.name in INTEGERS:
        return getattr(polars, INTEGERS[kind.name].replace("ui", "UI").replace("int", "Int"))
    if kind.name in FLOATS:
        return getattr(polars, FLOATS[kind.name].capitalize())
    if kind.name in TIMES:
        return polars.Datetime("us", "UTC" if kind.name == "TIMESTAMPTZ" else None)
    if kind.name == "DECIMAL":
        return polars.Decimal(*kind.numbers)
    if kind.name == "LIST":
        return polars.List(inner[0])
    if kind.name == "STRUCT":
        return polars.Struct([polars.Field(name, member) for (name, _), member in zip(kind.members, inner)])
    if kind.name == "MAP":
        return polars.List(polars.Struct([polars.Field("key", inner[0]), polars.Field("value", inner[1])]))
    if kind.name == "HUGEINT" and hasattr(polars, "Int128"):
        return polars.Int128
    plain = {"BOOLEAN": "Boolean", "DATE": "Date", "BLOB": "Binary", "TIME": "Time"}
    if kind.name in plain:
        return getattr(polars, plain[kind.name])
    return polars.Duration("us") if kind.name == "INTERVAL" else polars.Utf8


def _for_polars(kind, value):
    if value is None:
        return None
    if kind.name == "LIST":
        return [_for_polars(kind.members[0][1], item) for item in value]
    if kind.name == "STRUCT":
        return {name: _for_polars(member, value[name]) for name, member in kind.members}
    if kind.name == "MAP":
        pairs = value.items() if isinstance(value, dict) else value
        return [{"key": _for_polars(kind.members[0][1], k), "value": _for_polars(kind.members[1][1], v)} for k, v in pairs]
    if kind.name == "UNION":
        return value if isinstance(value, str) else json.dumps(value, default=str)
    return str(value) if kind.name in ("UUID", "UHUGEINT") else value


def polars_series(polars, kind, name, values):
    try:
        return polars.Series(name, [_for_polars(kind, value) for value in values], dtype=polars_type(polars, kind))
    except (TypeError, ValueError, OverflowError, polars.exceptions.PolarsError):
        return polars.Series(name, [_as_text(value) for value in values], dtype=polars.Utf8)
