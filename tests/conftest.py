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


# Files of 20 s and more, those that take longest first: one that begins last would keep the other workers waiting
# for its end. Taken from build/test-reports/integration.xml of a whole run.
LONGEST = ["test_harm_python", "test_wheel", "test_inject", "test_torch_examples", "test_memory", "test_diagnose",
           "test_harm_agent", "test_page", "test_harm_memory_hooks", "test_harm_inject", "test_eval",
           "test_harm_sampler", "test_events", "test_archive", "test_agent", "test_profile", "test_torch_workers",
           "test_hostile", "test_as_written", "test_diagnose_recorded", "test_diagnose_every",
           "test_cluster_launchers", "test_build", "test_starting", "test_debug", "test_page_verdict",
           "test_eval_clients", "test_backtrace", "test_sql_escape", "test_pause_all", "test_break", "test_held",
           "test_catch", "test_harm_last_thread", "test_diagnose_ended", "test_torch_finite", "test_docs_commands",
           "test_cluster_groups", "test_profile_hard", "test_torch_signals", "test_serve_targets",
           "test_inject_refused", "test_profile_live", "test_fault_collection", "test_harm_arena", "test_page_hostile",
           "test_torch_profile", "test_profile_degraded", "test_mcp", "test_cluster", "test_cli",
           "test_python_sampled", "test_pause", "test_tensor_reads", "test_serve_clients", "test_signals_held"]


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
