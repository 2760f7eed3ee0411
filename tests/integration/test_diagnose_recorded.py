"""What diagnose says from recorded rows: a slow rank, a leak, and a job that only fills its buffer (faults/)."""
import json
import re
import subprocess
import sys

import pytest

import jobs

WITH_TORCH = pytest.mark.skipif((jobs.TOP / "build/venv/installed/torch.missing").exists(), reason="no torch here")
PROGRAMS = ["slow/sleeps", "slow/everybody", "leak/descriptors", "healthy/plateau"]


def right_within_two_tries(programs):
    """On a machine that is busy too few steps may have been made; so what was wrong is asked once more."""
    text, names = "", programs
    for _ in range(2):
        done = subprocess.run([sys.executable, jobs.TOP / "faults/run", *names, "--at-once", "4"], capture_output=True,
                              text=True, timeout=300 * jobs.SLOW)
        text += done.stdout + done.stderr
        names = re.findall(r"^WRONG +(\S+)", done.stdout, re.M)
        if done.returncode == 0:
            return
        assert names, text
    assert not names, text


@WITH_TORCH
@pytest.mark.timeout(700)
def test_the_first_loss_that_is_not_finite_is_named_with_its_cause():
    """By rank, function and cause: a bad batch, a division, a rate that is too high."""
    right_within_two_tries(["number/data", "number/division", "number/learning_rate"])


@WITH_TORCH
@pytest.mark.timeout(700)
def test_a_slow_rank_and_a_leak_are_named_and_a_plateau_is_not():
    right_within_two_tries(PROGRAMS)


@WITH_TORCH
@pytest.mark.timeout(700)
def test_losses_that_are_kept_are_told_from_other_memory(tmp_path):
    """Their graphs are memory that neither Python nor a sampled tensor knows of: results are counted instead."""
    told = []
    command = [sys.executable, jobs.TOP / "faults/run", "leak/graph", "--answers", tmp_path]
    for _ in range(2):
        subprocess.run(command, timeout=300 * jobs.SLOW, stdout=subprocess.DEVNULL, check=False)
        rank = json.loads((tmp_path / "leak.graph.0.truth").read_text())["truth"]["rank"]
        answer = json.loads((tmp_path / "leak.graph.0.json").read_text())["jobs"]
        told = [f for job in answer for f in job["findings"] if f["root"] and f["sure"] != "remark"]
        if ("leak", "graph", rank) in [(f["kind"], f["cause"], f["rank"]) for f in told]:
            return
    raise AssertionError(told)
