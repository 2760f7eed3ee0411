"""Setup: pinned by version and hash, silent and quick when nothing is missing, plain about what it may not do."""
import os
import re
import subprocess

import pytest
from source import TOP, files, text

SETUP = TOP / "scripts/setup.sh"


@pytest.mark.parametrize("path", files("requirements/*.txt"), ids=str)
def test_every_package_has_a_version_and_a_hash(path):
    entries = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text(path), flags=re.M)).strip().splitlines()
    assert entries
    loose = [entry for entry in entries if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)]
    assert not loose


def test_setup_is_silent_and_quick_when_nothing_is_missing():
    before = os.times()
    done = subprocess.run([SETUP, "test"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    after = os.times()
    assert (done.returncode, done.stdout) == (0, b"")
    # Of CPU time, which a busy machine does not change.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1


def test_without_rights_it_prints_the_command_to_run(tmp_path):
    # A PATH with what the script itself calls, and neither a compiler nor sudo.
    for tool in ("dirname", "id", "sed", "sort", "head", "cmp", "basename", "cut", "apt-get", "apt-cache", "python3"):
        real = subprocess.run(["which", tool], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()
        if real:
            (tmp_path / tool).symlink_to(real)
    (tmp_path / "id").unlink()
    (tmp_path / "id").write_text("#!/bin/sh\necho 65534\n")
    (tmp_path / "id").chmod(0o755)
    done = subprocess.run(["/bin/sh", SETUP, "build"], env={**os.environ, "PATH": str(tmp_path)},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 1
    assert re.search(r"^    sudo apt-get install .*\bgcc\b.*\bmake\b", done.stderr, re.M), done.stderr


def test_ci_runs_make_test_and_nothing_else():
    assert text(".ci/run") == '#!/bin/sh\nset -e\ncd "$(dirname "$0")/.."\nmake test\n'
