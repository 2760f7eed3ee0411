"""A name stands for one thing, and says which: types of src/ and externs are defined once, and no extern, type or file
has a riddle for a name."""
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

from source import files, text
from test_unused import definitions

TYPE = re.compile(r"^(?:static )?(?:struct|enum|union) (\w+) \{", re.M)
# One of a folder of these is built, for the machine.
ALTERNATIVES = "src/inject/arch/"
# Participles and pictures in place of what a thing is.
RIDDLES = {"told", "said", "kept", "heard", "errand", "apart", "knock", "deal"}
PROGRAMS = {"main"}


def types(sources):
    found = defaultdict(list)
    for path, content in sources:
        if not str(path).startswith(ALTERNATIVES):
            for name in TYPE.findall(content):
                found[name].append(str(path))
    return found


def of_src():
    return [(path, text(path)) for path in files("src/*.c", "src/*.h")]


def riddles(names):
    return {name for name in names if set(re.split(r"[_.]", name)) & RIDDLES}


def test_a_type_is_defined_once():
    found = types(of_src())
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_type_of_two_files_is_noticed():
    found = types([(Path("src/a.c"), "struct walk {\n"), (Path("src/b.c"), "enum walk {\n")])
    assert found == {"walk": ["src/a.c", "src/b.c"]}


def test_an_extern_is_one_function():
    places = defaultdict(set)
    for name, path in definitions():
        places[name].add(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in PROGRAMS} == {}


def test_no_name_is_a_riddle():
    externs = {name for name, _ in definitions()}
    named = externs | set(types(of_src())) | {path.name for path in files("src/*.c", "src/*.h")}
    assert riddles(named) == set()
    assert riddles({"pb_said_ask", "kept.c", "pb_skipped", "deal"}) == {"pb_said_ask", "kept.c", "deal"}


# Of these a local or a field cannot be one either.
RIDDLES_ANYWHERE = {"told", "said", "heard", "errand", "knock"}
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.S)


def code_of(path):
    """Without comments and texts."""
    if path.suffix != ".py":
        return NO_CODE.sub(" ", text(path))
    tokens = tokenize.generate_tokens(io.StringIO(text(path)).readline)
    return " ".join(token.string for token in tokens if token.type == tokenize.NAME)


def words_of(code):
    return {word for name in re.findall(r"\w+", code) for word in name.lower().split("_")}


def test_no_local_is_a_riddle():
    code = {path: words_of(code_of(path)) for path in files("src/*.c", "src/*.h", "python/*.py")}
    assert len(code) > 500
    assert {str(path): words & RIDDLES_ANYWHERE for path, words in code.items() if words & RIDDLES_ANYWHERE} == {}
    assert words_of("find_TOLD(w->said_at)") & RIDDLES_ANYWHERE == {"told", "said"}


def doubled_headers(paths):
    found = defaultdict(list)
    for path in paths:
        found[path.name].append(str(path))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_header_s_name_says_which_it_is():
    assert doubled_headers(files("src/*.h")) == {}
    assert doubled_headers([Path("src/a/x.h"), Path("src/b/x.h"), Path("src/b/y.h")]) == {
        "x.h": ["src/a/x.h", "src/b/x.h"]}
