"""The holder of the GIL in CPython 3.7 to 3.11, whose offset differs on aarch64: it lies behind two pthread_mutex_t."""
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))
import builds  # noqa: E402
import jobs  # noqa: E402
import stack_kit  # noqa: E402
from jobs import probe  # noqa: E402

# Without threading, which wants modules in C that these builds have not. Only the spinning thread has the GIL for long.
SPINS = """
import _thread, sys, time
def spin():
    n = 0
    while True:
        n += 1
_thread.start_new_thread(spin, ())
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    library = tmp_path_factory.mktemp("starter") / "starter.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, stack_kit.TARGETS / "python_starter.c", "-ldl"],
                   check=True)
    return library


def check(job, version, tmp_path):
    def holder_is_named():
        text = probe("-t", job.pid, "backtrace").stdout
        assert f"CPython {version}" in text and "not verified" not in text, text
        blocks = text.split("\nthread ")
        assert sum("spin (" in block for block in blocks) == 1, text
        return any("holds the GIL" in block.splitlines()[0] and "spin (" in block for block in blocks)

    jobs.wait_until(holder_is_named, 30, what="a holder of the GIL")
    out = tmp_path / "gil.folded"
    done = probe("-t", job.pid, "flamegraph", "--gil", "--duration", "1s", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "spin" in out.read_text()


@pytest.mark.parametrize("tag", builds.WITH_MUTEXES)
def test_the_holder_of_the_gil_is_known(tag, starter, tmp_path):
    script = tmp_path / "spins.py"
    script.write_text(SPINS)
    with builds.start_by_hand(tag, script, starter) as job:
        check(job, f"3.{tag[3:].rstrip('m')}.", tmp_path)


def test_the_holder_of_the_gil_is_known_in_the_interpreter_of_the_system(tmp_path):
    with jobs.python(SPINS) as job:
        check(job, "%d.%d." % sys.version_info[:2], tmp_path)
