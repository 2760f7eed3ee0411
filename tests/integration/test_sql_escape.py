"""A query can do nothing but read what it was given: attempts to escape, to hurt, to exhaust. Each is refused or ended
with words a person understands; the target goes on and the next query answers."""
import os
import re
import subprocess
import time

import jobs
import pytest
from jobs import probe
from seccomp_kit import EPERM, behind
from sql_kit import NATIVE, hole  # noqa: F401

# What each must be told: an error alone would also be a file that is missing, or a table.
NO_FILES = (r'Permission Error: Cannot access (file|directory) ".*" - file system operations are disabled by '
            r'configuration')
READS_ONLY = r"only statements that read are allowed here"
NO_TABLE = r"memory_usage is not an table|[Cc]an only (create an index on a|update|delete from|merge into) base table"
UNKNOWN = (r"there is no table |there is no such table|with name \w+ does not exist|Prepared statement \"p\" "
           r"does not exist")
ONE_SELECT = r"Expected a single SELECT statement|Only SELECT statements can be serialized"
NONSENSE = (r"Parser Error|the SQL has no statement|Max expression depth|Values were not provided|No function matches|"
            r"Invalid Input Error: mine|there is no table (nowhere|a0);")

ATTEMPTS = {
    NO_FILES: [
        "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM read_blob('/etc/shadow')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_json('/etc/passwd')", "SELECT * FROM read_parquet('/tmp/x.parquet')",
        "SELECT * FROM '/tmp/x.csv'",
        "SELECT * FROM glob('/*')", "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM read_text('/proc/1/maps')", "SELECT * FROM parquet_metadata('/tmp/x.parquet')",
        "SELECT * FROM read_csv('https://localhost/x')", "SELECT * FROM read_csv('s3://bucket/x')",
        "SELECT * FROM read_text('/dev/shm/x')",
        "FROM read_csv('/dev/stdin')", "SELECT * FROM read_ndjson_objects('/etc/passwd')",
        "SELECT * FROM parquet_schema('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/probing-escape.csv'", "COPY (SELECT 1) TO '/dev/stdout'",
        "EXPORT DATABASE '/tmp/probing-escape'", "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/x'",
    ],
    # The first wants to keep secrets in a file, the second finds that the first has begun to.
    NO_FILES + "|Secret Storage with name 'memory' already registered": [
        "CREATE SECRET (TYPE s3, KEY_ID 'x', SECRET 'y')", "CREATE PERSISTENT SECRET (TYPE s3)",
    ],
    READS_ONLY: [
        "CREATE TABLE t AS SELECT 1", "CREATE TEMP TABLE t AS SELECT 1", "CREATE VIEW memory_usage AS SELECT 1",
        "CREATE OR REPLACE MACRO now() AS 1", "CREATE TEMP MACRO now() AS 1", "DROP VIEW memory_usage",
        "DROP SCHEMA python CASCADE",
        "DROP FUNCTION now", "ALTER VIEW memory_usage RENAME TO m", "CREATE SCHEMA s", "CREATE SEQUENCE s",
        "CREATE TYPE t AS ENUM ('a')", "COMMENT ON VIEW memory_usage IS 'x'",
        # databases and extensions
        "ATTACH '/tmp/probing-escape.db'", "ATTACH ':memory:' AS other", "DETACH memory", "USE system",
        "INSTALL httpfs", "LOAD httpfs",
        "LOAD '/tmp/evil.duckdb_extension'", "FORCE INSTALL spatial", "UPDATE EXTENSIONS", "CHECKPOINT", "VACUUM",
        # settings
        "SET enable_external_access = true", "SET memory_limit = '100GB'", "SET threads = 1000",
        "RESET lock_configuration",
        "SET GLOBAL allow_unsigned_extensions = true", "SET search_path = 'python'", "PRAGMA enable_profiling",
        "PRAGMA profiling_output = '/tmp/probing-escape.json'", "PRAGMA disable_verification", "SET VARIABLE x = 1",
        # statements in disguise
        "EXPLAIN ANALYZE CREATE TABLE t (a INT)", "EXPLAIN ANALYZE DROP SCHEMA python CASCADE",
        "EXPLAIN (ANALYZE) DROP VIEW memory_usage",
        "/* SELECT */ DROP VIEW memory_usage", "PREPARE p AS SELECT 1", "CALL pragma_version()", "BEGIN", "COMMIT",
        "ROLLBACK", "-- explain SELECT 1 /*\nEXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 1 -- */",
        "EXPLAIN /* (analyze) SELECT 1 */ ANALYZE CREATE TEMP TABLE t AS SELECT 1",
        "EXPLAIN (ANALYZE /* ) SELECT 1 */) CREATE TEMP TABLE t AS SELECT 1", "CREATE TEMP TABLE t AS SELECT 1 -- "
                                                                              "pivot\r; SELECT * FROM t",
        "CREATE TEMP MACRO now() AS 1 -- pivot\r; SELECT now()", "CREATE TEMP TABLE t AS SELECT 1 AS pivot "
                                                                 "\r; SELECT 1",
    ],
    NO_TABLE: [
        "COPY memory_usage FROM '/etc/passwd'", "CREATE INDEX i ON memory_usage (memory_mb)",
        "INSERT INTO memory_usage VALUES (now(), 1)",
        "UPDATE memory_usage SET memory_mb = 0", "DELETE FROM memory_usage", "TRUNCATE memory_usage",
        "MERGE INTO memory_usage USING memory_usage m ON true WHEN MATCHED THEN DELETE",
    ],
    UNKNOWN: [
        "SELECT * FROM '/etc/passwd'", "EXECUTE p", "SELECT getenv('HOME')", "SELECT nextval('s')",
        "SELECT * FROM pb_scan('nowhere.at_all')", "SELECT * FROM pb_scan('x')",
    ],
    ONE_SELECT: [
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('DROP VIEW memory_usage'))",
        "SELECT * FROM query('DROP VIEW memory_usage')", "SELECT * FROM query('SELECT 1; DROP VIEW memory_usage')",
    ],
    NONSENSE: [
        "CREATE TABLE pivot AS SELECT 1", "SELEC 1", "SELECT", ";", "", "SELECT 'open", "SELECT \"open",
        "SELECT $$open", "/* open",
        "SELECT * FROM nowhere", "SELECT 1 FROM", "SELECT (" * 3000 + "1" + ")" * 3000, "SELECT " + "-" * 20001 + "1",
        "SELECT " + "[" * 2000 + "]" * 2000, "SELECT " + " + ".join(["1"] * 5000),
        "WITH " + ", ".join(f"a{i} AS (SELECT * FROM a{i - 1})" for i in range(1, 500)) + " SELECT * FROM a499",
        "SELECT error('mine')", "SELECT ?", "SELECT * FROM range(1, 2, 3, 4)",
    ],
}
REFUSED = [(sql, says) for says, statements in ATTEMPTS.items() for sql in statements]

