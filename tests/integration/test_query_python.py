"""probing.query in Python: of this process and of others, without hanging on oneself."""
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time as datetime_time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import jobs
import pandas
import polars
import pyarrow
import pytest
from interpreters import INTERPRETERS, interpreter_id

sys.path.insert(0, str(jobs.TOP / "python"))
import probing  # noqa: E402

CODE = """
import sys; sys.path.insert(0, {path!r})
import probing
def waiting_for_an_answer():
    return probing.query("SELECT func, is_gil FROM python.backtrace WHERE func LIKE '%answer' ORDER BY depth")
rows = waiting_for_an_answer()
print(rows[0]["func"], rows.columns, len(probing.query("SELECT 1 AS a WHERE false")))
try:
    probing.query("SELECT * FROM nowhere")
except probing.Error as error:
    print("there is no table nowhere" in str(error))
"""


@pytest.fixture(autouse=True)
def program(monkeypatch):
    monkeypatch.setenv("PROBING_PROGRAM", str(jobs.PROGRAM))


@pytest.mark.parametrize("python", INTERPRETERS, ids=interpreter_id)
def test_a_process_asks_about_itself(python):
    code = CODE.format(path=str(jobs.TOP / "python"))
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          timeout=60)
    assert done.stdout == "waiting_for_an_answer ['func', 'is_gil'] 0\nTrue\n", done.stderr


# SQL, and the value of Python that it must become, of that very type.
VALUES = [
    ("9223372036854775807::BIGINT", 9223372036854775807), ("18446744073709551615::UBIGINT", 18446744073709551615),
    ("(-170141183460469231731687303715884105728)::HUGEINT", -2**127),
    ("340282366920938463463374607431768211455::UHUGEINT", 2**128 - 1),
    ("0.1::DOUBLE", 0.1), ("'-inf'::DOUBLE", -math.inf), ("1e300::DOUBLE", 1e300), ("0.1::FLOAT", 0.1),
    ("12.30::DECIMAL(10,2)", Decimal("12.30")), ("-0.000000000000000000000000000000000001::DECIMAL(38,36)",
                                                 Decimal("-1E-36")),
    ("7::DECIMAL(38,0)", Decimal(7)), ("true", True), ("NULL", None), ("'é' || chr(8232) || '\n\"'", 'é\u2028\n"'),
    ("'a\\x00\\xFF\\x5C'::BLOB", b"a\x00\xff\\"), ("'12345678-1234-5678-1234-567812345678'::UUID",
                                                   UUID("12345678123456781234567812345678")),
    ("TIMESTAMP '1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ("TIMESTAMP '2024-02-29 00:00:00'", datetime(2024, 2, 29)),
    ("TIMESTAMPTZ '2024-01-01 12:00:00.5+01'", datetime(2024, 1, 1, 11, 0, 0, 500000, timezone.utc)),
    ("TIMESTAMP_NS '2024-01-01 00:00:00.123456789'", "2024-01-01 00:00:00.123456789"),
    ("TIMESTAMP_NS '2024-01-01 00:00:00.123456'", datetime(2024, 1, 1, 0, 0, 0, 123456)),
    ("TIMESTAMP_S '2024-01-01 00:00:01'", datetime(2024, 1, 1, 0, 0, 1)),
    ("'infinity'::TIMESTAMP", "infinity"), ("DATE '2024-12-31'", date(2024, 12, 31)),
    ("DATE '0044-03-15 (BC)'", "0044-03-15 (BC)"),
    ("TIME '12:34:56.7'", datetime_time(12, 34, 56, 700000)), ("INTERVAL '1 day 2 hours'", timedelta(days=1, hours=2)),
    ("INTERVAL '-90.5 seconds'", timedelta(seconds=-90.5)), ("INTERVAL '0 seconds'", timedelta()),
    ("INTERVAL '1 month'", "1 month"),
    ("[1, NULL, 3]", [1, None, 3]), ("[[DATE '2024-01-01'], []]", [[date(2024, 1, 1)], []]),
    ("[1.5, 2.5]::DECIMAL(4,1)[2]", [Decimal("1.5"), Decimal("2.5")]),
    ("{'a \"b': 1, 'n': {'t': TIME '01:02:03'}}", {'a "b': 1, "n": {"t": datetime_time(1, 2, 3)}}),
    ("MAP {'k': [0.5]}::MAP(VARCHAR, DOUBLE[])", {"k": [0.5]}), ("MAP {1: 'one', 2: NULL}", {1: "one", 2: None}),
    ("MAP {DATE '2024-01-01': 1}", {date(2024, 1, 1): 1}), ("MAP {[1]: 2}", [([1], 2)]), ("'x'::ENUM('x', 'y')", "x"),
]


def test_every_value_has_its_own_type_and_nothing_is_lost():
    rows = probing.query("SELECT " + ", ".join("%s AS v%d" % (sql, i) for i, (sql, _) in enumerate(VALUES)))
    for (sql, expected), got in zip(VALUES, rows[0].values()):
        assert (type(got), got) == (type(expected), expected), sql
    assert math.isnan(probing.query("SELECT 'nan'::DOUBLE AS n")[0]["n"])
    assert rows.types[0] == "BIGINT" and rows.columns[:2] == ["v0", "v1"]


def test_columns_that_are_called_alike_and_statements_that_are_many():
    rows = probing.query("SELECT 1 AS a, 2 AS a, 3 AS a_1")
    assert rows == [{"a": 1, "a_1": 2, "a_1_1": 3}]
    assert probing.query("SELECT 1 AS a; SELECT 2 AS b WHERE false").columns == ["b"]
    assert probing.query("SELECT {'columns': 1} AS a")[0] == {"a": {"columns": 1}}
    assert "GROUP BY ALL" in probing.query("SELECT src_rank, avg(latency_ms) FROM comm_metrics").notes[0]


def test_another_process_is_asked_by_pid():
    with jobs.python() as job:
        assert probing.query("SELECT pid FROM system.process", target=job.pid) == [{"pid": job.pid}]


def test_other_threads_run_meanwhile():
    turns, stop = [], threading.Event()

    def turn():
        while not stop.is_set():
            turns.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=turn)
    thread.start()
    began = time.monotonic()
    probing.query("SELECT count(*) FROM range(300000000)")
    took = time.monotonic() - began
    stop.set()
    thread.join()
    assert len([at for at in turns if at > began]) > took * 100


