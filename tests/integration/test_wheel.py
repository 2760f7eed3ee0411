"""The wheel and the release archive: they install or unpack, and the program in them runs and finds its agents."""
import subprocess
import sys
import tarfile

import pytest


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def evaluates_in_a_process(program):
    with subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
                          stdout=subprocess.PIPE) as target:
        try:
            target.stdout.readline()
            return run(program, "-t", target.pid, "eval", "print(6 * 7)").strip() == "42"
        finally:
            target.kill()


@pytest.mark.timeout(300)
def test_the_wheel_installs_and_runs(top):
    # The script itself installs what it built into a new environment and runs both names.
    assert "py3-none-manylinux" in run(top / "scripts/wheel.sh")
    assert evaluates_in_a_process(top / "build/wheel/venv/bin/probing")


@pytest.mark.timeout(300)
def test_the_archive_unpacks_and_runs(top, tmp_path):
    run(top / "scripts/build.sh", "zig", "all")
    archive = run(top / "scripts/dist.sh").split()[-1]
    with tarfile.open(top / archive) as packed:
        packed.extractall(tmp_path)
    assert evaluates_in_a_process(next(tmp_path.glob("probing-*/bin/probing")))
