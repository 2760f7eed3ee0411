"""Views of a job show all of its ranks on one axis."""
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
from jobs import PROGRAM
from page_kit import AXE, browse, browser_only
from serve_kit import NEEDS_SERVE, service

pytestmark = [NEEDS_SERVE, browser_only]

JOB = """
import os, time, probing
for step in range(40):
    probing.log(step=step, loss=(1 + int(os.environ["RANK"])) / (step + 1))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("width", [1440, 390])
def test_memory_and_training_of_a_job_have_a_line_a_rank(tmp_path, width):
    (tmp_path / "two_ranks.py").write_text(JOB)
    with ExitStack() as stack:
        for rank in "01":
            process = stack.enter_context(subprocess.Popen(
                [PROGRAM, "launch", "--", sys.executable, str(tmp_path / "two_ranks.py")],
                env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
        served = stack.enter_context(service(tmp_path / "r"))
        job = "target=two_ranks.py&all=1"
        found = browse(served, tmp_path, ["open", f"#/training?{job}"], ["find", "[role=img][aria-label^=loss]"],
                       ["text", "main h1"], ["evaluate", "document.querySelector('main [role=img]').ariaLabel"],
                       ["text", "main .keys"], ["axe", "main"], ["outside"], ["text", ".foot code"],
                       ["open", f"#/memory?{job}"], ["find", "[role=img][aria-label^=Resident]"],
                       ["text", "main .keys"], ["text", "main table"], ["axe", "main"], ["outside"],
                       ["click", "main table a"], ["see", "It takes"], axe=str(AXE), width=width,
                       pictures=os.environ.get("PAGE_PICTURES"))
    assert found[2] == "loss of 2 ranks, to step 39."
    assert found[3] == "loss of each rank: 40 points, at the end rank 0 0.025, rank 1 0.05"
    assert found[4].split("\n") == found[10].split("\n") == ["rank 0", "rank 1"]
    assert found[5] == found[6] == found[12] == found[13] == []
    assert "--all query" in found[7]
    assert "rank 0, pid" in found[11] and "rank 1, pid" in found[11]
