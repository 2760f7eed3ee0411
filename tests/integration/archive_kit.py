"""A writer of rows with an archive of its own, for tests of `archive`."""
import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import jobs
import pytest

SUM = "SELECT count(*), count(DISTINCT n), min(n), max(n), bool_and(proof = n * 31 + 7) FROM test.stream"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    binary = tmp_path_factory.mktemp("writer") / "archive_writer"
    subprocess.run(["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", f"-I{jobs.TOP / 'src'}", "-pthread", "-o", binary,
                    jobs.TOP / "tests/integration/targets/archive_writer.c",
                    *sorted((jobs.TOP / "src/table").glob("*.c"))], check=True)
    return binary


class Writer:
    """A run that writes rows on request, and an archive of its own."""

    def __init__(self, until_end, program, where, bound, segment, job, rank):
        self.archive = where / "archive"
        self.env = {**os.environ, "PROBING_DIR": str(where), "PROBING_ARCHIVE": str(self.archive)}
        self.process = until_end.enter_context(jobs.own_number(
            [program, str(bound), str(segment), job, rank], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env,
            universal_newlines=True))
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, words):
        self.say(words)
        return int(self.process.stdout.readline())

    def say(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def probe(self, *words, env_more=None, **options):
        return jobs.probe(*words, env={**self.env, **(env_more or {})}, **options)

    def archived(self, *words):
        done = self.probe("-t", self.pid, "archive", *(words or ["--once"]))
        assert done.returncode == 0, done.stderr
        return done

    def rows(self, sql=SUM, *words):
        done = self.probe("-t", self.pid, "query", "--format", "csv", *words, sql)
        assert done.returncode == 0, done.stderr
        return [line.split(",") for line in done.stdout.splitlines()[1:]]

    def count(self):
        """Rows, after a look at each: all are different, whole, and nothing is between them that is not there."""
        n, different, first, last, whole = self.rows()[0]
        assert n == different and whole == "true", (n, different, whole)
        return int(n), int(first), int(last)

    def listed(self, table="test.stream"):
        """Row counts from `tables` and probing.tables."""
        [[count]] = self.rows(f"SELECT rows FROM probing.tables WHERE name = '{table}'")
        assert self.rows(f"SELECT count(*) > 5 FROM probing.columns WHERE \"table\" = '{table}'") == [["true"]]
        if self.process.poll() is not None:  # one that runs would be injected
            rows = json.loads(self.probe("-t", self.pid, "tables", "--format", "json").stdout)
            assert [str(row["rows"]) for row in rows if row["table"] == table] == [count]
        return int(count)

    def files(self, table="test.stream"):
        return sorted(self.archive.glob(f"{table}/*/*/*/*/*.parquet"))

    def glob(self, table="test.stream"):
        return f"{self.archive}/{table}/*/*/*/*/*.parquet"

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def writer(program, tmp_path):
    with ExitStack() as until_end:
        yield lambda bound=4 << 20, segment=1 << 16, job="a/b c", rank="3", where=tmp_path: Writer(
            until_end, program, where, bound, segment, job, rank)


def writers_of(pid):
    """The processes that write Parquet for a command."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            if len(command) > 3 and command[0].endswith(b"probing-sql") and command[
                1] == b"parquet" and f".{pid}.part".encode() in command[3]:
                found.append(path)
        except OSError:
            pass
    return found
