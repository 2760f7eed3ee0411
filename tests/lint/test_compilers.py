"""GCC and zig cc accept every source without a warning (warnings are errors), for x86-64 and for aarch64. Clang's
warnings: test_tidy.py."""
import pytest
from source import TOP, output

EVERYTHING = ["all", "unit-tests", "benchmarks"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("preset, targets", [
    ("release", EVERYTHING),
    # For glibc 2.17: no function that came later.
    ("zig", ["all"]),
    # No fallback to this machine's architecture: the other folder of src/inject/arch is compiled and linked.
    # Not optimized, as nothing of it is run or shipped.
    ("aarch64-check", ["probing"]),
])
def test_compiles_without_a_warning(preset, targets):
    output(TOP / "scripts/build.sh", preset, *targets)


def test_the_aarch64_build_is_one():
    output(TOP / "scripts/build.sh", "aarch64-check", "probing")
    assert "AArch64" in output("readelf", "-h", TOP / "build/aarch64-check/bin/probing")
