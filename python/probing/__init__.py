"""Probing from Python: what is known of this process, or of another, as tables.

    import probing
    rows = probing.query("SELECT func, lineno FROM python.backtrace")           # of this process
    rows = probing.query("SELECT * FROM memory_usage", target=4711)             # of another one
    rows[0]["func"]; rows.to_pandas(); rows.to_polars(); rows.to_arrow()

The program `probing` is run for it and reads the process from outside, so that asking about oneself never waits for
oneself: the GIL is free meanwhile. Standard library only; 3.6 and newer.
"""
import json
import os
import shutil
import subprocess
import sys

__all__ = ["query", "Rows", "Error"]


class Error(Exception):
    """What the program said when it could not answer."""


class Rows(list):
    """The rows of a result, each a dictionary by column; `columns` has their names in order."""

    def __init__(self, columns, rows):
        super().__init__(rows)
        self.columns = columns

    def _by_column(self):
        return {name: [row[name] for row in self] for name in self.columns}

    def to_pandas(self):
        import pandas
        return pandas.DataFrame(self._by_column(), columns=self.columns)

    def to_polars(self):
        import polars
        return polars.DataFrame(self._by_column())

    def to_arrow(self):
        import pyarrow
        return pyarrow.table(self._by_column())

    def _repr_html_(self):
        """What a notebook shows."""
        def cell(value):
            text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value)
            return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

        head = "".join(f"<th>{cell(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{cell(row[name])}</td>" for name in self.columns) + "</tr>" for row in self)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _program():
    """The program of this installation: what PROBING_PROGRAM names, the environment's, the build's, the PATH's."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("PROBING_PROGRAM"), os.path.join(sys.prefix, "bin", "probing"),
                 os.path.join(here, "..", "..", "build", "release", "bin", "probing"), shutil.which("probing")):
        if path and os.access(path, os.X_OK):
            return path
    raise Error("the program `probing` is not on this machine's PATH (install the package, or set PROBING_PROGRAM)")


def query(sql, target=None, timeout=30):
    """Runs SQL over the tables of a process, of this one unless a target (a pid, or part of a command line) is given.

    Gives Rows; raises Error with the program's words. timeout: seconds that the query may take."""
    words = [_program(), "-t", str(os.getpid() if target is None else target), "query", "--format", "jsonl", "--columns",
             "--timeout", f"{timeout}s", "-"]
    # SIGINT goes to the whole group: both end. Reading the pipes releases the GIL.
    done = subprocess.run(words, input=sql.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Error(said.replace("probing: query: ", "", 1))
    columns, *rows = [json.loads(line) for line in done.stdout.decode().splitlines()] or [[]]
    return Rows(columns, rows)
