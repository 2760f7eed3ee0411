"""What was built: it needs libc only, asks for no newer glibc than promised, exports what it should, names no
folder."""
import re

import pytest
from source import RELEASE, TOP, output

PROGRAM = RELEASE / "bin/probing"
AGENTS = {"glibc": RELEASE / "lib/probing/libprobing-glibc.so", "musl": RELEASE / "lib/probing/libprobing-musl.so"}
# Until 2.34 these were files of their own; all belong to libc.
LIBC = re.compile(r"(libc|libpthread|libdl|librt|ld-linux-[a-z0-9-]+|ld-linux)\.so(\.\d+)?|libc\.musl-\w+\.so\.1")
OLDEST_GLIBC = (2, 17)
# What tools look up in the target. All else would collide with somebody's names there.
EXPORTS = {"pb_agent_start", "pb_agent_status", "PyInit__probing", "probing_append_1", "probing_register_1"}


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path))


def exported(path):
    """Names another object can bind to."""
    symbols = output("nm", "-D", "--defined-only", "--extern-only", path).splitlines()
    return {line.split()[-1].split("@")[0] for line in symbols}


def versions(path):
    return {tuple(int(part) for part in version.split("."))
            for version in re.findall(r"GLIBC_([0-9.]+)", output("readelf", "-VW", path))}


@pytest.mark.parametrize("path", [PROGRAM, *AGENTS.values()], ids=["probing", *AGENTS])
def test_needs_libc_only(path):
    others = [name for name in needed(path) if not LIBC.fullmatch(name)]
    assert not others, f"{path.name} needs {others}"


def test_the_glibc_agent_loads_into_old_processes():
    found = versions(AGENTS["glibc"])
    assert found, "no symbol versions: is it linked with glibc at all?"
    assert max(found) <= OLDEST_GLIBC, f"asks for GLIBC_{'.'.join(map(str, max(found)))}"


def test_the_musl_agent_asks_for_no_glibc():
    assert not versions(AGENTS["musl"])


@pytest.mark.parametrize("libc", AGENTS)
def test_the_agent_exports_its_entry_points_only(libc):
    assert exported(AGENTS[libc]) == EXPORTS


@pytest.mark.parametrize("path", [PROGRAM, *AGENTS.values()], ids=["probing", *AGENTS])
def test_names_no_folder_of_the_build_machine(path):
    assert str(TOP).encode() not in path.read_bytes()


def test_probe_is_the_same_program():
    assert (RELEASE / "bin/probe").resolve() == PROGRAM.resolve()
