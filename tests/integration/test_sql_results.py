"""What a query gives over a recorded table is what DuckDB gives over the same rows in a Parquet file: every type, NULL,
NaN and infinities, times before 1970; in a table so large that it is read as it is scanned."""
import json
import subprocess

import duckdb
import jobs
import pytest

QUERIES = [
    "SELECT count(*), count(ratio), sum(n), min(n), max(proof) FROM {t}",
    "SELECT name, count(*), sum(n), max(address) FROM {t} GROUP BY name ORDER BY name",
    "SELECT flag, count(*), min(size), max(size) FROM {t} GROUP BY flag ORDER BY flag",
    "SELECT count(*) FILTER (isnan(ratio)), count(*) FILTER (isinf(ratio)), count(*) FILTER (ratio IS NULL) FROM {t}",
    "SELECT DISTINCT ratio FROM {t} WHERE NOT isfinite(ratio) ORDER BY ratio",
    "SELECT max(ratio), min(ratio) FROM {t} WHERE isfinite(ratio)",
    "SELECT n, ratio FROM {t} ORDER BY ratio DESC NULLS LAST, n LIMIT 20",
    "SELECT timestamp, n FROM {t} WHERE timestamp < TIMESTAMP '1970-01-01' ORDER BY timestamp LIMIT 20",
    "SELECT min(timestamp), count(DISTINCT timestamp) FROM {t} WHERE year(timestamp) < 1970",
    "SELECT date_trunc('minute', timestamp) AS m, count(*) FROM {t} WHERE timestamp < TIMESTAMP '1970-01-01' GROUP BY "
    "m ORDER BY m",
    "SELECT raw, octet_length(raw), count(*) FROM {t} GROUP BY raw",
    "SELECT a.n, b.name FROM {t} a JOIN {t} b ON a.n = b.proof ORDER BY a.n LIMIT 20",
    "SELECT n, lag(n) OVER (ORDER BY n), address FROM {t} ORDER BY n DESC LIMIT 10",
    "SELECT count(*) FROM {t} WHERE name LIKE 'näme ''1%' AND ratio > 100",
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A process with rows, and the file they were exported to."""
    where = tmp_path_factory.mktemp("results")
    binary, file = where / "writer", where / "rows.parquet"
    subprocess.run(["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", f"-I{jobs.TOP / 'src'}", "-pthread", "-o", binary,
                    jobs.TOP / "tests/integration/targets/archive_writer.c",
                    *sorted((jobs.TOP / "src/table").glob("*.c")), "-lm"], check=True)
    env = {**jobs.os.environ, "PROBING_DIR": str(where), "PROBING_ARCHIVE": "none"}
    writer = subprocess.Popen([binary, str(64 << 20), str(1 << 16), "", ""], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, env=env, text=True)

    def ask(*words):
        return subprocess.run([jobs.PROGRAM, "-t", str(writer.pid), *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=env, text=True)

    try:
        assert writer.stdout.readline() == "ready\n"
        for command in ("at -100000000 500", "at -3 6", "odd 50", "rows 60000"):
            writer.stdin.write(command + "\n")
            writer.stdin.flush()
            writer.stdout.readline()
        done = ask("export", "test.stream", "-o", str(file))
        assert done.returncode == 0, done.stderr
        yield ask, file
    finally:
        writer.kill()
        writer.wait()


def as_text(sql):
    return f"SELECT COLUMNS(*)::VARCHAR FROM ({sql})"


@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_gives_what_duckdb_gives(tables, sql):
    ask, file = tables
    done = ask("query", "--format", "json", "--stats", as_text(sql.format(t="test.stream")))
    assert done.returncode == 0, done.stderr
    mine = [tuple(row.values()) for row in json.loads(done.stdout)]
    theirs = duckdb.sql(as_text(sql.format(t=f"'{file}'"))).fetchall()
    assert mine and mine == theirs


def test_the_table_is_large_enough_to_be_read_as_it_is_scanned(tables):
    ask, _ = tables
    done = ask("query", "--stats", "SELECT count(*) FROM test.stream")
    assert int(done.stderr.split("segments read: ")[1].split(",")[0]) > 40