MIXED = """SELECT * FROM (VALUES (9223372036854775807, 12.30::DECIMAL(10,2), TIMESTAMP '2024-01-01 00:00:00.000001', INTERVAL '1 hour', 'é', 'a'::BLOB,
    [1, NULL], {'a': 1}, MAP {1: 'x'}, true, 0.5::DOUBLE, 1::HUGEINT, DATE '2024-01-01', TIMESTAMPTZ '2024-01-01 00:00:00+00', TIME '01:02:03'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL))
    t(i, d, t, v, s, b, l, st, m, f, x, h, day, tz, c)"""


def test_it_becomes_arrow():
    table = probing.query(MIXED).to_arrow()
    assert [str(field.type) for field in table.schema] == [
        "int64", "decimal128(10, 2)", "timestamp[us]", "duration[us]", "string", "binary", "list<item: int32>",
        "struct<a: int32>",
        "map<int32, string>", "bool", "double", "decimal256(39, 0)", "date32[day]", "timestamp[us, tz=UTC]",
        "time64[us]"]
    first, second = table.to_pylist()
    assert first["i"] == 9223372036854775807
    assert first["d"] == Decimal("12.30")
    assert first["m"] == [(1, "x")]
    assert set(second.values()) == {None}
    # A result without rows keeps its types, and what a type cannot hold is text.
    assert probing.query(MIXED + " WHERE false").to_arrow().schema == table.schema
    assert probing.query("SELECT INTERVAL '1 month' AS v, 'infinity'::TIMESTAMP AS t").to_arrow().to_pylist() == [
        {"v": "1 month", "t": "infinity"}]
    assert pyarrow.types.is_string(probing.query("SELECT uuid() AS u").to_arrow().schema.field("u").type)


