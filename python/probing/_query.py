"""probing.query: the tables of this process, or of another, as rows.

It runs the program `probing`, which reads the process from outside, so that a process that queries itself does not deadlock: the GIL is free
meanwhile. Standard library only; 3.6 and newer.
"""
import html
import json
import os
import select
import subprocess
import tempfile

from . import _types
from ._agent import find_tool

_SHOWN = 100  # rows of a table in a notebook
_TURN_MS = 200


class Error(Exception):
    """The error message of the program."""


class Rows(list):
    """The rows of a result, each a dictionary by column.

    `columns` has their names in order (a name that comes twice gets a number), `types` their types as SQL spells them, `notes` what
    the program had to say besides."""

    def __init__(self, columns, rows, types=(), notes=()):
        super().__init__(dict(zip(columns, row)) for row in rows)
        self.columns, self.types, self.notes = list(columns), list(types), list(notes)

    def _by_column(self):
        for name, kind in zip(self.columns, self.types):
            yield name, _types.parse(kind), [row[name] for row in self]

    def to_pandas(self):
        """A DataFrame. Integers beside NULL are of pandas' own nullable types: they stay exact."""
        import pandas
        return pandas.DataFrame({name: _types.pandas_series(pandas, kind, values) for name, kind, values in self._by_column()},
                                columns=self.columns)

    def to_polars(self):
        import polars
        return polars.DataFrame([_types.polars_series(polars, kind, name, values) for name, kind, values in self._by_column()])

    def to_arrow(self):
        """A Table; 128-bit integers are decimals."""
        import pyarrow
        return pyarrow.table({name: _types.arrow_array(pyarrow, kind, values) for name, kind, values in self._by_column()})

    def _repr_html_(self):
        """What a notebook shows: the first rows."""
        def cell(value):
            return "<i>NULL</i>" if value is None else html.escape(str(value))

        head = "".join("<th>%s</th>" % html.escape(name) for name in self.columns)
        body = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % cell(row[name]) for name in self.columns) for row in self[:_SHOWN])
        more = "<p>%d of %d rows</p>" % (_SHOWN, len(self)) if len(self) > _SHOWN else ""
        return "<table><thead><tr>%s</tr></thead><tbody>%s</tbody></table>%s" % (head, body, more)


def _program():
    path = find_tool()
    if not path:
        raise Error("the program `probing` is not on this machine's PATH (install the package, or set PROBING_PROGRAM)")
    return path


def _scratch():
    """An unnamed file, in memory if possible. Not a pipe: if another thread forks just now, its child holds the other end, and waiting for the
    pipe's end would wait for that child."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("probing-query"), "w+b")
    return tempfile.TemporaryFile()


def _wait(process):
    """Waits for its exit status. Without the GIL; and in short turns, since a signal may be delivered to another thread, of some library, and
    then wakes nobody here, while a KeyboardInterrupt is raised between two turns only."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # before 3.9, an old kernel, or it is gone
        return process.wait()
    try:
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        while not ended.poll(_TURN_MS):
            pass
    finally:
        os.close(fd)
    return process.wait()


def _run(words, text):
    """Runs a program with a text as input: exit status, output (a file) and errors. Any interrupt ends it."""
    out = _scratch()
    with _scratch() as given, _scratch() as errors:
        given.write(text)
        given.seek(0)
        # Without close_fds it is spawned, not forked; Python's own descriptors are closed at exec all the same.
        process = subprocess.Popen(words, stdin=given, stdout=out, stderr=errors, close_fds=False)
        try:
            status = _wait(process)
        except BaseException:
            process.kill()
            process.wait()
            out.close()
            raise
        errors.seek(0)
        out.seek(0)
        return status, out, errors.read().decode(errors="replace")


def _unique(names):
    """SELECT 1 AS a, 2 AS a: a, a_1."""
    seen = []
    for name in names:
        given, n = name, 0
        while name in seen:
            n += 1
            name = "%s_%d" % (given, n)
        seen.append(name)
    return seen


def _results(lines):
    """Each result of several statements: a line with its columns, then one for each row."""
    columns, rows = [], []
    for line in lines:
        if line.startswith(b"{"):
            columns, rows = json.loads(line.decode())["columns"], []
        else:
            rows.append(line.decode())
    return columns, rows


def query(sql, target=None, timeout=30):
    """Runs SQL over the tables of a process, of this one unless a target (a pid, or part of a command line) is given.

    Gives Rows, of the last statement where there are several; raises Error with the program's words. Values are exact: int, float, str,
    bytes, bool, Decimal, datetime (UTC), date, time, timedelta, UUID, list, dict, None. timeout: seconds that it may take; None: no end.
    Under Yama's default (Ubuntu) a child may not read its parent: a process that asks about itself is read through its agent, once it is
    probed. We do not name a tracer (PR_SET_PTRACER) ourselves: a process has one, which may be its crash reporter."""
    words = [_program(), "-t", str(os.getpid() if target is None else target), "query", "--format", "jsonl", "--columns",
             "--timeout", "%gs" % (timeout or 0), "-"]
    status, out, errors = _run(words, sql.encode())
    with out:
        # If SIGCHLD is ignored the status is lost and Popen returns 0: then the error message tells.
        if status != 0 or errors.startswith("probing: "):
            raise Error(errors.strip().replace("probing: query: ", "", 1) or "the program ended with status %d" % status)
        columns, rows = _results(out)
    types = [column["type"] for column in columns]
    notes = [line[len("note: "):] for line in errors.splitlines() if line.startswith("note: ")]
    return Rows(_unique(column["name"] for column in columns), _types.read_rows(rows, [_types.parse(kind) for kind in types]), types, notes)
