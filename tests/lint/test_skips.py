"""tests/skips.txt: a skip that it does not allow fails the run, and each of its lines can still match a test."""
import re
import subprocess
import sys

import pytest
from source import TOP, text

sys.path.insert(0, str(TOP / "scripts"))
import test as runner  # noqa: E402

LINES = [line for line in text("tests/skips.txt").splitlines() if line and not line.startswith("#")]
TESTS = """
import os, pytest
def test_first_fails(tmp_path_factory):
    done = os.path.join(os.path.dirname(__file__), "done")
    tried = os.path.exists(done)
    open(done, "w").close()
    assert tried
@pytest.mark.parametrize("way", ["a b"])
def test_skips(way):
    pytest.skip("no moon tonight")
def test_passes():
    pass
"""


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """What the runner reads of a run with a skip and a second try."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tests/sky").mkdir(parents=True)
    (folder / "tests/sky/test_moon.py").write_text(TESTS)
    (folder / "tests/sky/test_none.py").write_text("import pytest\npytest.importorskip('no_module_of_this_name')\n")
    command = [sys.executable, "-m", "pytest", "-q", "tests/sky", "--junitxml=report.xml", "--reruns=1"]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return runner.read_reports([folder / "report.xml"])


def test_the_runner_names_skips_and_second_tries(count):
    assert (count.passed, count.failed, count.skipped) == (2, 0, 2)
    assert count.retried == ["sky/test_moon::test_first_fails"]
    assert ("sky/test_moon::test_skips[a b]", "no moon tonight") in count.skips
    assert [name for name, message in count.skips if "no_module_of_this_name" in message] == ["sky/test_none::*"]


def test_a_skip_fails_the_run_unless_a_line_allows_it(count):
    assert len(runner.refuse_unlisted(count.skips, "")) == 2
    allowed = "# always | *: * | a comment\nalways | sky/test_moon::*: no moon * | it is new\n"
    assert [name for name, _ in runner.refuse_unlisted(count.skips, allowed)] == ["sky/test_none::*"]
    elsewhere = "emulated | *: * | not on this machine\n"
    assert len(runner.refuse_unlisted(count.skips, elsewhere)) == 2


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(" | ")[1])
def test_a_line_has_a_condition_a_test_and_a_reason(line):
    when, pattern, why = line.split(" | ")
    assert f"#   {when}" in text("tests/skips.txt")
    assert runner.allowed_skips(f"always | {pattern} | {why}")
    assert why.strip()
    name, separator, _ = pattern.partition(": ")
    assert separator
    file, _, test = name.partition("::")
    if "/" in file and not file.endswith("*"):
        suite, _, stem = file.rpartition("/")
        source = next(path for path in (TOP / f"tests/integration/{stem}.py", TOP / f"tests/unit/{stem}.c")
                      if path.exists())
        assert re.sub(r"[*[].*", "", test) in source.read_text()
