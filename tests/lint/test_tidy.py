"""clang-tidy with the file .clang-tidy over every source of the release build and of the agent."""
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from source import RELEASE, TOP, files

# zig cc compiles the agent by a command of its own, which CMake does not list among its compile commands.
AGENT_FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", '-DPROBING_VERSION="0"', f'-DPROBING_PYTHON_DIR="{TOP}/python/probing"',
               f"-I{TOP}/src"]


def runs():
    """The command lines: one a source."""
    commands = json.loads((RELEASE / "compile_commands.json").read_text())
    for source in sorted({command["file"] for command in commands}):
        yield ["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option", "-p", str(RELEASE), source]
    for source in files("src/agent/*.c"):
        yield ["clang-tidy", "--quiet", str(source), "--", *AGENT_FLAGS]


def tidy(command):
    done = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_clang_tidy_finds_nothing():
    commands = list(runs())
    assert len(commands) > 10
    with ThreadPoolExecutor(2) as pool:
        findings = [finding for finding in pool.map(tidy, commands) if finding]
    assert not findings, "\n".join(findings)[:8000]
