"""What diagnose says from recorded rows: a slow rank, a leak, and a job that only fills its buffer (faults/)."""
import re
import subprocess
import sys

import pytest

import jobs

PROGRAMS = ["slow/sleeps", "leak/descriptors", "healthy/plateau"]


@pytest.mark.skipif((jobs.TOP / "build/venv/installed/torch.missing").exists(), reason="no torch here")
def test_a_slow_rank_and_a_leak_are_named_and_a_plateau_is_not():
    """On a machine that is busy too few steps may have been made; so what was wrong is asked once more."""
    text, names = "", PROGRAMS
    for _ in range(2):
        done = subprocess.run([sys.executable, jobs.TOP / "faults/run", *names, "--at-once", "3"], capture_output=True,
                              text=True, timeout=300 * jobs.SLOW)
        text += done.stdout + done.stderr
        names = re.findall(r"^WRONG +(\S+)", done.stdout, re.M)
        if done.returncode == 0:
            return
        assert names, text
    assert not names, text
