"""The build itself, of a copy of the sources: what it must make wherever it lies, and what it must refuse."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
AGENT = "lib/probing/libprobing-musl.so"


@pytest.fixture
def tree(tmp_path):
    return copy_sources(tmp_path)


@pytest.fixture(scope="module")
def tree_of_agent(tmp_path_factory):
    """For the tests that build the agent: the second compiles what it changed."""
    return copy_sources(tmp_path_factory.mktemp("agent"))


def copy_sources(where):
    """Sources in a folder whose name has the names of files in it that the agent does without, a space, and a letter
    outside ASCII."""
    top = where / "reader-view-utf8" / "a b" / "ü-src-of-it"
    top.mkdir(parents=True)
    for name in ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "VERSION"):
        shutil.copy(TOP / name, top / name)
    for name in ("cmake", "src", "include", "python", "scripts"):
        shutil.copytree(TOP / name, top / name)
    (top / "build").mkdir()
    os.symlink(TOP / "build/venv", top / "build/venv")
    return top


# Of the tests that looked for a word which a folder may have, or gave a path to a shell.
NAMED = ["test_catch.py::test_a_prompt_of_the_programs_own_is_not_held",
         "test_backtrace.py::test_repeating_shows_what_changed",
         "test_query_output.py::test_arrow_holds_one_result_and_is_nothing_for_a_terminal",
         "test_cli.py::test_a_narrow_screen_shows_times_and_numbers_whole_or_not_at_all"]


def test_a_clone_may_have_any_name(tmp_path):
    top = tmp_path / "new" / "ü" / "a b" / "probing"
    shutil.copytree(TOP, top, ignore=shutil.ignore_patterns("build", "dist", "node_modules", ".git", "__pycache__"))
    for name in ("build", "web/node_modules"):
        (top / name).symlink_to(TOP / name)
    python = top / "build/venv/bin/python"
    run = dict(cwd=top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert "make test" in subprocess.run(["make", "help"], **run).stdout
    assert subprocess.run([top / "scripts/setup.sh", "build"], **run).stdout == ""
    done = subprocess.run([python, "-m", "pytest", "-q", *(f"tests/integration/{name}" for name in NAMED)], **run)
    assert done.returncode == 0 and f"{len(NAMED)} passed" in done.stdout, done.stdout


def build_agent(top):
    """The output of building the agent alone, and whether that went well."""
    run = dict(cwd=top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    done = subprocess.run(["cmake", "--preset", "release"], **run)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(["ninja", "-C", "build/release", "agent-musl"], **run)
    return done.stdout, done.returncode == 0


def test_the_agent_has_its_tables_whatever_the_folder_is_called(tree_of_agent):
    output, good = build_agent(tree_of_agent)
    assert good, output
    assert b"pb_agent_start" in (tree_of_agent / "build/release" / AGENT).read_bytes()
    symbols = subprocess.run(["nm", tree_of_agent / "build/release" / AGENT], stdout=subprocess.PIPE,
                             universal_newlines=True).stdout
    assert "pb_arena_create" in symbols and " U pb_" not in symbols
    # And the same bytes: a release can be built again by somebody else.
    subprocess.run([TOP / "scripts/build.sh", "release", "agent-musl"], check=True)
    assert without_id(tree_of_agent / "build/release" / AGENT) == without_id(TOP / "build/release" / AGENT)


def without_id(library):
    """Its build id is that of the file with its debug lines, which name the folder of the compiler."""
    notes = subprocess.run(["readelf", "-n", library], stdout=subprocess.PIPE, universal_newlines=True).stdout
    found = bytes.fromhex(re.search(r"Build ID: ([0-9a-f]{40})", notes)[1])
    content = library.read_bytes()
    assert content.count(found) == 1
    return content.replace(found, b"")


def test_an_agent_that_lacks_a_function_is_not_built(tree_of_agent):
    (tree_of_agent / "src/table/arena.c").unlink()
    output, good = build_agent(tree_of_agent)
    assert not good and "undefined symbol: pb_arena_create" in output


def targets_of(top):
    """What can be built there, after ninja has looked whether it must configure again."""
    run = dict(cwd=top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    done = subprocess.run(["ninja", "-C", "build/release", "build.ninja"], **run)
    assert done.returncode == 0, done.stdout
    return subprocess.run(["ninja", "-C", "build/release", "-t", "targets", "all"], **run).stdout


def test_a_folder_configured_before_setup_has_tests_and_sql_afterwards(tree):
    """`make`, or `make demo`, and then `make test`, which installs what the first had no need of."""
    shutil.copytree(TOP / "tests/unit", tree / "tests/unit")
    nothing = tree / "nothing"
    nothing.mkdir()
    done = subprocess.run(["cmake", "--preset", "release", f"-DCMAKE_FIND_ROOT_PATH={nothing}",
                           "-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY"],
                          cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0 and "no DuckDB" in done.stdout, done.stdout
    targets = targets_of(tree)
    assert "bin/probing:" in targets and "bin/probing-sql:" not in targets
    os.symlink(TOP / "build/duckdb", tree / "build/duckdb")
    targets = targets_of(tree)
    assert "unit/unit-maps:" in targets and "bin/probing-sql:" in targets
