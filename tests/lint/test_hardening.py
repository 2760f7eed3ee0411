"""The flags that cmake/options.cmake announces are in what was built: the files themselves are read."""
import os
import re

import pytest
from source import RELEASE, TOP, output

PROGRAMS = [RELEASE / "bin/probing", RELEASE / "bin/probing-sql"]
AGENTS = [RELEASE / "lib/probing/libprobing-glibc.so", RELEASE / "lib/probing/libprobing-musl.so"]
ALL = pytest.mark.parametrize("path", [*PROGRAMS, *AGENTS], ids=lambda p: p.name)
TOOLS = pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)


def undefined(path):
    return {line.split()[-1].split("@")[0] for line in output("nm", "-D", "-u", path).splitlines()}


@TOOLS
def test_tools_are_loaded_anywhere(path):
    assert re.search(r"FLAGS_1.*\bPIE\b", output("readelf", "-dW", path))


@ALL
def test_nothing_stays_writable_that_the_loader_filled_in(path):
    assert "GNU_RELRO" in output("readelf", "-lW", path)
    assert re.search(r"BIND_NOW|FLAGS_1.*\bNOW\b", output("readelf", "-dW", path))


@ALL
def test_no_stack_is_executable_and_no_code_writable(path):
    headers = output("readelf", "-lW", path)
    flags = re.search(r"GNU_STACK.*?\s(R?W?E?)\s+0x", headers).group(1)
    assert "E" not in flags
    loads = re.findall(r"LOAD\s+(?:0x\w+\s+){5}([RWE ]{3})", headers)
    assert loads and not [f for f in loads if "W" in f and "E" in f]


@ALL
def test_stacks_are_checked(path):
    assert "__stack_chk_fail" in undefined(path)


@pytest.mark.parametrize("path", [*PROGRAMS, AGENTS[0]], ids=lambda p: p.name)
def test_copies_are_checked_where_the_size_is_known(path):
    """musl has no such functions."""
    assert any(re.fullmatch(r"__\w+_chk", name) for name in undefined(path) - {"__stack_chk_fail"})


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="an instruction of x86-64")
@TOOLS
def test_calls_land_where_they_may(path):
    """By the code: the note that says so is lost where one object of the C library has none."""
    text = output("objdump", "-d", "--no-show-raw-insn", path)
    assert text.count("endbr64") > 100


def test_what_is_copied_into_others_has_none_of_it():
    """It runs where there is no C library to call."""
    stub = RELEASE / "CMakeFiles/pb_inject.dir/src/inject/stub.c.o"
    names = {line.split()[-1] for line in output("nm", "-u", stub).splitlines()}
    assert not {name for name in names if "chk" in name or name.startswith("mem")}


def test_a_build_says_what_it_uses():
    assert "-fstack-protector-strong" in (TOP / "build/release/build.ninja").read_text()
