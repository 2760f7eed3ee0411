"""The table "What stands once" of docs/contributing.md says what is true: each count is taken here again."""
import re
from collections import Counter
from pathlib import Path

import pytest
from source import files, text
from test_binaries import EXPORTS
from test_layers import FRAMINGS
from test_names import definitions, doubled_headers, of_src, riddles, types
from test_once import ONCE, places
from test_sentences import sentences
from test_unused import LOOKS, OURS_FOR_LIBRARIES, PARTS, symbols, unused

PAGE = Path("docs/contributing.md")
PARSED_RANK = re.compile(r'(?:sscanf|strncmp|strstr|memcmp|strtol)\([^;"]*"rank[ "]')
# What a command does is in the table of commands, not decided by its name.
NAMED = re.compile(r"strcmp\([^;]*command->name")


def sources(pattern="src/*.[ch]"):
    return [(path, text(path)) for path in files(pattern)]


def once(name):
    """As the page writes it: the one place, and others that look alike."""
    _, place, others = ONCE[name]
    return " + ".join(str(n) for n in (1 if place else 0, len(places(ONCE[name][0]) - {place})) if n)


def names():
    return {name for name, _ in definitions()} | set(types(of_src())) | {path.name for path, _ in of_src()}


def largest_folder(paths):
    return max(Counter(path.parent for path in paths).values())


def layouts(paths):
    return [path for path in paths if re.match(r"(?:struct_offsets|layouts?)[_.]", path.name)]


COUNTS = {
    "loops of a hash": lambda: once("hash"),
    "`/proc/self/exe`": lambda: once("program"),
    "cleaning of control characters": lambda: once("controls"),
    "`/dev/null` over a stream": lambda: once("null"),
    "`fork`, `clone`, `posix_spawn`": lambda: once("process"),
    "arrays that grow by hand": lambda: once("vector"),
    "JSON written by hand": lambda: once("json"),
    "numbers of system calls for old headers": lambda: once("system calls"),
    "ways to cut bytes between processes into messages": lambda: len(FRAMINGS),
    "decisions by the wording of a message of ours": lambda: sum(len(sentences(code)) for _, code in sources()),
    "externs that no other file uses": lambda: len(unused(*symbols()) - EXPORTS - PARTS - LOOKS - OURS_FOR_LIBRARIES),
    "types with one name in two files": lambda: sum(len(paths) > 1 for paths in types(of_src()).values()),
    "riddles as names (told, said, kept, apart ..)": lambda: len(riddles(names())),
    "headers of two rooms with one name": lambda: len(doubled_headers(files("src/*.h"))),
    "files with layouts of CPython": lambda: len(layouts(files("src/remote/*"))),
    "files in the largest folder": lambda: largest_folder(files("src/*.c", "src/*.h")),
    'texts "rank N" that are parsed': lambda: sum(len(PARSED_RANK.findall(code)) for _, code in sources()),
    "decisions by the name of a command": lambda: sum(len(NAMED.findall(code)) for _, code in sources()),
}


def rows():
    """{what: (its count now, what holds it)}."""
    table = text(PAGE).partition("## What stands once")[2].partition("\n\n| lines of C")[0]
    cells = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \| ([^|]*) \|$", table, re.M)
    return {what: (now, test) for what, now, test in cells if what != "what"}


def test_every_row_is_counted():
    assert set(rows()) - {"changes of room in `-t cluster backtrace --merge`"} == set(COUNTS)


@pytest.mark.parametrize("what", COUNTS)
def test_the_page_has_the_count(what):
    now = rows()[what][0]
    found = COUNTS[what]()
    # A bound for what grows with each feature.
    assert now == str(found) or now.startswith("at most ") and found <= int(now[8:])


def test_what_is_counted_is_noticed():
    assert PARSED_RANK.search('sscanf(label, "rank %d", &rank)') and not PARSED_RANK.search('printf("rank %d", rank)')
    assert NAMED.search('strcmp(call->command->name, "top") == 0') and not NAMED.search("command->name = name")
    assert len(layouts([Path("x/layout_3_12.h"), Path("x/layouts.inc"), Path("x/value.h")])) == 2
    assert largest_folder([Path("a/x.c"), Path("a/y.c"), Path("b/x.c")]) == 2
