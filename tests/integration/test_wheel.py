"""The wheel: it installs into a new environment, and the program in it runs."""
import subprocess

import pytest


@pytest.mark.timeout(300)
def test_the_wheel_installs_and_runs(top):
    # The script itself installs what it built into a new environment, runs both names and looks for the agents.
    done = subprocess.run([top / "scripts/wheel.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "py3-none-manylinux" in done.stdout


@pytest.mark.timeout(300)
def test_the_archive_unpacks_and_runs(top):
    for command in ([top / "scripts/build.sh", "zig", "all"], [top / "scripts/dist.sh"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        assert done.returncode == 0, done.stdout[-4000:]
