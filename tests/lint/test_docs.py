"""The pages that people read: short lines, paragraphs and sentences, commands that exist, and a place in the site."""
import re
import shlex
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from source import TOP, files, text

PROGRAM = TOP / "build/release/bin/probing"
LINE, PARAGRAPH, SENTENCE, ROW = 120, 6, 35, 240  # characters, lines, words, characters

PAGES = [path for path in files("*.md") if path != Path("CHANGELOG.md")]


def without_code(content):
    """(number, line) of the lines outside of code; those of a code block are empty."""
    fence = False
    indented = True  # four blanks are code at the beginning of a paragraph only
    for number, line in enumerate(content.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
            yield number, ""
        elif fence or (indented and line.startswith("    ")):
            yield number, ""
        else:
            yield number, line
            indented = not line.strip()


def blocks(content):
    """(number, lines) of each paragraph, each item of a list and each row of a table."""
    begun, lines = 0, []
    for number, line in without_code(content):
        starts = re.match(r"\s*([-*]|\d+\.) |\||#|!\[|<", line)
        if lines and (starts or not line.strip()):
            yield begun, lines
            lines = []
        if line.strip():
            begun = number if not lines else begun
            lines.append(line)
    if lines:
        yield begun, lines


def sentences(lines):
    """Those of a block. Code is one word, a link is its text, and each cell of a table has sentences of its own."""
    prose = " ".join(line.strip() for line in lines)
    prose = re.sub(r"`[^`]*`", "CODE", prose)
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    for cell in prose.split("|") if prose.startswith("|") else [prose]:
        yield from re.split(r"(?<=[.!?])[\"')*]*\s+(?=[^a-z\s])", cell)


def complaints(content):
    for number, lines in blocks(content):
        row = lines[0].startswith("|")
        for offset, line in enumerate(lines):
            if len(line) > (ROW if row else LINE) and not line.startswith("!["):
                yield f"{number + offset}: a line of {len(line)} characters"
        if len(lines) > PARAGRAPH:
            yield f"{number}: a paragraph of {len(lines)} lines"
        for sentence in sentences(lines):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > SENTENCE:
                yield f"{number}: a sentence of {len(words)} words: {' '.join(words[:6])}..."


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_can_be_read_at_speed(path):
    found = list(complaints(text(path)))
    assert not found, "\n".join(f"{path}:{each}" for each in found)


@pytest.mark.parametrize("content", ["x" * 121, "a\n" * 7, "word " * 36, "| a | " + "word " * 36 + "|",
                                     "- " + "word " * 36])
def test_what_is_too_long_is_noticed(content):
    assert len(list(complaints(content))) >= 1


@pytest.mark.parametrize("content", ["```\n" + "x" * 300 + "\n```", "- a\n" * 9,
                                     "word " * 20 + ".\nNext " + "word " * 10,
                                     "| " + "word " * 30 + "| " + "word " * 8 + "|"])
def test_what_is_short_enough_is_left_alone(content):
    assert not list(complaints("\n".join(content.splitlines())[:2000]))


def commands(content):
    """(number, words) of each command line of ours in code blocks and in code within a text."""
    fence = False
    for number, line in enumerate(content.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif fence or line.startswith("    "):
            for part in re.split(r"(?:^|[|;&(]|\$\() ?(?=prob(?:ing|e) (?! ))", line.strip().removeprefix("$ ")):
                if re.match(r"prob(ing|e) (?! )", part):
                    yield number, words_of(part)
        else:
            for part in re.findall(r"`((?:[A-Z_]+=\S+ )*prob(?:ing|e) [^`]+)`", line):
                yield number, words_of(re.sub(r"^([A-Z_]+=\S+ )*", "", part))


def words_of(line):
    """The words of one command: up to a comment, a pipe or a redirection."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    words = []
    try:
        for word in lexer:
            if word[0] in "|;&<>":
                break
            words.append(word)
    except ValueError:  # a quote that ends in a later line: what is before it counts
        pass
    return [word.rstrip(",.") for word in words]


@lru_cache(maxsize=None)
def known_options(*command):
    """The options in the help of a command: {"--format", "-o", ...}; None where there is no such command."""
    done = subprocess.run([PROGRAM, "help", *command], capture_output=True, text=True)
    if done.returncode:
        return None
    return set(re.findall(r"^  +(?:(-\w), )?(--[\w-]+)", done.stdout, re.M)) | {("-t", "--target")}


def wrong_words(words):
    """What of a command line does not exist."""
    rest = words[1:]
    while rest and (rest[0] in ("-t", "--target", "--ranks", "--nodes", "--token-file")
                    or re.match(r"\d+$|\$|.+:\d+|[A-Z]|--all$|<|$", rest[0])):
        rest = rest[1:] if re.match(r"\d+$|\$|.+:\d+|[A-Z]|--all$|<|$", rest[0]) else rest[2:]
    if not rest or rest[0] in ("help", "COMMAND", "...", "man", "completions", "--version", "--help"):
        return
    if rest[0] == "core":  # core FILE COMMAND
        rest = rest[2:3] + rest[3:] if len(rest) > 2 else rest
    options = known_options(rest[0])
    if options is None:
        yield rest[0]
        return
    names = {name for pair in options for name in pair}
    for word in rest[1:]:
        if word == "--":
            return
        if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0] not in names:
            yield word


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_commands_of_a_page_exist(path):
    assert PROGRAM.exists(), "build it first: make"
    wrong = [f"{path}:{number}: {' '.join(words)}: {word}" for number, words in commands(text(path))
             for word in wrong_words(words)]
    assert not wrong, "\n".join(wrong)


def test_commands_that_do_not_exist_are_noticed():
    page = ("```\nprobing -t 4711 backtraces\nx=$(probing list --frmt json)   # --no\n```\n"
            "`probing -t 4711 query \"SELECT 1\" --json` and `probing frob`\n")
    assert [list(wrong_words(words)) for _, words in commands(page)] == [["backtraces"], ["--frmt"], [], ["frob"]]


def missing_files(content):
    """Sources named as code on a page that are not in the project; `x.c` and `FILE.py` stand for any."""
    ours = [str(path) for path in files()]
    for name in set(re.findall(r"`([\w/.-]+\.(?:c|h|py|sh|inc|def|ts|md))`", content)):
        if Path(name).stem not in ("x", "FILE") and not any(path == name or path.endswith(f"/{name}") for path in ours):
            yield name


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_files_named_on_a_page_exist(path):
    assert not list(missing_files(text(path)))


def test_a_missing_file_is_noticed():
    assert list(missing_files("`cli.h`, `src/cli/cli.h`, `tests/unit/x.c` and `nothing.c`")) == ["nothing.c"]


def test_every_page_is_in_the_site_and_has_a_way_to_it():
    """mkdocs.yml names each page of docs/ once, and the index links to each."""
    site = text(Path("mkdocs.yml"))
    named = re.findall(r"^ +- (?:.+: )?([\w-]+\.md)$", site, re.M)
    pages = sorted(path.name for path in PAGES if path.parent == Path("docs"))
    assert sorted(named) == pages, "mkdocs.yml has the pages of docs/, each once"
    index = text(Path("docs/index.md"))
    assert not [name for name in pages if name != "index.md" and f"({name}" not in index]
