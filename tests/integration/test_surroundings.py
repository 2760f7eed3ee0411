"""Tests find the usual signals and folders of their own, however they are started and whosever home it is."""
import ctypes
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
import surroundings
from jobs import probe

TOP = Path(__file__).resolve().parent.parent.parent
NUMBERS = [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP]
IN_OPEN, IN_ACCESS, IN_CREATE, IN_MODIFY, IN_DELETE = 0x20, 0x1, 0x100, 0x2, 0x200


def ignore_all():
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


# What a child of the test runner finds, and whether the runner itself survives a hangup as nohup promises.
LOOK = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
import surroundings
surroundings.take_signals()
os.kill(os.getpid(), signal.SIGHUP)
print(open("/proc/self/status").read().split("SigIgn:")[1].split()[0])
print(subprocess.run(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE, universal_newlines=True).stdout.split()[1])
"""


def test_what_tests_start_ignores_no_signal_that_the_runner_was_told_to_ignore():
    done = subprocess.run([sys.executable, "-c", LOOK, TOP / "tests"], preexec_fn=ignore_all, stdout=subprocess.PIPE,
                          universal_newlines=True)
    assert done.returncode == 0, "the runner itself died of the hangup"
    bits = sum(1 << (number - 1) for number in NUMBERS)
    assert [int(word, 16) & bits for word in done.stdout.split()] == [0, 0]


def test_the_runner_calls_it():
    """In this very process, which may be one that was started by nohup."""
    assert all(signal.getsignal(number) != signal.SIG_IGN for number in NUMBERS)
    folders = [os.environ[name] for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
                                             "XDG_CONFIG_HOME")]
    home = surroundings.user_home()
    assert all(Path(folder).is_dir() and home not in [Path(folder), *Path(folder).parents] for folder in folders)
    assert not [name for name in os.environ if name.startswith("PROBING_") and name not in surroundings.OURS]


def watch(folders):
    """A descriptor that tells when somebody opens, reads or changes one of these folders or a file in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    for folder in folders:
        assert libc.inotify_add_watch(fd, os.fsencode(folder),
                                      IN_OPEN | IN_ACCESS | IN_CREATE | IN_MODIFY | IN_DELETE) > 0
    return fd


def events(fd):
    """[(kind, name of the file or "" for the folder), ...]"""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return []
    found, at = [], 0
    while at < len(data):
        _, mask, _, size = struct.unpack_from("iIII", data, at)
        found.append((mask, data[at + 16:at + 16 + size].rstrip(b"\0").decode()))
        at += 16 + size
    return found


# Some of each kind that would go there: the SQL worker's socket, the archive that a query reads too, a history.
TRIED = ["test_query.py::test_memory_usage_tells_what_the_kernel_tells",
         "test_query.py::test_what_a_dead_process_left_can_be_asked",
         "test_prompt.py::test_a_table_that_appears_is_completed_at_once",
         "test_archive.py::test_compression_is_what_is_set"]


@pytest.mark.timeout(240)
def test_nothing_of_the_user_is_read_or_written(tmp_path):
    data, state, runtime = (tmp_path / ".local/share/probing/archive", tmp_path / ".local/state/probing",
                            tmp_path / "run/probing")
    for folder in (data, state, runtime):
        folder.mkdir(parents=True, mode=0o700)
    (state / "sql_history").write_text("SELECT 'mine'\n")
    user = {name: value for name, value in os.environ.items()
            if not name.startswith(("XDG_", "PROBING_TEST_", "PYTEST_"))}
    user.update(HOME=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path / "run"))
    fd = watch([tmp_path / ".local/share", data.parent, data, tmp_path / ".local/state", state, tmp_path / "run",
                runtime])
    try:
        with jobs.python() as job:
            probe(job.pid, "query", "SELECT 1", env=user)
        assert events(fd), "the program itself goes there: what is watched is the right place"
        while events(fd):
            pass
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *(f"tests/integration/{name}" for name in TRIED)],
                              cwd=TOP, env=user,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        assert done.returncode == 0 and f"{len(TRIED)} passed" in done.stdout, done.stdout
        assert events(fd) == []
    finally:
        os.close(fd)
    assert (state / "sql_history").read_text() == "SELECT 'mine'\n"
