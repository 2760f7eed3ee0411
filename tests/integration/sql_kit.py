"""A worker with a hole: what its sandbox must hold."""
import os
import subprocess

import jobs
import pytest

WORKER = jobs.PROGRAM.parent / "probing-sql-escape"
NATIVE = ["open", "openat2", "proc", "create", "unlink", "mkdir", "rename", "stat", "readlink", "chdir", "chmod",
          "socket", "unix", "connect",
          "exec", "execveat", "fork", "ptrace", "vm_readv", "vm_writev", "kill", "tgkill", "pidfd_open", "pidfd_getfd",
          "mmap_exec",
          "mprotect_exec", "memfd", "io_uring", "bpf", "mount", "unshare", "setns", "setuid", "prctl", "limit",
          "limit_unseen", "sched", "keyctl", "userfaultfd", "perf", "shm", "name_to_handle", "ioctl", "fcntl"]


@pytest.fixture(scope="module")
def hole():
    """The environment in which queries go to a worker that does what an attacker would."""
    if jobs.PROGRAM == jobs.TOP / "build/release/bin/probing":
        done = subprocess.run([jobs.TOP / "scripts/build.sh", "release", "probing-sql-escape"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        assert done.returncode == 0, done.stdout
    assert WORKER.exists(), "the test build of the worker is missing: build probing-sql-escape"
    return {**os.environ, "PROBING_SQL_WORKER": str(WORKER)}
