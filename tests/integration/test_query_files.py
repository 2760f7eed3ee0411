"""Files: what export and query write is what other programs read, and the same as what DuckDB itself makes of the rows.
memory: the overview."""
import decimal
import fcntl
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import duckdb
import jobs
import pyarrow.parquet
import pytest
from archive_kit import writers_of
from jobs import probe

KINDS = """SELECT * FROM (VALUES
  (1, NULL::DOUBLE, 'a,"b"', 9223372036854775807, [1, NULL], {'k': 'v', 'n': [1.5]}, true, '\\x00ab'::BLOB, TIMESTAMP '1960-01-01 00:00:00.000001', DATE '0099-01-01', 12.34),
  (-1, 'nan', NULL, -9223372036854775808, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (0, 'inf', '', 0, [], {'k': NULL, 'n': []}, false, ''::BLOB, TIMESTAMP '2262-04-11 23:47:16.854775', DATE '2024-02-29', -0.01),
  (2, '-inf', 'é' || chr(10) || chr(9), 1, [2], {'k': '"', 'n': NULL}, true, 'x'::BLOB, TIMESTAMP '1969-12-31 23:59:59.999999', DATE '1970-01-01', 0.00),
  (3, -0.1, 'null', 2, [NULL], {'k': 'null', 'n': [0]}, NULL, '\\xFF'::BLOB, TIMESTAMP '2024-01-01', NULL, 99.99))
  t(i, d, s, big, list, struct, flag, blob, ts, day, money)"""


@pytest.fixture(scope="module")
def job():
    with jobs.python() as target:
        assert probe(target.pid, "inject").returncode == 0
        recorded = (target.pid, "query", "--format", "csv", "SELECT count(*) > 2 AS any FROM memory_usage")
        jobs.wait_until(lambda: probe(*recorded).stdout == "any\ntrue\n", what="three rows")
        yield target


def same(a, b):
    return a == b or isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)


def test_parquet_holds_exactly_what_duckdb_computes(tmp_path):
    file = tmp_path / "kinds.parquet"
    assert probe("query", "-o", file, KINDS).returncode == 0
    mine, theirs = duckdb.sql(f"FROM '{file}'"), duckdb.sql(KINDS)
    assert mine.columns == theirs.columns and [str(t) for t in mine.types] == [str(t) for t in theirs.types]
    for got, wanted in zip(mine.fetchall(), theirs.fetchall()):
        assert all(same(a, b) for a, b in zip(got, wanted)), (got, wanted)


def test_parquet_is_read_by_arrow_with_plain_types(tmp_path):
    file = tmp_path / "wide.parquet"
    done = probe("query", "-o", file, "SELECT 18446744073709551615 AS u, sum(range) AS big, now() AS at, INTERVAL '1 "
                                      "day' AS span, uuid() AS id, "
                                      "'a'::ENUM('a', 'b') AS e FROM range(10)")
    assert done.returncode == 0, done.stderr
    table = pyarrow.parquet.read_table(file)
    assert {name: str(table.schema.field(name).type) for name in ("at", "span", "id", "e")} == {
        "at": "timestamp[us]", "span": "string", "id": "string", "e": "string"}
    assert table["u"][0].as_py() == decimal.Decimal(18446744073709551615) and table["big"][0].as_py() == 45
    assert not [field for field in table.schema if str(field.type).startswith("uint")]


def test_export_writes_a_stretch_of_a_table(job, tmp_path):
    whole, none, text = tmp_path / "all.parquet", tmp_path / "none.parquet", tmp_path / "rows.csv"
    assert probe(job.pid, "export", "memory_usage", "-o", whole).returncode == 0
    table = pyarrow.parquet.read_table(whole)
    assert table.num_rows >= 3 and str(table.schema.field("timestamp").type) == "timestamp[us]"
    assert all(mb > 1 for mb in table["memory_mb"].to_pylist())
    assert probe(job.pid, "export", "memory_usage", "--until", "1h", "-o", none).returncode == 0
    assert pyarrow.parquet.read_table(none).num_rows == 0
    assert probe(job.pid, "export", "system.threads", "--format", "csv", "-o", text).returncode == 0
    assert text.read_text().startswith("tid,name,state,")
    assert sorted(os.listdir(tmp_path)) == ["all.parquet", "none.parquet", "rows.csv"]


