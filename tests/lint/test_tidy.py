"""clang-tidy with the file .clang-tidy over every source that the release build compiles."""
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from source import RELEASE, TOP


def sources():
    commands = json.loads((RELEASE / "compile_commands.json").read_text())
    return sorted({command["file"] for command in commands})


def tidy(source):
    done = subprocess.run(["clang-tidy", "--quiet", "-p", RELEASE, source], cwd=TOP, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_clang_tidy_finds_nothing():
    checked = sources()
    assert checked
    with ThreadPoolExecutor(2) as pool:
        findings = [finding for finding in pool.map(tidy, checked) if finding]
    assert not findings, "\n".join(findings)[:8000]