# Too slow, too large for DuckDB, or too large for this machine: which depends on how fast it is.
TOO_MUCH = (r"it took longer than 1\.5 s and was stopped|Out of Memory Error|out of memory|Lists larger than|Cannot "
            r"create a string of size|"
            r"the maximum supported string size|could not allocate|String exceeds|maximum length")
EXHAUSTING = [
    "SELECT len(range(100000000000))", "SELECT count(*) FROM range(1000000000000)", "SELECT repeat('x', 1000000000000)",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "WITH RECURSIVE t AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM t) SELECT max(len(s)) FROM t",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3",
    "SELECT list(range) FROM range(10000000000)", "SELECT string_agg(repeat('x', 1000000)) FROM range(1000000)",
    "SELECT lpad('', 2147483647, 'x') || lpad('', 2147483647, 'x')", "SELECT list_transform(range(1000000), x "
                                                                     "-> range(x)) ",
    "SELECT * FROM range(100000000) ORDER BY hash(range)",
    "SELECT histogram(range) FROM range(10000000000)", "SELECT unnest(range(100000000000))",
    "SELECT count(DISTINCT md5(range::VARCHAR)) FROM range(10000000000)",
]


@pytest.fixture(scope="module")
def job():
    with jobs.python() as target:
        assert probe(target.pid, "inject").returncode == 0
        recorded = (target.pid, "query", "--format", "csv", "SELECT count(*) > 0 AS any FROM memory_usage")
        jobs.wait_until(lambda: probe(*recorded).stdout == "any\ntrue\n", what="a row")
        yield target


def from_stdin(pid, sql):
    """A query whose statements no command line could carry."""
    done = subprocess.run([jobs.PROGRAM, "-t", str(pid), "query", "--timeout", "10", "-"], input=sql,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(errors="replace"),
                                       done.stderr.decode(errors="replace"))


def check_unharmed(target):
    done = probe(target.pid, "query", "--format", "csv", "SELECT count(*) > 0 AS ok, typeof(max(now())) AS t FROM "
                                                         "memory_usage")
    assert (done.returncode, done.stdout) == (0, "ok,t\ntrue,TIMESTAMP\n"), done.stderr
    assert target.alive()


