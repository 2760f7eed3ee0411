"""What query writes: every value exact in every format, whole files or none, any size through bounded memory."""
import csv
import datetime
import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
from decimal import Decimal

import jobs
import pytest
from jobs import probe

# SQL, its exact text, and what JSON has for it.
VALUES = [
    ("NULL::INTEGER", None, None), ("''", "", ""), ("'NULL'", "NULL", "NULL"), ("'a,\"b\"'", 'a,"b"', 'a,"b"'),
    ("'tab' || chr(9) || 'line' || chr(10) || 'cr' || chr(13) || '|\\N'", "tab\tline\ncr\r|\\N", "tab\tline\ncr\r|\\N"),
    ("9223372036854775807::BIGINT", "9223372036854775807", 9223372036854775807),
    ("18446744073709551615::UBIGINT", "18446744073709551615", 2**64 - 1),
    ("(-170141183460469231731687303715884105728)::HUGEINT", str(-2**127), -2**127),
    ("340282366920938463463374607431768211455::UHUGEINT", str(2**128 - 1), 2**128 - 1),
    ("1.50::DECIMAL(38,2)", "1.50", 1.5),
    ("0.1::DOUBLE", "0.1", 0.1), ("1e-300::DOUBLE", "1e-300", 1e-300), ("'nan'::DOUBLE", "nan", "nan"),
    ("'-inf'::FLOAT", "-inf", "-inf"),
    ("true", "true", True), ("[1, NULL, 3]", "[1, null, 3]", [1, None, 3]),
    ("{'k': 'v\"', 'n': NULL}", '{"k": "v\\"", "n": null}', {"k": 'v"', "n": None}),
    ("MAP {'a': [0.5]}::MAP(VARCHAR, DOUBLE[])", '{"a": [0.5]}', {"a": [0.5]}),
    ("MAP {1: 'x'}", '[[1, "x"]]', [[1, "x"]]),
    ("TIMESTAMP '1969-12-31 23:59:59.000001'", "1969-12-31 23:59:59.000001", "1969-12-31 23:59:59.000001"),
    ("TIMESTAMPTZ '2024-01-01 00:00:00+00'", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00+00"),
    ("INTERVAL '1 month -3 days 00:00:00.5'", "1 month -3 days 00:00:00.5", "1 month -3 days 00:00:00.5"),
    ("'01:02:03.5-11:30'::TIMETZ", "01:02:03.5-11:30", "01:02:03.5-11:30"), ("'10110'::BIT", "10110", "10110"),
    ("'a\\xFF\\x00'::BLOB", "a\\xFF\\x00", "a\\xFF\\x00"),
    ("'12345678-1234-5678-1234-567812345678'::UUID",) + ("12345678-1234-5678-1234-567812345678",) * 2,
    ("'é中' || chr(8238) || chr(133)", "é中\u202e\x85", "é中\u202e\x85"),
]
SQL = "SELECT " + ", ".join(f"{sql} AS v{i}" for i, (sql, *_) in enumerate(VALUES))


def output(*words):
    done = subprocess.run([jobs.PROGRAM, "query", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_csv_and_tsv_give_every_value_back():
    text = output("--format", "csv", SQL)
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[1] == ["" if value is None else value for _, value, _ in VALUES]
    # What csv readers cannot tell apart, its text can: NULL is nothing, an empty string is quoted.
    assert text.split("\n", 1)[1].startswith(',"","NULL",')
    line = output("--format", "tsv", SQL).split("\n")[1]

    def unescape(cell):
        for escaped, plain in (("\\\\", "\0"), ("\\t", "\t"), ("\\n", "\n"), ("\\r", "\r"), ("\0", "\\")):
            cell = cell.replace(escaped, plain)
        return cell

    cells = [None if cell == "\\N" else unescape(cell) for cell in line.split("\t")]
    assert cells == [value for _, value, _ in VALUES]


def test_json_gives_every_value_back():
    expected = {f"v{i}": value for i, (*_, value) in enumerate(VALUES)}
    assert json.loads(output("--format", "json", SQL)) == [expected] == [json.loads(output("--format", "jsonl", SQL))]
    assert json.loads(output("--format", "json", "SELECT 1 AS a, 2 AS a, 3 AS a_1")) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def read_arrow(data):
    table = pytest.importorskip("pyarrow.ipc").open_stream(data).read_all()
    table.validate(full=True)
    return table


def test_arrow_gives_every_value_back():
    def arrow(*words):
        return read_arrow(subprocess.run([jobs.PROGRAM, "query", "--format", "arrow", *words], stdout=subprocess.PIPE,
                                         check=True).stdout)
    typed = {"9223372036854775807::BIGINT": 2**63 - 1, "1.50::DECIMAL(38,2)": Decimal("1.50"),
             "'nan'::DOUBLE": math.nan, "'-inf'::FLOAT": -math.inf,
             "(-170141183460469231731687303715884105728)::HUGEINT": Decimal(-2**127),
             "340282366920938463463374607431768211455::UHUGEINT": str(2**128 - 1),
             "TIMESTAMP '1969-12-31 23:59:59.000001'": datetime.datetime(1969, 12, 31, 23, 59, 59, 1),
             "TIMESTAMPTZ '2024-01-01 00:00:00+00'": datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
             "INTERVAL '1 month -3 days 00:00:00.5'": (1, -3, 500_000_000), "'a\\xFF\\x00'::BLOB": b"a\xff\x00"}
    row, = arrow(SQL).to_pylist()
    for (sql, text, value), came in zip(VALUES, row.values()):
        want = typed.get(sql, text if isinstance(value, (list, dict)) else value)  # lists, structs and maps are JSON
        assert came == want or came != came and want != want, sql
    # More than one batch, with holes, and columns without a value; then nothing at all.
    many = arrow("SELECT range AS n, CASE WHEN range % 3 > 0 THEN 'x' || range END AS t, range % 2 = 0 AS "
                 "b, NULL AS z, "
                 "CASE WHEN range % 5 = 1 THEN gen_random_uuid() END AS u FROM range(5003)")
    assert many.drop_columns("u").to_pylist() == [{"n": n, "t": f"x{n}" if n % 3 else None, "b": n % 2 == 0, "z": None}
                                                  for n in range(5003)]
    assert [len(u) if u else 0 for u in many["u"].to_pylist()] == [36 if n % 5 == 1 else 0 for n in range(5003)]
    assert pytest.importorskip("polars").from_arrow(many)["n"].sum() == sum(range(5003))
    none = arrow("SELECT 1::UTINYINT AS a, DATE '2024-01-01' AS d WHERE false")
    assert (none.num_rows, list(map(str, none.schema.types))) == (0, ["uint8", "date32[day]"])


def test_arrow_holds_one_result_and_is_nothing_for_a_terminal(tmp_path):
    two = probe("query", "--format", "arrow", "-o", tmp_path / "x.arrows", "SELECT 1; SELECT 2")
    assert two.returncode == 1 and "one statement" in two.stderr and not list(tmp_path.iterdir())
    assert probe("query", "-o", tmp_path / "x.arrows", "SELECT 7 AS n").returncode == 0
    assert read_arrow((tmp_path / "x.arrows").read_bytes()).to_pylist() == [{"n": 7}]
    shown = subprocess.run(["script", "-qec", f"'{jobs.PROGRAM}' query --format arrow 'SELECT 1'", "/dev/null"],
                           capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert shown.returncode == 2 and "nothing for a terminal" in shown.stdout


def test_markdown_shows_what_is_there():
    assert output("--format", "markdown", "SELECT 'a|b' || chr(10) || '<i>&`*__init__*`' AS \"x|y\", NULL AS n") == (
        "| x\\|y | n |\n| --- | --- |\n| a\\|b<br>&lt;i>&amp;\\`\\*\\_\\_init\\_\\_\\*\\` | NULL |\n")


def test_a_table_and_its_expanded_form_show_odd_characters_by_number():
    sql = "SELECT 'a' || chr(0) || chr(27) || '[31m' || chr(10) || 'z' AS \"n\nm\", '中' AS w, 1 AS i"
    assert output(sql).splitlines() == [r"n\nm              w   i", r"a\x00\x1b[31m\nz  中  1"]
    assert output("--expanded", sql).splitlines() == ["-- row 1", r"n\nm: a\x00\x1b[31m", "      z", "   w: 中",
                                                      "   i: 1"]


def test_several_statements_in_every_format(tmp_path):
    sql = "SELECT 1 AS a; SELECT 'x' AS b, NULL AS c WHERE false"
    assert output("--format", "csv", sql) == "a\n1\n\nb,c\n" and output("--format", "tsv", sql) == "a\n1\n\nb\tc\n"
    assert output("--format", "jsonl", sql) == '{"a": 1}\n'
    assert output("--format", "json", sql) == '[\n  {"a": 1}\n]\n\n[]\n'
    assert output(sql) == "a\n1\n\nb  c\n"
    assert output("--format", "markdown", sql).endswith("\n\n| b | c |\n| --- | --- |\n")
    done = probe("query", "-o", tmp_path / "x.parquet", sql)
    assert done.returncode == 1 and "one result" in done.stderr and not os.listdir(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make links of another user")
@pytest.mark.parametrize("words", [["query", "SELECT 1 AS a"], ["flamegraph", "-d", "0.2", "--idle"]],
                         ids=lambda words: words[0])
def test_a_link_of_another_user_is_replaced_wherever_it_leads(tmp_path, words):
    ending = "csv" if words[0] == "query" else "folded"
    file, device, own = tmp_path / "file", tmp_path / "device", tmp_path / f"own.{ending}"
    file.write_text("precious")
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    own.symlink_to(device)
    with jobs.python() as job:
        for to in (file, device):
            link = tmp_path / f"to-{to.name}.{ending}"
            link.symlink_to(to)
            os.lchown(link, 64201, 64201)
            done = probe("-t", job.pid, *words, "-o", link)
            assert done.returncode == 0 and not link.is_symlink() and link.stat().st_size > 0, (link, done)
        # One's own is followed to a device.
        assert probe("-t", job.pid, *words, "-o", own).returncode == 0 and own.is_symlink()
    assert file.read_text() == "precious" and stat.S_ISCHR(device.stat().st_mode)


def test_a_file_is_replaced_whole_and_nothing_else_is(tmp_path):
    file, link = tmp_path / "file.txt", tmp_path / "link.txt"
    file.write_text("before")
    link.symlink_to(file)
    assert output("--format", "table", "-o", link, "SELECT 1 AS a") == ""
    assert link.is_symlink() and file.read_text() == "a\n1\n" and len(os.listdir(tmp_path)) == 2
    before = os.stat("/dev/null")
    assert output("-o", "/dev/null", "SELECT 1") == "" and os.stat("/dev/null").st_ino == before.st_ino
    done = probe("query", "-o", "/dev/full", "SELECT 1")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr
    done = probe("query", "-o", tmp_path / "none" / "x.csv", "SELECT 1")
    assert done.returncode == 1 and "cannot be written: No such file" in done.stderr


def test_a_reader_that_leaves_ends_it_quietly():
    program = subprocess.Popen([jobs.PROGRAM, "query", "--format", "csv", "SELECT range FROM range(3000000)"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout.readline() == b"range\n"
    program.stdout.close()
    assert program.wait(10) == -signal.SIGPIPE and program.stderr.read() == b""


PEAK = """
import resource, subprocess, sys
lines = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
count = sum(block.count(b"\\n") for block in iter(lambda: lines.stdout.read(1 << 20), b""))
print(lines.wait(), count, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def test_a_result_of_any_size_takes_little_memory():
    for form, bound in (("csv", 16), ("table", 48)):
        done = subprocess.run([sys.executable, "-c", PEAK, jobs.PROGRAM, "query", "--timeout", f"{30 * jobs.SLOW}s",
                               "--format", form, "SELECT range AS n, 'name-' || range AS s FROM range(1000000)"],
                              stdout=subprocess.PIPE, universal_newlines=True)
        status, lines, peak = map(int, done.stdout.split())
        assert (status, lines) == (0, 1000001) and peak < bound, (form, peak)
