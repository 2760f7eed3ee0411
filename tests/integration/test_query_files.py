"""Files: what export and query write is what other programs read, and the same as what DuckDB itself makes of the rows.
memory: the overview."""
import decimal
import math
import os
import re
import signal

import duckdb
import jobs
import pyarrow.parquet
import pytest
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
    done = probe("query", "-o", file, "SELECT 18446744073709551615 AS u, sum(range) AS big, now() AS at, INTERVAL '1 day' AS span, uuid() AS id, "
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
                  ["query", "-o", "x.parquet", "SELECT error('half way') FROM range(3)"], ["export", "a;b", "-o", "x.csv"],
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
    assert re.search(r"^growth +[+-][0-9.]+ MB a minute, over the \d+ s recorded", out, re.M)
    assert re.search(r"^[▁▂▃▄▅▆▇█]{3,}  [0-9.]+ to [0-9.]+ MB$", out, re.M) and "largest mappings" in out


def test_growth_is_seen_and_outlives_the_process():
    code = "import time\nkept = []\nprint('ready', flush=True)\nwhile True: kept.append(bytearray(2 << 20)); time.sleep(0.1)"
    with jobs.python(code) as leaking:
        assert probe(leaking.pid, "inject").returncode == 0
        grown = (leaking.pid, "query", "--format", "csv", "SELECT count(*) >= 4 AS any FROM memory_usage")
        jobs.wait_until(lambda: probe(*grown).stdout == "any\ntrue\n", what="four rows")
        os.kill(leaking.pid, signal.SIGKILL)
        leaking.process.wait()
        done = probe("-t", leaking.pid, "memory")
        assert done.returncode == 0, done.stderr
        # 20 MB a second.
        assert 600 < float(re.search(r"growth +([+-][0-9.]+) MB a minute", done.stdout).group(1)) < 2400
