"""What all tests share: surroundings of their own, where the program is, and PyTorch or the reason why there is none."""
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
import surroundings

# First of all: modules of tests look for interpreters and run the program while they are imported.
surroundings.take_signals()
surroundings.take_folders()

TOP = Path(__file__).resolve().parent.parent


# What `make check` runs of the integration tests: of each part of the program some. File: words of which a test's name has
# one, "" for all of them.
QUICK = {
    "test_agent": ["description", "exec_starts", "forked_child", "lost_run_directory", "without_python"],
    "test_backtrace": ["connection", "container", "stopped", "locals", "odd_rank", "tasks_and", "threads_functions", "waits_of"],
    "test_cli": ["a_table", "all", "error", "every", "forked", "letters", "launcher", "man_page", "odd", "rows", "target", "there_are"],
    "test_completions": [""],
    "test_config": ["defaults", "manual", "running", "wrong"],
    "test_core": ["core"],
    "test_eval": ["assignments", "ctrl_c", "exceptions", "execute", "every_interpreter", "globals", "values"],
    "test_inject_refused": [""],
    "test_memory": ["as_python_says", "as_the_kernel_says", "without_a_gpu"],
    "test_profile": ["ctrl_c", "difference", "lines_are", "native_frames", "no_format", "pprof_holds", "svg"],
    "test_query": [""],
    "test_query_output": [""],
    "test_secrets": [""],
    "test_sql_escape": ["more_than_read", "product", "bytes"],
    "test_surroundings": ["runner", "signal"],
}


def pytest_collection_modifyitems(items):
    for item in items:
        words = QUICK.get(item.path.stem)
        if words and any(word in item.name for word in words) and not item.get_closest_marker("alone"):
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
        pytest.skip(missing.read_text().strip() if missing.exists() else "torch is not installed: scripts/setup.sh test")


def run(*command, **options):
    """A command's completed process, with its output as text."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, **options)
