"""No behaviour is decided by the wording of a message of ours: a better sentence must not break a feature. What
programs that are not ours print is listed, with whose it is."""
import re

import pytest
from source import files, text

CALL = re.compile(r"\b(?:strstr|strcasestr|strncmp|strcmp|strncasecmp|strcasecmp|memmem|memcmp|sscanf)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
SENTENCE = re.compile(r"[A-Za-z']{2,} [A-Za-z']{2,}|^probing: |\\\"(?:message|error)\\\"")
THEIRS = {
    "OCI runtime exec failed": "container runtimes",
    "(anonymous namespace)": "names of C++",
    "must appear in the GROUP BY clause": "DuckDB",
    "does not exist": "DuckDB",
    " does not exist": "DuckDB",
    "Out of Memory": "DuckDB",
    "Invalid Error": "DuckDB",
    "could not allocate": "DuckDB",
    "Only SELECT statements": "DuckDB",
    "No space left": "the C library, by way of DuckDB",
}


def arguments(content, start):
    """The text between the parentheses of a call."""
    depth, at = 1, start
    while depth and at < len(content):
        literal = LITERAL.match(content, at)
        at = literal.end() if literal else at + 1
        depth += {"(": 1, ")": -1}.get("" if literal else content[at - 1], 0)
    return content[start:at]


def sentences(content):
    return [literal for call in CALL.finditer(content) for literal in LITERAL.findall(arguments(content, call.end()))
            if SENTENCE.search(literal) and literal not in THEIRS]


def test_no_decision_by_a_sentence():
    sources = files("src/*.c", "src/*.h")
    assert len(sources) > 100
    wrong = [f"{path}: {found}" for path in sources if (found := sentences(text(path)))]
    assert not wrong, "use a code, a status or a field:\n" + "\n".join(wrong)


@pytest.mark.parametrize("line, found", [
    ('if (strstr(errors, "there are no breakpoints"))', ["there are no breakpoints"]),
    ('strncmp(text, "probing: ", 9) == 0', ["probing: "]),
    ('strstr(answer, "\\"message\\":\\"")', ['\\"message\\":\\"']), ('strcmp(f(")", x), "it goes on")', ["it goes on"]),
    ('strcmp(name, "stop") == 0 ? "it goes on" : 0', []), ('strstr(said, "OCI runtime exec failed")', [])])
def test_a_sentence_in_a_comparison_is_noticed(line, found):
    assert sentences(line) == found
