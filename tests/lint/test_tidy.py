"""clang-tidy with the file .clang-tidy over every source of the release build, the agent's too."""
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from source import RELEASE, TOP, files


def sources():
    commands = json.loads((RELEASE / "compile_commands.json").read_text())
    return sorted({command["file"] for command in commands})


def tidy(source):
    # The compile commands are GCC's, with warnings that Clang does not know, and a flag that some of its releases refuse.
    done = subprocess.run(["clang-tidy", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                           "--extra-arg=-ftrivial-auto-var-init=uninitialized", "-p", RELEASE, source],
                          cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_clang_tidy_finds_nothing():
    checked = sources()
    unseen = {str(TOP / path) for path in files("src/*.c") if "arch" not in path.parts} - set(checked)
    assert not unseen, "not compiled here, so not checked"
    with ThreadPoolExecutor(2) as pool:
        findings = [finding for finding in pool.map(tidy, checked) if finding]
    assert not findings, "\n".join(findings)[:8000]
