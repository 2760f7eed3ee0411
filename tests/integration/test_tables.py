"""The tables that the documents name: each is in the catalog with its columns, and is empty before its first row."""
import json
import re
from pathlib import Path

import jobs
import pytest
from jobs import probe, rows

DOCS = Path(__file__).resolve().parents[2] / "docs"
TYPES = ("SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns ORDER BY "
         "ordinal_position")
# Tables of the examples themselves, and of DuckDB.
OF_EXAMPLES = {"python.steps", "python.loss", "python.x"}


def documented():
    """{table: (is a view, [(column, type)])} of docs/tables.md."""
    tables = {}
    for part in re.split(r"^## ", (DOCS / "tables.md").read_text(), flags=re.M)[1:]:
        name, kind = re.match(r"(\S+)\n\w+( view)?:", part).groups()
        tables[name] = bool(kind), re.findall(r"^\| `(\w+)` \| (\w+) \|", part, re.M)
    return tables


def catalog():
    done = probe("query", "--format", "json", TYPES)
    assert done.returncode == 0, done.stderr
    tables = {}
    for row in json.loads(done.stdout):
        name = row["table_name"] if row["table_schema"] == "main" else "%s.%s" % (row["table_schema"], row[
            "table_name"])
        tables.setdefault(name, []).append((row["column_name"], row["data_type"]))
    return tables


def test_each_documented_table_is_in_the_catalog():
    pages, here = documented(), catalog()
    assert len(pages) > 45 and len(pages["memory_usage"][1]) == 11
    assert set(pages) == set(here)
    for name, (is_view, columns) in pages.items():
        if is_view:  # with columns made from others
            assert {column for column, _ in columns} <= {column for column, _ in here[name]}, name
        else:
            assert columns == [(column, "VARCHAR" if kind.startswith("ENUM") else kind)
                               for column, kind in here[name]], name


@pytest.mark.parametrize("name", ["python.hangs", "python.sampling", "python.break_hits", "python.profile_hotspot",
                                  "probing.registered", "python.samples", "collective_ops"])
def test_a_table_without_a_row_is_empty_with_its_columns(name):
    with jobs.python() as target:
        done = probe(target.pid, "query", "--format", "csv", "SELECT * FROM %s" % name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [",".join(column for column, _ in documented()[name][1])]
        assert "is empty" in done.stderr


def test_the_agent_writes_the_columns_that_the_page_has():
    """Of what an agent records by itself; each other writer is made from the same definition."""
    with jobs.python() as target:
        assert probe(target.pid, "inject").returncode == 0
        jobs.wait_until(lambda: rows(target.pid, "SELECT * FROM memory_usage"), what="a row")
        found = rows(target.pid, "SELECT \"column\" AS c FROM probing.columns WHERE \"table\" = 'memory_usage'")
        assert [row["c"] for row in found] == [column for column, _ in documented()["memory_usage"][1]]


def test_examples_query_tables_that_exist():
    """Names after FROM and JOIN with one of our schemas."""
    known = set(documented()) | OF_EXAMPLES
    unknown = []
    for page in sorted(DOCS.glob("*.md")):
        for name in re.findall(r"\b(?:FROM|JOIN) ((?:python|system|probing)\.\w+)", page.read_text()):
            if name not in known:
                unknown.append("%s: %s" % (page.name, name))
    assert not unknown
