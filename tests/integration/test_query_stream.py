"""Rows leave the worker while a query runs; a slow reader costs a bounded buffer; what a client does wrong costs no
worker."""
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

import jobs

ENDLESS = "SELECT range AS n FROM range(1000000000000)"


class Workers:
    """Queries with a worker of their own: a copy of the program, so that /proc tells it from all others."""

    def __init__(self, folder):
        self.program = folder / "bin/probing-sql"
        (folder / "bin").mkdir()
        (folder / "run").mkdir(mode=0o700)
        shutil.copy(jobs.PROGRAM.parent / "probing-sql", self.program)
        (folder / "lib").mkdir()
        (folder / "lib/probing").symlink_to((jobs.PROGRAM.parent.parent / "lib/probing").resolve())
        self.sockets = folder / "run/probing"
        self.env = {**os.environ, "PROBING_SQL_WORKER": str(self.program), "XDG_RUNTIME_DIR": str(folder / "run")}

    def pids(self):
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and os.readlink(path / "exe") == str(self.program):
                    found.append(int(path.name))
        return found

    def start(self, *words, **options):
        return subprocess.Popen([jobs.PROGRAM, "query", *words], env=self.env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)

    def ask(self, *words):
        return subprocess.run([jobs.PROGRAM, "query", "--format", "csv", *words], env=self.env, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=60)

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(20)
        with contextlib.chdir(self.sockets) if hasattr(contextlib, "chdir") else _folder(self.sockets):
            client.connect(next(path.name for path in self.sockets.iterdir() if re.match(r"sql-\d+-", path.name)))
        return client

    def is_free(self):
        with open(self.sockets / "sql-0.lock") as lock, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def check_the_same(self, pid):
        """The worker is soon free again, and it is the one that answers: the first slot is its."""
        jobs.wait_until(self.is_free, what="the worker's being free again")
        before = self.pids()
        done = self.ask("SELECT 6 * 7 AS n")
        assert done.stdout == "n\n42\n", done.stderr
        assert pid in before and self.pids() == before


@contextlib.contextmanager
def _folder(path):
    before = os.getcwd()
    os.chdir(path)
    yield
    os.chdir(before)


@pytest.fixture
def workers(tmp_path):
    workers = Workers(tmp_path)
    yield workers
    for pid in workers.pids():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def warm(workers):
    """With one worker, which has answered."""
    assert workers.ask("SELECT 1").returncode == 0
    (workers.pid,) = workers.pids()
    return workers


def peak_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def test_first_rows_appear_before_the_query_ends_and_its_end_costs_no_worker(warm):
    for form, first in (("csv", b"n\n"), ("jsonl", b'{"n": 0}\n')):
        query = warm.start("--format", form, "--timeout", "60", ENDLESS)
        assert query.stdout.readline() == first
        query.send_signal(signal.SIGINT)
        query.stdout.read()
        assert query.wait(10) == 130
        warm.check_the_same(warm.pid)


def test_ten_million_rows_for_a_slow_reader_take_little_memory(warm):
    rows = 10000000
    query = warm.start("--format", "csv", "--timeout", "120", f"SELECT range AS n, range * 1.5 AS x, 'name-' || (range "
                                                              f"% 1000) AS s FROM range({rows})")
    assert query.stdout.readline() == b"n,x,s\n"
    time.sleep(1.5)  # in which nobody reads
    assert query.poll() is None
    lines = sum(block.count(b"\n") for block in iter(lambda: query.stdout.read(1 << 20), b""))
    assert query.wait(10) == 0 and lines == rows
    # The library, without anything in it, is 35 MB.
    assert peak_mb(warm.pid) < 120, "the worker held the result"
    warm.check_the_same(warm.pid)


def test_the_tool_holds_no_rows_for_a_reader_that_stopped(warm):
    query = warm.start("--format", "csv", "--timeout", "60", ENDLESS)
    assert query.stdout.readline() == b"n\n"
    time.sleep(1)
    assert peak_mb(query.pid) < 20 and peak_mb(warm.pid) < 120
    query.kill()
    query.wait()
    warm.check_the_same(warm.pid)


def test_a_reader_that_stops_is_not_a_worker_that_failed(warm):
    query = warm.start("--format", "csv", "--timeout", "1", ENDLESS)
    assert query.stdout.readline() == b"n\n"
    time.sleep(2)
    # Its time is over: the worker serves others, though nobody has read on.
    began = jobs.calm()
    warm.check_the_same(warm.pid)
    assert jobs.calm() - began < 20
    query.stdout.read()
    assert query.wait(10) == 1
    said = query.stderr.read().decode()
    assert "not read fast enough" in said and "worker" not in said, said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_dies_in_the_middle_costs_no_worker(warm, how):
    for sql in (ENDLESS, "SELECT count(*) FROM range(100000000000) WHERE hash(range) = 1"):
        query = warm.start("--timeout", "60", sql)
        time.sleep(0.5)
        query.send_signal(how)
        query.communicate()
        warm.check_the_same(warm.pid)


