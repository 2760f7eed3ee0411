"""Writes docs/tables.md from src/control/tables.def and src/engine/shared/types.def: scripts/tables.py [--check]

--check writes nothing and fails where the file is not what would be written.
"""
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGE = TOP / "docs/tables.md"
STRING = r'"(?:[^"\\]|\\.)*"'
HEAD = """# Tables

Every table that probing fills, with its columns. `make tables` writes this page from `src/control/tables.def`; do not
edit it. [sql.md](sql.md) says how to query tables. `SELECT * FROM probing.columns` shows the same for one process, with
the tables of its program.

A *live* table is read when a query names it. A *recorded* table has the rows that the process or a recorder wrote;
before the first one it is empty, with these columns. A *view* has more columns, computed from others: `DESCRIBE` lists
them.
"""


def joined(text):
    """The text of adjacent C strings."""
    return "".join(part[1:-1].replace('\\"', '"') for part in re.findall(STRING, text))


def read_types():
    """The SQL name of each type of a column."""
    text = (TOP / "src/engine/shared/types.def").read_text()
    return dict(re.findall(r'^PB_STORED_TYPE\((\w+), (?:\w+, ){3}"(\w+)"', text, re.M))


def read_tables():
    """(name, kind, comment, filled by or "", columns), in the order of the catalog; a column is (name, type, unit, comment)."""
    text = (TOP / "src/control/tables.def").read_text().replace("\\\n", "\n")
    commands = {name: joined(value) for name, value in re.findall(r"^#define (PB_BY_\w+) +(.*)", text, re.M)}
    bodies = {name: body for name, body in re.findall(r"^#define PB_TABLE_(\w+)\(T, C\)\s*\n((?: .*\n?)+)", text, re.M)}
    types = read_types()

    def columns(body):
        found = []
        for line in body.splitlines():
            other = re.match(r" +PB_TABLE_(\w+)\(PB_NOTHING, C\)", line)
            if other:
                found += columns(bodies[other.group(1)])
            row = re.match(r" +C\(\w+, (%s), (\w+), \w+, (NULL|%s), (NULL|%s)\)" % (STRING, STRING, STRING), line)
            if row:
                found.append((joined(row.group(1)), types[row.group(2)], joined(row.group(3)), joined(row.group(4))))
        return found

    listed = text[text.index("#define PB_TABLES(X)"):]
    for kind, table, by in re.findall(r"^ +X\((\w+), (\w+), (.*)\) *$", listed, re.M):
        name, comment = re.search(r"T\((%s),\s*(%s)\)" % (STRING, STRING), bodies[table]).groups()
        by = re.sub(r"PB_BY_\w+", lambda found: '"%s"' % commands[found.group()], by)
        yield joined(name), kind, joined(comment), joined(by), columns(bodies[table])


def views():
    text = (TOP / "src/engine/worker/derived.c").read_text()
    return {name if schema == "main" else "%s.%s" % (schema, name) for schema, name in re.findall(r'^    \{"(\w+)", "(\w+)", [A-Z_]+, ', text, re.M)}


def cell(text):
    return text.replace("|", "\\|")


def make_page():
    with_more, lines = views(), [HEAD]
    for name, kind, comment, by, columns in sorted(read_tables()):
        lines.append("## %s\n%s%s: %s.%s\n" % (name, {"ASKED": "Live"}.get(kind, kind.capitalize()), " view" if name in with_more else "", comment,
                                              "\nTo fill it: %s." % by if by else ""))
        lines.append("| column | type | unit | |\n|---|---|---|---|")
        lines += ["| `%s` | %s | %s | %s |" % (each, type_name, unit, cell(about)) for each, type_name, unit, about in columns]
        lines.append("")
    return "\n".join(lines)


def main(check):
    page = make_page()
    if not check:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit("docs/tables.md is not what src/control/tables.def gives: run make tables")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
