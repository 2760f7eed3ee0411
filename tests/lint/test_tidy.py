"""clang-tidy with the file .clang-tidy, which has Clang's warnings too, over every source of the release build: the
agent's, unit tests and benchmarks."""
import json
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from source import RELEASE, TOP, files


def sources():
    commands = json.loads((RELEASE / "compile_commands.json").read_text())
    return sorted({command["file"] for command in commands})


# The compile commands are GCC's, with warnings that Clang does not know, and a flag that some of its releases refuse.
QUIET = ["-Wno-unknown-warning-option", "-ftrivial-auto-var-init=uninitialized"]


def tidy(source):
    done = subprocess.run(["clang-tidy", "--quiet", *(f"--extra-arg={flag}" for flag in QUIET), "-p", RELEASE, source],
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


def test_a_warning_of_clang_alone_is_a_finding(tmp_path):
    """GCC says nothing of it, with the flags of the project."""
    commands = json.loads((RELEASE / "compile_commands.json").read_text())
    command = next(command for command in commands if command["file"].endswith("src/base/err.c"))
    flags = shlex.split(command["command"].partition(" -o ")[0])[1:]
    (tmp_path / "twice.c").write_text("int twice(int x);\nint twice(int x)\n{\n    if ((x == 1))\n        return 2;\n"
                                      "    return x;\n}\n")
    shutil.copy(TOP / ".clang-tidy", tmp_path)
    assert not subprocess.run(["gcc", *flags, "-fsyntax-only", tmp_path / "twice.c"], stderr=subprocess.PIPE).stderr
    done = subprocess.run(["clang-tidy", "--quiet", tmp_path / "twice.c", "--", *flags, *QUIET], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, universal_newlines=True)
    assert done.returncode != 0 and "clang-diagnostic-parentheses-equality" in done.stdout
