"""Shared by all tests: their own environment and folders, the path of the program, and PyTorch or the reason why it is
missing."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick
import surroundings

# First of all: modules of tests look for interpreters and run the program while they are imported.
surroundings.take_signals()
surroundings.take_folders()
# pytest compiles assertions of its own into each test file, 5 s for all of them: kept for the next worker and run, also
# where the user has PYTHONDONTWRITEBYTECODE set.
sys.dont_write_bytecode = False

TOP = Path(__file__).resolve().parent.parent


# Files that take longest begin first: one that begins last would keep the other workers waiting for its end.
LONGEST = ["test_harm_python", "test_wheel", "test_inject", "test_harm_sampler", "test_harm_memory_hooks",
           "test_memory", "test_harm_inject",
           "test_torch_examples", "test_page", "test_harm_agent", "test_eval", "test_hostile", "test_archive",
           "test_as_written", "test_agent",
           "test_cluster_launchers", "test_debug", "test_profile", "test_backtrace", "test_serve_clients", "test_lines",
           "test_build", "test_page_hostile", "test_page_torch"]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        if quick.chosen(item.path.stem, item.name) and not item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.quick)


@pytest.fixture(scope="session")
def top():
    return TOP


@pytest.fixture(scope="session")
def probing():
    """The program as `make` leaves it. Tests of another build set PROBING_PROGRAM."""
    program = Path(os.environ.get("PROBING_PROGRAM", TOP / "build/release/bin/probing"))
    assert program.exists(), f"{program} is not there: run make first"
    return program


@pytest.fixture(scope="session", autouse=True)
def way_in(tmp_path_factory):
    """Targets of other users run from temporary folders: these must let them through."""
    folder = tmp_path_factory.getbasetemp()
    while folder.name.startswith(("popen-", "pytest-")):
        folder.chmod(0o755)
        folder = folder.parent


@pytest.fixture(scope="session")
def soak():
    return bool(os.environ.get("PROBING_SOAK"))


@pytest.fixture(scope="session")
def needs_torch():
    if importlib.util.find_spec("torch") is None:
        missing = TOP / "build/venv/installed/torch.missing"
        pytest.skip(missing.read_text().strip() if missing.exists()
                    else "torch is not installed: scripts/setup.sh test")


def run(*command, **options):
    """A command's completed process, with its output as text."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, **options)
