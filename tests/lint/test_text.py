"""Sizes, words and links: what a reader would stumble over."""
import re

import pytest
from source import TOP, files, text

LONGEST_FILE = 700
LONGEST_FUNCTION = 90
# A folder of somebody's machine, or a package registry: both belong into configuration, not into the repository.
FOREIGN = [re.compile(pattern) for pattern in (
    r"(^|[^\w.%})>/\]-])/(home|Users|work|root|farm)/\w",
    r"\b(pypi|npmjs|debian|ubuntu|pythonhosted|pytorch)\.(org|com)\b",
)]
# The lock file of npm names where each package came from; this file names what it forbids.
MAY_NAME_HOSTS = ("package-lock.json", "test_text.py")
CODE = ("*.c", "*.h", "*.py", "*.sh", "*.ts", "*.tsx", "*.css")


def test_files_have_one_subject():
    long = [f"{path}: {text(path).count(chr(10))} lines" for path in files(*CODE)
            if text(path).count("\n") > LONGEST_FILE]
    assert not long, "\n".join(long)


def functions(content):
    """(name, lines) of each C function: the house style puts both of its braces into the first column."""
    start, head = None, ""
    for number, line in enumerate(content.splitlines()):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            yield head, number - start - 1
            start = None
        elif start is None and re.match(r"\w.*\(", line):
            head = re.search(r"(\w+)\s*\(", line).group(1)


def test_functions_fit_a_screen_or_two():
    long = [f"{path}: {name}: {lines} lines" for path in files("*.c", "*.h") for name, lines in functions(text(path))
            if lines > LONGEST_FUNCTION]
    assert not long, "\n".join(long)


def test_a_long_function_is_noticed():
    content = "static int f(int a)\n{\n" + "    a++;\n" * 91 + "}\n"
    assert list(functions(content)) == [("f", 91)]


def test_no_machine_and_no_registry_is_named():
    wrong = []
    for path in files():
        if path.name in MAY_NAME_HOSTS or path.name == "LICENSE":
            continue
        try:
            lines = text(path).splitlines()
        except UnicodeDecodeError:
            continue
        wrong += [f"{path}:{number}: {line.strip()[:100]}" for number, line in enumerate(lines, 1)
                  if any(pattern.search(line) for pattern in FOREIGN)]
    assert not wrong, "\n".join(wrong)


def broken_links(path, content):
    """Relative links of a Markdown file whose target, or whose heading in it, is not there."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", content):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        to = TOP / path.parent / name if name else TOP / path
        if not to.exists() or heading and heading not in anchors(to.read_text()):
            yield target


def anchors(content):
    """GitHub's: lower case, punctuation dropped, blanks to hyphens."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", content, re.M)}


@pytest.mark.parametrize("path", files("*.md"), ids=str)
def test_links_lead_somewhere(path):
    assert not list(broken_links(path, text(path)))


@pytest.mark.parametrize("path", files("*.c", "*.h", "*.py", "*.sh"), ids=str)
def test_a_file_opens_with_what_it_is_for(path):
    content = re.sub(r"\A#!.*\n", "", text(path))
    assert not content.strip() or content.startswith(("/*", '"""', "#"))
