"""Fixtures of the harm suite: the compiled parts, and the control process, which is never probed."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))
import runner  # noqa: E402


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """The folder of compiled programs and libraries, and of everything that cases write."""
    where = tmp_path_factory.mktemp("harm")
    runner.compile_parts(where)
    return where


@pytest.fixture(scope="session")
def control(parts):
    control = runner.Control(parts)
    yield control
    control.end()
