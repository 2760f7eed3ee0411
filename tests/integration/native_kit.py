"""Programs in C whose native stacks are known."""
import os
import shutil
import subprocess
from pathlib import Path

import jobs
import pytest

TARGETS = Path(__file__).resolve().parent / "targets"
RELEASE = Path(os.environ.get("PROBING_BUILD", jobs.TOP / "build/release"))


def build(command, source, output, *flags):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([*command, str(TARGETS / source), "-o", str(output), *flags], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    return output


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="session")
def native_dump(folder):
    libraries = [str(RELEASE / f"libpb_{name}.a") for name in ("remote", "control", "table", "base")]
    return build(["gcc", "-O2", "-std=gnu17", "-D_GNU_SOURCE", f"-I{jobs.TOP / 'src'}"], "native_dump.c",
                 folder / "native_dump", *libraries, "-ldl", "-lpthread")


def settled(pid):
    """It printed, but its threads may be on their way into the kernel still."""
    def asleep():
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] in "St" for task in tasks)
    jobs.wait_until(asleep, what="sleep")