def test_it_becomes_pandas():
    frame = probing.query(MIXED).to_pandas()
    assert frame["i"].dtype == "Int64" and frame["i"][0] == 9223372036854775807 and frame["i"][1] is pandas.NA
    assert frame["d"][0] == Decimal("12.30")
    assert frame["t"][0] == pandas.Timestamp("2024-01-01 00:00:00.000001")
    assert frame["f"].dtype == "boolean"
    assert str(frame["t"].dtype).startswith("datetime64")
    assert frame["v"][0] == pandas.Timedelta(hours=1)
    assert frame["l"][0] == [1, None]
    assert probing.query("SELECT 1 AS a").to_pandas()["a"].dtype == "int32"
    empty = probing.query("SELECT 1::BIGINT AS a, 'x' AS b WHERE false").to_pandas()
    assert list(empty.columns) == ["a", "b"] and empty["a"].dtype == "int64" and len(empty) == 0


def test_it_becomes_polars():
    frame = probing.query(MIXED).to_polars()
    assert frame.schema["i"] == polars.Int64
    assert frame.schema["d"] == polars.Decimal(10, 2)
    assert frame.schema["t"] == polars.Datetime("us")
    assert frame.schema["l"] == polars.List(polars.Int32)
    assert frame.schema["v"] == polars.Duration("us")
    assert frame.schema["b"] == polars.Binary
    row = frame.row(0, named=True)
    assert row["i"] == 9223372036854775807 and row["d"] == Decimal("12.30") and row["st"] == {"a": 1} and row["h"] == 1
    assert frame.row(1) == (None,) * 15 and probing.query(MIXED + " WHERE false").to_polars().schema == frame.schema


def test_a_notebook_shows_a_table():
    rows = probing.query("SELECT range AS n, CASE WHEN range = 1 THEN NULL ELSE '<b>&' END AS \"<i>\" FROM range(200)")
    shown = rows._repr_html_()
    assert shown.startswith("<table><thead><tr><th>n</th><th>&lt;i&gt;</th>")
    assert "<td>0</td><td>&lt;b&gt;&amp;</td>" in shown
    assert "<td>1</td><td><i>NULL</i></td>" in shown and shown.count("<tr>") == 101 and "100 of 200 rows" in shown


FOR_EVER = "SELECT count(*) FROM range(1000000000000)"


def children():
    """Of this process, of any of its threads."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found += open(f"/proc/self/task/{task}/children").read().split()
        except FileNotFoundError:
            pass  # a thread that has ended since
    return found


def test_an_interrupt_ends_it_and_leaves_nothing():
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = jobs.calm()
    with pytest.raises(KeyboardInterrupt):
        probing.query(FOR_EVER)
    assert jobs.calm() - began < 5
    assert not children()
    assert probing.query("SELECT 1 AS a") == [{"a": 1}]


def test_the_time_is_kept():
    with pytest.raises(probing.Error, match="longer than 0.3 s"):
        probing.query(FOR_EVER, timeout=0.3)
    assert not children()


def test_many_threads_ask_at_once():
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda i: probing.query(f"SELECT {i} AS i, pid FROM system.process")[0], range(36)))
    assert found == [{"i": i, "pid": os.getpid()} for i in range(36)] and not children()


def test_a_fork_meanwhile_holds_nobody_up():
    """A child of fork inherits every descriptor: the data loaders of a training job do."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [probing.query("SELECT count(*) AS n FROM range(1000000)")[0]["n"]
                                     for _ in range(10)])
        sleepers = []
        while not asked.done():
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            sleepers.append(pid)
            time.sleep(0.02)
        for pid in sleepers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert asked.result() == [1000000] * 10 and len(sleepers) < 500
    # The child asks about itself, not about its parent.
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"%d" % probing.query("SELECT pid FROM system.process")[0]["pid"])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(read, 100)) == pid


def test_an_ignored_sigchld_hides_no_error():
    code = CODE.format(path=str(jobs.TOP / "python"))
    done = subprocess.run([sys.executable, "-c", "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
                           + code], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
    assert done.stdout.endswith("0\nTrue\n"), done.stderr


def test_without_the_program_it_says_so(monkeypatch):
    monkeypatch.setenv("PROBING_PROGRAM", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(probing.Error, match="not on this machine"):
        probing.query("SELECT 1")