def test_there_are_at_least_sixty_attempts():
    assert len(set(REFUSED)) >= 60 and len(set(EXHAUSTING)) >= 10


def test_what_does_more_than_read_is_refused(job):
    wrong = []
    for sql, says in REFUSED:
        done = from_stdin(job.pid, sql.encode())
        said = done.stderr.strip()
        if done.returncode != 1 or done.stdout or not re.match(f"probing: query: .*({says})", said):
            wrong.append(f"{sql[:80]}: {done.returncode}: {done.stdout[:80]!r} {said[:160]!r}")
    assert not wrong, "\n".join(wrong)
    check_unharmed(job)
    assert not [entry.name for entry in os.scandir("/tmp") if entry.name.startswith("probing-escape")]


@pytest.mark.parametrize("sql", EXHAUSTING, ids=lambda sql: sql[:50])
def test_what_takes_too_much_is_ended(job, sql):
    began = time.monotonic()
    done = probe(job.pid, "query", "--timeout", "1.5", sql)
    took = time.monotonic() - began
    assert done.returncode == 1, (done.stdout[:200], done.stderr[:300])
    assert re.match(f"probing: query: .*({TOO_MUCH})", done.stderr), (done.stdout[:200], done.stderr[:300])
    assert took < 8
    check_unharmed(job)


def test_bytes_that_are_no_statement_are_refused(job):
    for text, says in ((b"SELECT '\xff\xfe'", "is not UTF-8"),
                       (b"SELECT 1\0; DROP VIEW memory_usage", "contains a NUL byte"),
                       (b"\0", "contains a NUL byte"), (b"SELECT '" + b"x" * (10 << 20) + b"'", "4194304 is the most")):
        done = from_stdin(job.pid, text)
        assert done.returncode == 1 and done.stderr.startswith("probing: query: ") and says in done.stderr
    check_unharmed(job)


@pytest.mark.parametrize("what", NATIVE)
def test_the_kernel_denies_what_duckdb_would_not(hole, what):
    done = probe("query", "--format", "csv", f"SELECT pb_escape('{what}') AS said", env=hole)
    assert done.stdout == "said\nEPERM\n", done.stdout + done.stderr


def test_no_process_can_be_made_by_the_newer_call_either(hole):
    assert probe("query", "--format", "csv", "SELECT pb_escape('clone3') AS said", env=hole).stdout == "said\nENOSYS\n"


def test_a_crash_ends_that_query_only(hole):
    done = probe("query", "SELECT pb_escape('crash')", env=hole)
    assert done.returncode == 1 and "the SQL worker crashed" in done.stderr and "not affected" in done.stderr
    assert probe("query", "--format", "csv", "SELECT 1 AS one", env=hole).stdout == "one\n1\n"


def test_what_cannot_be_interrupted_is_killed(hole):
    began = jobs.calm()
    done = probe("query", "--timeout", "500ms", "SELECT pb_escape('hang')", env=hole)
    assert done.returncode == 1 and "longer than 0.5 s" in done.stderr
    assert jobs.calm() - began < 5
    assert probe("query", "--format", "csv", "SELECT 1 AS one", env=hole).stdout == "one\n1\n"


def test_the_product_has_no_hole():
    done = probe("query", "SELECT pb_escape('open')")
    assert done.returncode == 1 and "does not exist" in done.stderr


# Calls that old kernels lack and containers refuse: pidfd_open, Landlock's three.
MISSING = {"pidfd_open": [434], "landlock": [444, 445, 446], "landlock_restrict_self": [446], "both": [434, 444]}


@pytest.mark.parametrize("calls", MISSING.values(), ids=MISSING)
def test_what_a_container_refuses_costs_no_query(calls, tmp_path):
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)

    def ask(*words):
        return subprocess.run([*behind(calls, EPERM), str(jobs.PROGRAM), "query", "--format", "csv", *words], env=env,
                              capture_output=True, text=True, timeout=60)

    done = ask("SELECT 6 * 7 AS answer")
    assert done.returncode == 0 and done.stdout == "answer\n42\n", done.stderr
    done = ask("SELECT count(*) FROM read_csv('/etc/passwd')")
    assert done.returncode == 1, "the filter alone holds files shut"
    began = jobs.calm()
    late = ask("--timeout", "500ms", "SELECT count(*) FROM range(100000000000) WHERE hash(range) = 1")
    assert late.returncode == 1 and "longer than 0.5 s" in late.stderr and jobs.calm() - began < 20
