"""docs/tables.md is what src/control/tables.def gives, and no table is described in a second place."""
import re
import subprocess

from source import TOP, files, text


def test_the_page_is_current():
    done = subprocess.run(["python3", TOP / "scripts/tables.py", "--check"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout


def repeated(names, sources):
    """The files that spell the name of a table of tables.def where a struct pb_table_spec gets its name."""
    return [f"{path}: {name}" for path, content in sources
            for name in re.findall(r'\.name = "([\w.]+)",\s*\.comment', content) if name in names]


def test_tables_are_described_once():
    names = set(re.findall(r'^    T\("([\w.]+)"', text("src/control/tables.def"), re.M))
    assert len(names) > 45
    assert not repeated(names, ((path, text(path)) for path in files("src/*.c", "src/*.h")))
    assert repeated(names, [("a.c", 'spec = {.name = "python.hangs", .comment = ""')]) == ["a.c: python.hangs"]