def test_a_file_is_there_whole_or_not_at_all(job, tmp_path):
    for words in (["export", "nowhere", "-o", "x.parquet"], ["query", "-o", "x.parquet", "SELECT 1; SELECT 2"],
                  ["query", "-o", "x.parquet", "SELECT error('half way') FROM range(3)"],
                  ["export", "a;b", "-o", "x.csv"],
                  ["export", "memory_usage", "--since", "once", "-o", "x.csv"], ["export", "memory_usage"],
                  ["query", "--format", "parquet", "SELECT 1"]):
        done = probe(job.pid, *words, cwd=tmp_path)
        assert done.returncode in (1, 2) and done.stderr.startswith(f"probing: {words[0]}: "), (words, done.stderr)
    assert os.listdir(tmp_path) == []


def test_memory_is_an_overview(job):
    out = probe(job.pid, "memory").stdout
    rss = float(re.search(r"^in RAM +([0-9.]+) MB$", out, re.M).group(1))
    kernel = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{job.pid}/status").read()).group(1)) / 1024
    assert abs(rss - kernel) < 4
    assert re.search(r"^growth +not known yet: \d+ s are recorded, 60 are needed", out, re.M)
    assert re.search(r"^[▁▂▃▄▅▆▇█]{3,}  [0-9.]+ to [0-9.]+ MB$", out, re.M) and "largest mappings" in out


def peak_mb(path):
    try:
        return int(re.search(r"VmHWM:\s+(\d+) kB", (path / "status").read_text()).group(1)) / 1024
    except (OSError, AttributeError):
        return 0


def test_an_export_of_any_size_takes_little_memory(tmp_path):
    out = tmp_path / "wide.parquet"
    command = subprocess.Popen([jobs.PROGRAM, "query", "--timeout", "300", "-o", out,
                                "SELECT range AS n, repeat('x', 300) || range AS text FROM range(2500000)"])
    most = 0
    while command.poll() is None:
        most = max([most, *map(peak_mb, writers_of(command.pid))])
        time.sleep(0.05)
    assert command.returncode == 0 and most > 20
    assert most < 400, f"the writer held {most:.0f} MB of 770"
    assert pyarrow.parquet.read_metadata(out).num_rows == 2500000
    assert [path.name for path in tmp_path.iterdir()] == ["wide.parquet"]


@pytest.mark.parametrize("wait", [0.05, 1.5])
def test_what_is_stopped_leaves_no_file(tmp_path, wait):
    command = subprocess.Popen([jobs.PROGRAM, "query", "--timeout", "0", "-o", tmp_path / "out.parquet",
                                "SELECT range, repeat('y', 50) FROM range(1000000000)"],
                               stderr=subprocess.DEVNULL, start_new_session=True)
    jobs.wait_until(lambda: list(tmp_path.iterdir()), what="the file that is being written")
    time.sleep(wait)
    os.killpg(command.pid, signal.SIGINT)  # as Ctrl-C does: the writer gets it too
    assert command.wait(timeout=30) == 130
    jobs.wait_until(lambda: not writers_of(command.pid), what="the end of the writer")
    assert not list(tmp_path.iterdir())


# Root that may not read everything.
ORDINARY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


def test_an_archive_that_cannot_be_read_does_not_silence_the_list(tmp_path):
    (tmp_path / "_probing").mkdir(mode=0)
    with jobs.python("import time; print('ready', flush=True); time.sleep(60)") as job:
        done = subprocess.run([*(ORDINARY if os.geteuid() == 0 else []), jobs.PROGRAM, "list", "--format", "csv"],
                              env={**os.environ, "PROBING_ARCHIVE": str(tmp_path)}, capture_output=True, text=True)
        assert done.returncode == 0 and f"\n{job.pid}," in done.stdout and "archived runs are missing" in done.stderr


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_a_terminal_is_told_nothing_by_a_command_line(form):
    with jobs.start(sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)",
                    "a\x1b]0;evil\x07b", ready="ready"):
        leader, follower = pty.openpty()
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 400, 0, 0))
        command = subprocess.Popen([jobs.PROGRAM, "list", "--format", form], stdout=follower)
        os.close(follower)
        text = b""
        while True:
            try:
                more = os.read(leader, 65536)
            except OSError:
                break
            if not more:
                break
            text += more
        assert command.wait() == 0
        os.close(leader)
        assert b"evil" in text and b"\x1b]0;evil" not in text and b"\x07" not in text
        plain = jobs.probe("list", "--format", form).stdout
        assert "a\x1b]0;evil\x07b" in plain  # a program gets what is there
