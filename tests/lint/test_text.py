"""Sizes, words and links: what a reader would stumble over."""
import re
from pathlib import Path

import pytest
from source import TOP, files, text

LONGEST_FILE = 700
LONGEST_FUNCTION = 90
WIDTH = 110  # as .clang-format has it for code
# Paths of a developer's machine, and package registries: both belong into configuration, not into the repository.
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


def test_comments_keep_to_the_width_of_the_code():
    """clang-format leaves comments alone (a list in one must keep its lines), so their width is looked at here."""
    wide = [f"{path}:{number}" for path in files("*.c", "*.h") for number, line in enumerate(text(path).splitlines(), 1)
            if len(line) > WIDTH and re.match(r"\s*(/\*| \*)|[^\"]*/\*[^\"]*$", line)]
    assert not wide, "\n".join(wide)


def functions(content):
    """(name, lines) of each C function: the house style puts both of its braces into the first column."""
    start, head = None, ""
    for number, line in enumerate(content.splitlines()):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            yield head, number - start - 1
            start = None
        elif start is None and re.match(r"\w.*\w\s*\(", line):
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
        if path.name in MAY_NAME_HOSTS or path.name == "LICENSE" or path.parent == PICTURES:
            continue
        lines = text(path).splitlines()
        wrong += [f"{path}:{number}: {line.strip()[:100]}" for number, line in enumerate(lines, 1)
                  if any(pattern.search(line) for pattern in FOREIGN)]
    assert not wrong, "\n".join(wrong)


def is_binary(data):
    """Nothing that a person can review: it has a zero byte in it, or is no UTF-8."""
    try:
        return "\0" in data.decode("utf-8")
    except UnicodeDecodeError:
        return True


PICTURES = Path("docs/pictures")


def is_picture(data):
    """A small PNG with a palette, as scripts/page_pictures.py writes it: pixels, and nothing beside them that could
    tell of a machine."""
    at, kinds = 8, []
    while data.startswith(b"\x89PNG\r\n\x1a\n") and at + 12 <= len(data):
        kinds.append(data[at + 4:at + 8])
        at += 12 + int.from_bytes(data[at:at + 4], "big")
    return len(data) < 100_000 and at == len(data) and kinds == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]


def test_no_binary_file_is_kept():
    """A core dump was, with an environment in it. What a test needs of that kind it makes."""
    paths = files()
    assert paths
    binary = [str(path) for path in paths if is_binary((TOP / path).read_bytes())
              and not (path.parent == PICTURES and is_picture((TOP / path).read_bytes()))]
    assert not binary, f"binary files: {', '.join(binary)}"


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01\0\0", b"\x89PNG\r\n", b"PK\x03\x04\0",
                                  "größe".encode("latin-1")], ids=["elf", "png", "zip", "latin-1"])
def test_a_binary_file_is_noticed(data):
    assert is_binary(data) and not is_binary("größe 😀\n".encode())


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


def test_sequences_for_a_terminal_begin_with_the_tag_of_the_outlet():
    """What a target chose cannot begin with it (print/outlet.h). These write to the terminal itself, their own text
    alone."""
    own = {"src/print/outlet.c", "src/cli/profile/profile_screen.c", "src/cli/line/line_draw.c",
           "src/cli/line/line_edit.c", "src/cli/line/line_keys.c"}
    wrong = [str(path) for path in files("src/*.c", "src/*.h") if r'\033' in text(path) and str(path) not in own
             | {"src/print/outlet.h"}]
    assert not wrong, wrong
