"""Lines of tests have 120 columns at most, but for the text of programs and queries that a test carries."""
import io
import tokenize

import pytest
from source import files, text

LIMIT = 120


def long_lines(source):
    """Numbers of lines that are too long, outside of strings of several lines."""
    carried = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if "STRING" in tokenize.tok_name[token.type] and token.start[0] < token.end[0]:
            carried.update(range(token.start[0], token.end[0] + 1))
    return [number for number, line in enumerate(source.splitlines(), 1) if len(line) > LIMIT and number not in carried]


@pytest.mark.parametrize("path", files("tests/**/*.py", "tests/*.py"), ids=str)
def test_lines_of_python_tests_end_at_120_columns(path):
    assert long_lines(text(path)) == []


@pytest.mark.parametrize("path", files("tests/unit/*.[ch]", "tests/fuzz/*.c", "tests/harm/*.c"), ids=str)
def test_lines_of_tests_in_c_end_at_120_columns(path):
    assert [number for number, line in enumerate(text(path).splitlines(), 1) if len(line) > LIMIT] == []


def test_a_long_line_is_found():
    assert long_lines("x = 1\ny = " + "1 + " * 30 + "1\nz = \"\"\"\n" + "a" * 130 + "\n\"\"\"\n") == [2]
