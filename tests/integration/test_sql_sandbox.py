"""The processes that read what a job wrote have no rights and nothing to write to but the files they were given; what
the kernel refuses is lost by itself, and doctor says so."""
import csv
import errno
import io
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from jobs import probe
from seccomp_kit import ENOSYS, EPERM, MEMFD_CREATE, behind
from archive_kit import writers_of

LANDLOCK, PIDFD_OPEN, SECCOMP = 444, 434, 317 if os.uname().machine == "x86_64" else 277


@pytest.fixture(scope="module")
def job():
    with jobs.python("import time; print('ready', flush=True); time.sleep(600)") as job:
        assert probe("-t", job.pid, "inject").returncode == 0
        yield job


def workers(kind):
    """Workers of that kind, of whomever."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"probing-sql" and words[1] == kind.encode():
            found.append(path)
    return found


def descriptors(path):
    """What each descriptor of a process is, and whether it can be written to."""
    found = {}
    for fd in (path / "fd").iterdir():
        try:
            flags = int(re.search(r"flags:\s+(\d+)", (path / "fdinfo" / fd.name).read_text()).group(1), 8)
            found[int(fd.name)] = (os.readlink(fd), flags & os.O_ACCMODE != os.O_RDONLY)
        except OSError:
            pass
    return found


def check_confined(path):
    status = (path / "status").read_text()
    assert re.search(r"Seccomp:\s+2\n", status) and re.search(r"NoNewPrivs:\s+1\n", status), status


def test_no_memory_that_can_be_written_reaches_the_worker(job, tmp_path):
    tmp_path.chmod(0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    before = set(workers("listen"))
    sql = ("SELECT count(*) FROM memory_usage m, python.backtrace b, system.threads t, range(100000000000) r WHERE "
           "hash(r.range) = 1")
    with subprocess.Popen([jobs.PROGRAM, "-t", str(job.pid), "query", "--timeout", "60", sql], env=env,
                          stderr=subprocess.DEVNULL) as query:
        def tables():
            found = [(path, descriptors(path)) for path in set(workers("listen")) - before]
            return [(path, held) for path, held in found if sum("memfd" in name for name, _ in held.values()) >= 3]

        jobs.wait_until(tables, what="a worker with the tables")
        ((path, found),) = tables()
        check_confined(path)
        query.kill()
    assert not [name for name, writable in found.values() if writable and "memfd" in name], found
    # What can be written to at all: its sockets, the event that wakes its own thread, and nothing.
    others = [name for name, writable in found.values() if writable
              and not name.startswith(("socket:", "anon_inode:", "/dev/null"))]
    assert not others, others


def test_what_writes_an_archive_is_confined_before_it_is_sent_anything():
    ours, theirs = socket.socketpair()
    # As the broker starts it: its socket is descriptor 3, and nothing else is open.
    code = (f"import os; os.dup2({theirs.fileno()}, 3); os.closerange(4, 1000); "
            f"os.execv({str(jobs.PROGRAM.parent / 'probing-sql')!r}, ['probing-sql', 'archive', '3'])")
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as writer:
        theirs.close()
        path = Path(f"/proc/{writer.pid}")
        jobs.wait_until(lambda: "Seccomp:\t2" in (path / "status").read_text(), what="its sandbox")
        check_confined(path)
        assert not [name for name, can in descriptors(path).values() if can
                    and not name.startswith(("socket:", "/dev/null"))]
        # It works in there: what is no request is answered.
        ours.sendall(struct.pack("<BI", 2, 0))
        ours.settimeout(20)
        kind, size = struct.unpack("<BI", ours.recv(5))
        assert kind == 13 and b"is invalid" in ours.recv(size)
        ours.close()


def test_what_writes_parquet_is_confined(tmp_path):
    command = subprocess.Popen([jobs.PROGRAM, "query", "--timeout", "60", "-o", tmp_path / "x.parquet",
                                "SELECT range FROM range(10000000000)"], stderr=subprocess.DEVNULL)
    jobs.wait_until(lambda: writers_of(command.pid), what="the writer")
    (path,) = writers_of(command.pid)
    jobs.wait_until(lambda: "Seccomp:\t2" in (path / "status").read_text(), what="its sandbox")
    check_confined(path)
    writable = [name for name, can in descriptors(path).values() if can
                and not name.startswith(("socket:", "/dev/null"))]
    assert len(writable) in (1, 2) and all("x.parquet" in name for name in writable), writable
    command.terminate()
    command.wait(30)


def doctor(pid, numbers, action):
    done = subprocess.run([*behind(numbers, action), str(jobs.PROGRAM), "-t", str(pid), "doctor", "--format", "csv"],
                          capture_output=True, text=True)
    (row,) = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["check"] == "sql"]
    return row


@pytest.mark.parametrize("action, number_of_error", [(EPERM, errno.EPERM), (ENOSYS, errno.ENOSYS)],
                         ids=["EPERM", "ENOSYS"])
@pytest.mark.parametrize("number, says", [(LANDLOCK, "no Landlock ({}): archived rows are refused, the rest works"),
                                          (PIDFD_OPEN, "no pidfd_open ({}): a query that hangs ends a second later"),
                                          (MEMFD_CREATE, "no memfd_create ({}): live tables go through a file"),
                                          (SECCOMP, "no seccomp ({}): no query runs")],
                         ids=["landlock", "pidfd_open", "memfd_create", "seccomp"])
def test_doctor_says_what_a_refusal_costs_and_no_more_is_lost(job, tmp_path, number, says, action, number_of_error):
    row = doctor(job.pid, [number], action)
    assert row["state"] == "warning", row
    assert row["found"] == says.format(os.strerror(number_of_error)), row
    assert row["remedy"], row
    tmp_path.chmod(0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def ask(*words):
        return subprocess.run([*behind([number], action), str(jobs.PROGRAM), "-t", str(job.pid), "query", "--format",
                               "csv", *words], env=env, capture_output=True, text=True)

    done = ask("SELECT count(*) > 0 AS some FROM python.backtrace", "--archive", "none")
    if number == SECCOMP:
        assert done.returncode == 1 and "seccomp filter was refused" in done.stderr, done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "some\ntrue\n"), done.stderr
    assert not [name for name in os.listdir("/dev/shm") + os.listdir("/tmp")
                if name.startswith(".probing-live-")], "a file is left"


def test_an_archive_without_landlock_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "archive/_probing").mkdir(parents=True)
    with jobs.python("import time; print('ready', flush=True); time.sleep(600)") as short:
        assert probe("-t", short.pid, "inject").returncode == 0
        jobs.wait_until(lambda: int(probe("-t", short.pid, "query", "--format", "csv",
                                          "SELECT count(*) FROM memory_usage").stdout.split()[-1]) > 0, what="rows")
        os.kill(short.pid, signal.SIGKILL)
        short.process.wait()
        assert probe("-t", short.pid, "archive", "--once", "--to", tmp_path / "archive").returncode == 0
    assert probe("query", "--archive", tmp_path / "archive", "SELECT count(*) FROM memory_usage").returncode == 0
    tmp_path.chmod(0o700)
    done = subprocess.run([*behind([LANDLOCK], EPERM), str(jobs.PROGRAM), "query", "--archive",
                           str(tmp_path / "archive"), "SELECT count(*) FROM memory_usage"],
                          env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and "Landlock" in done.stderr and "--archive none" in done.stderr, done.stderr


def test_doctor_is_content_where_all_is_there(job):
    done = probe("-t", job.pid, "doctor", "--format", "csv")
    (row,) = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["check"] == "sql"]
    assert row["state"] == "ok" and row["found"] == "in a sandbox of seccomp and Landlock", row
