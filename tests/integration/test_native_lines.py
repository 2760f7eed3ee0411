"""Source lines and inlined calls: what binutils' addr2line says, address by address."""
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from native_kit import RELEASE, build, folder, native_dump  # noqa: F401

BUILDS = [("gcc", version) for version in (2, 3, 4, 5)] + [("clang", version) for version in (4, 5)]


@pytest.fixture(scope="session")
def native_lines(native_dump, folder):  # noqa: F811
    """Built like native_dump, whose libraries are there then."""
    libraries = [str(RELEASE / f"libpb_{name}.a") for name in ("remote", "control", "table", "base")]
    return build(["gcc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", f"-I{jobs.TOP / 'src'}"], "native_lines.c",
                 folder / "native_lines", *libraries, "-ldl", "-lpthread")


def addresses(program, count):
    """Some in each function."""
    symbols = subprocess.run(["nm", "-S", "--defined-only", str(program)], stdout=subprocess.PIPE,
                             universal_newlines=True, check=True)
    functions = re.findall(r"^(\w+) (\w+) [tT] (\w+)$", symbols.stdout, re.M)
    spans = [(int(start, 16), int(size, 16)) for start, size, name in functions if name != "_start"]
    chosen = random.Random(1)
    return sorted({start + chosen.randrange(size) for start, size in (chosen.choice(spans) for _ in range(count))})


def blocks(text):
    found = []
    for line in text.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            found.append([])
        else:
            found[-1].append(line)
    return found


def ours(tool, program, text):
    done = subprocess.run([str(tool), str(program)], input=text, stdout=subprocess.PIPE, universal_newlines=True,
                          check=True)
    return [[tuple(line.split("\t")) for line in block] for block in blocks(done.stdout)]


def theirs(program, text):
    done = subprocess.run(["addr2line", "-a", "-f", "-i", "-e", str(program)], input=text, stdout=subprocess.PIPE,
                          universal_newlines=True, check=True)
    lines = [[re.sub(r" \(discriminator.*", "", line) for line in block] for block in blocks(done.stdout)]
    return [list(zip(block[::2], block[1::2])) for block in lines]


def plain(frames):
    """Function, file name and line; line 0 is what compilers give to code of their own."""
    return [(function, place.rpartition("/")[2].replace(":?", ":0")) for function, place in frames]


@pytest.mark.parametrize("compiler, version", BUILDS)
def test_every_line_and_inlined_call_of_a_program(compiler, version, native_lines, folder):  # noqa: F811
    program = build([compiler, "-O2", f"-gdwarf-{version}"], "native_target.c", folder / f"lines-{compiler}-{version}",
                    "-ldl", "-lpthread")
    text = "".join(f"{address:#x}\n" for address in addresses(program, 600))
    pairs = list(zip(ours(native_lines, program, text), theirs(program, text)))
    assert len(pairs) > 200
    for mine, other in pairs:
        if other[0][1].startswith("??"):
            assert not mine
        else:
            assert plain(mine) == plain(other)
    assert any(len(mine) > 2 for mine, _ in pairs), "nothing was inlined"


def test_nearly_every_line_of_the_interpreter(native_lines):
    """A large file; the few that differ are mistakes of addr2line, which takes names from the wrong table."""
    found = Path(sys.executable).resolve().parent.parent.glob("lib/libpython3.*.so.1.0")
    library = next((path for path in found if has_debug_info(path)), None)
    if library is None:
        pytest.skip("this interpreter's library has no debug information")
    text = "".join(f"{address:#x}\n" for address in addresses(library, 1000))
    pairs = [(plain(mine), plain(other))
             for mine, other in zip(ours(native_lines, library, text), theirs(library, text))]
    assert len(pairs) > 900
    assert sum(mine == other for mine, other in pairs) > 0.97 * len(pairs)


def has_debug_info(path):
    sections = subprocess.run(["readelf", "-SW", str(path)], stdout=subprocess.PIPE, universal_newlines=True).stdout
    return ".debug_info" in sections and shutil.which("addr2line") is not None