def test_a_query_that_takes_too_long_costs_no_worker(warm):
    done = warm.ask("--timeout", "500ms", "SELECT count(*) FROM range(100000000000) WHERE hash(range) = 1")
    assert done.returncode == 1 and "longer than 0.5 s" in done.stderr
    warm.check_the_same(warm.pid)


HEADER = struct.Struct("<BI")
HELLO, REQUEST, LIVE, DONE, ERROR = 1, 2, 4, 12, 13


def request(sql, timeout_ms=1000, sources=0):
    fields = struct.pack("<IIQQII", timeout_ms, 0, 0, 0, sources, len(sql))  # flags, now and cap of rows: of a cluster
    return HEADER.pack(REQUEST, len(fields) + len(sql)) + fields + sql


def messages(client):
    """Types and payloads until the worker hangs up."""
    stream = client.makefile("rb")
    with contextlib.suppress(ConnectionResetError):  # it leaves without having read all
        while len(head := stream.read(HEADER.size)) == HEADER.size:
            kind, size = HEADER.unpack(head)
            yield kind, stream.read(size)


GARBAGE = {
    "noise": os.urandom(4096),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a huge message": HEADER.pack(REQUEST, 1 << 31),
    "an unknown message": HEADER.pack(99, 0),
    "an answer nobody asked for": HEADER.pack(LIVE, 4) + struct.pack("<I", 0),
    "a request cut off": HEADER.pack(REQUEST, 8) + struct.pack("<II", 1000, 0),
    "more sources than there are": request(b"SELECT 1", sources=100000),
}


@pytest.mark.parametrize("what", GARBAGE.values(), ids=GARBAGE)
def test_a_client_that_talks_nonsense_is_told_so_and_costs_no_worker(warm, what):
    with warm.connect() as client:
        client.sendall(what)
        said = list(messages(client))
    assert said[0][0] == HELLO and said[-1][0] == ERROR and b"no " in said[-1][1], said
    warm.check_the_same(warm.pid)


def test_a_client_that_leaves_anywhere_costs_no_worker(warm):
    whole = request(b"SELECT range FROM range(1000000000000)")
    for n in (0, 3, 8, 20, len(whole)):
        with warm.connect() as client:
            client.sendall(whole[:n])
        warm.check_the_same(warm.pid)


def test_a_client_that_never_reads_costs_a_worker_no_longer_than_its_time(warm):
    with warm.connect() as client:
        client.sendall(request(b"SELECT range FROM range(1000000000000)", timeout_ms=1000))
        began = jobs.calm()
        warm.check_the_same(warm.pid)
        assert jobs.calm() - began < 20


def test_a_request_for_what_is_not_there_is_answered_and_the_next_one_too(warm):
    """Also of a client that has said all it has to say: it still reads."""
    for _ in range(100):
        with warm.connect() as client:
            client.sendall(b"".join(request(sql, 60000)
                                    for sql in (b"SELECT * FROM nowhere", b"DROP TABLE x", b"SELECT 1")))
            client.shutdown(socket.SHUT_WR)
            ends = [(kind, text) for kind, text in messages(client) if kind in (ERROR, DONE)]
        assert [kind for kind, _ in ends] == [ERROR, ERROR, DONE], ends
    warm.check_the_same(warm.pid)


def test_the_end_of_one_query_is_not_the_end_of_the_next(warm):
    """Queries that end about when their time is up, each followed by one that has time."""
    for ms in range(5, 85, 2):
        with warm.connect() as client:
            client.sendall(request(b"SELECT count(*) FROM range(10000000) WHERE hash(range) = 1", ms)
                           + request(b"SELECT 1", 60000))
            client.shutdown(socket.SHUT_WR)
            ends = [(kind, text) for kind, text in messages(client) if kind in (ERROR, DONE)]
        # A worker hangs up after a query that it had to stop.
        assert ends[-1][0] == DONE if len(ends) == 2 else b"longer than" in ends[-1][1], ends
        with warm.connect() as client:
            client.sendall(request(b"SELECT 1", 60000))
            client.shutdown(socket.SHUT_WR)
            ends = [(kind, text) for kind, text in messages(client) if kind in (ERROR, DONE)]
        assert [kind for kind, _ in ends] == [DONE], ends
    warm.check_the_same(warm.pid)


def test_a_failure_in_the_middle_ends_what_was_written_properly(warm, tmp_path):
    sql = "SELECT CASE WHEN range = 2000000 THEN error('boom') ELSE '' END AS v FROM range(3000000)"
    done = subprocess.run([jobs.PROGRAM, "query", "--format", "json", sql], env=warm.env, capture_output=True,
                          text=True)
    assert done.returncode == 1 and done.stderr == "probing: query: Invalid Input Error: boom\n"
    assert len(json.loads(done.stdout)) > 1000000
    # A file is there whole or not at all.
    assert warm.ask("-o", str(tmp_path / "v.csv"), sql).returncode == 1 and not (tmp_path / "v.csv").exists()
    warm.check_the_same(warm.pid)
