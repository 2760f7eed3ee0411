"""query: every query a user is promised, live and after death, in every format, from every side."""
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest
from jobs import probe, rows

# As written in the documentation.
PROMISED = [
    "SELECT func, file, lineno FROM python.backtrace LIMIT 5",
    "SELECT * FROM python.backtrace ORDER BY depth LIMIT 10",
    "SELECT * FROM python.torch_trace",
    """SELECT operation_name, AVG(duration_ms) as avg_duration, COUNT(*) as call_count FROM python.torch_trace
  WHERE timestamp > now() - interval '5 minutes' GROUP BY operation_name ORDER BY avg_duration DESC LIMIT 10""",
    "SELECT * FROM memory_usage WHERE timestamp > now() - interval '5 min'",
    "SELECT hour(timestamp), avg(memory_mb) FROM memory_usage GROUP BY hour(timestamp)",
    """SELECT operation_name, avg(duration_ms), count(*) FROM profiling_data
  WHERE timestamp > now() - interval '5 minutes' GROUP BY operation_name ORDER BY avg(duration_ms) DESC""",
    "SELECT epoch, avg(loss), min(loss), count(*) as steps FROM training_logs GROUP BY epoch ORDER BY epoch",
    "SELECT src_rank, dst_rank, avg(latency_ms) FROM comm_metrics",
    "SELECT avg(gpu_util) FROM gpu_metrics WHERE timestamp > now() - 60",
    """SELECT function_name, sum(allocated_bytes) as total_alloc FROM memory_allocations
  WHERE timestamp > now() - interval '1 hour' GROUP BY function_name ORDER BY total_alloc DESC""",
    "SELECT * FROM python.memory", "SELECT * FROM system.process",
]


@pytest.fixture(scope="module")
def job():
    with jobs.python(env={"API_TOKEN": "s3cret", "PLAIN": "seen", "RANK": "3"}) as target:
        assert probe(target.pid, "inject").returncode == 0
        jobs.wait_until(lambda: len(rows(target.pid, "SELECT * FROM memory_usage")) >= 2, what="two rows")
        yield target


@pytest.mark.parametrize("sql", PROMISED, ids=lambda sql: " ".join(sql.split())[:60])
def test_every_promised_query_runs_as_written(job, sql):
    done = probe(job.pid, "query", sql)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_memory_usage_tells_what_the_kernel_tells(job):
    kernel = int([line for line in open(f"/proc/{job.pid}/status") if line.startswith("VmRSS")][0].split()[1]) / 1024
    newest = rows(job.pid, "SELECT memory_mb, threads FROM memory_usage ORDER BY timestamp DESC LIMIT 1")[0]
    assert abs(newest["memory_mb"] - kernel) < 4
    age = rows(job.pid, "SELECT epoch(now() - max(timestamp)) AS age, count(*) AS n FROM memory_usage WHERE timestamp "
                        "> now() - 60")[0]
    assert 0 <= age["age"] < 5 and age["n"] >= 2


def test_the_stack_is_the_programs(job):
    found = rows(job.pid, "SELECT func, file, lineno, depth, is_gil FROM python.backtrace WHERE thread = 'MainThread' "
                          "ORDER BY depth")
    assert [row["func"] for row in found] == ["train", "main", "<module>"]
    assert all(row["file"] == job.script for row in found) and found[0]["lineno"] in (8, 9, 10, 11)
    assert "loss" in rows(job.pid, "SELECT locals FROM python.backtrace WHERE func = 'train'")[0]["locals"]
    assert rows(job.pid, "SELECT * FROM python.backtrace WHERE func = 'train'")[0]["locals"] is None


def test_the_kernels_view_of_the_process(job):
    process = rows(job.pid, "SELECT pid, threads, uid, python, age(started) < interval '1 hour' AS young FROM "
                            "system.process")[0]
    assert process == {"pid": job.pid, "threads": len(job.threads()), "uid": os.getuid(), "young": True,
                       "python": "%d.%d" % sys.version_info[:2]}
    threads = {row["tid"] for row in rows(job.pid, "SELECT tid FROM system.threads")}
    assert threads == set(map(int, os.listdir(f"/proc/{job.pid}/task")))
    maps = rows(job.pid, 'SELECT count(*) AS n, sum(rss_bytes) AS rss, max("end") > 140000000000000 AS high '
                         'FROM system.maps')[0]
    assert maps["n"] > 20 and maps["rss"] > 1 << 20 and maps["high"]
    assert job.log in [row["path"] for row in rows(job.pid, "SELECT path FROM system.fds WHERE kind = 'file'")]


def group_of(pid):
    """The path of a process's control group and its folder: that of the memory controller where there is one of its
    own."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return path, Path(f"/sys/fs/cgroup/memory{path}")
    path = next(path for number, _, path in lines if number == "0")
    return path, Path(f"/sys/fs/cgroup{path}")


def readable(path):
    try:
        return path.is_file() and path.read_bytes() is not None
    except OSError:
        return False


def test_the_control_group_is_that_of_the_process(job):
    path, folder = group_of(job.pid)
    found = {row["name"]: row for row in rows(job.pid, "SELECT * FROM system.cgroup")}
    if not folder.is_dir():
        assert not found
        pytest.skip(f"{folder} is not mounted here")
    assert set(found) == {file.name for file in folder.iterdir() if readable(file)} and "cgroup.procs" in found
    assert {row["path"] for row in found.values()} == {path}
    members = found["cgroup.procs"]["value"]
    assert str(job.pid) in members.split() or len(members) > 8000, "its own group has it, unless the list was cut"


def test_secrets_are_masked(job):
    envs = {row["name"]: row["value"] for row in rows(job.pid, "SELECT * FROM system.envs")}
    assert (envs["API_TOKEN"], envs["PLAIN"]) == ("***", "seen")
    with jobs.start(sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(60)", "--api-key",
                    "s3cret", "--password=s3cret", ready="ready") as secretive:
        command = rows(secretive.pid, "SELECT command FROM system.process")[0]["command"]
        assert command.endswith("--api-key *** --password=***") and "s3cret" not in command


def test_tables_columns_and_settings_explain_themselves(job):
    tables = {row["name"]: row for row in rows(job.pid, "SELECT * FROM probing.tables")}
    assert tables["memory_usage"]["kind"] == "recorded" and tables["memory_usage"]["rows"] >= 2
    assert tables["system.envs"]["kind"] == "live" and tables["gpu_metrics"]["rows"] == 0
    assert {name for name, row in tables.items()
            if row["in_target"]} == {"python.modules", "python.tensors", "python.optimizers"}
    assert not [name for name, row in tables.items() if not row["comment"]]
    columns = rows(job.pid, "SELECT * FROM probing.columns")
    assert {row["table"] for row in columns} == set(tables)
    assert not [row for row in columns if not row["comment"]]
    setting = {row["name"]: row for row in rows(job.pid, "SELECT * FROM probing.config")}["probing.max_memory"]
    assert (setting["value"], setting["default_value"], setting["origin"],
            setting["unit"]) == ("40MB", "40MB", "default", "bytes")
    described = {row["column_name"]: row["column_type"] for row in rows(job.pid, "DESCRIBE python.backtrace")}
    assert described["func"] == "VARCHAR" and described["lineno"] == "INTEGER"
    shown = rows(job.pid, "SELECT comment FROM duckdb_columns() WHERE table_name = 'memory_usage' AND column_name "
                          "= 'memory_mb'")
    assert "MB" in shown[0]["comment"]
    assert "memory_usage" in [row["name"] for row in rows(job.pid, "SHOW TABLES")]
    assert rows(job.pid, "SELECT count(*) AS n FROM information_schema.columns WHERE "
                         "table_schema = 'system'")[0]["n"] > 30


def test_notes_go_to_stderr(job):
    done = probe(job.pid, "query", "--format", "csv", "SELECT src_rank, avg(latency_ms) FROM comm_metrics")
    assert done.stdout.count("\n") == 1 and "GROUP BY ALL" in done.stderr
    done = probe(job.pid, "query", "SELECT count(*) FROM memory_usage WHERE timestamp > now() - interval '1 day'")
    assert "note: memory_usage holds rows from " in done.stderr
    with jobs.python() as stranger:
        done = probe(stranger.pid, "query", "--format", "csv", "SELECT count(*) AS n FROM memory_usage")
        assert (done.returncode, done.stdout) == (0, "n\n0\n") and "not probed yet" in done.stderr


@pytest.mark.parametrize("sql, names", [
    ("SELECT * FROM memory_usge", ["memory_usage"]), ("SELECT * FROM python.backtrce", ["python.backtrace"]),
    ("SELECT * FROM backtrace", ["python.backtrace"]), ("SELECT * FROM pyton.backtrace", ["python.backtrace"]),
    ("SELECT memory FROM memory_usage", ["memory_mb"]), ("SELECT timestmp FROM memory_usage", ["timestamp"]),
])
def test_an_error_names_what_is_near(job, sql, names):
    done = probe(job.pid, "query", sql)
    assert done.returncode == 1 and not done.stdout
    assert all(name in done.stderr for name in names), done.stderr


VALUES = """SELECT * FROM (VALUES (1, NULL, 'a,"b"', 9223372036854775807, [1, NULL], {'k': 'v'}, true, 'x' || chr(9) || 'y' || chr(10) || '|', ''),
  (-1, 'nan'::DOUBLE, NULL, 18446744073709551615, NULL, NULL, NULL, 'é', NULL)) t(i, d, s, big, list, struct, flag, odd, empty)"""


def formatted(name, sql=VALUES):
    done = probe("query", "--format", name, sql)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_is_exact():
    first, second = json.loads(formatted("json"))
    assert first == {"i": 1, "d": None, "s": 'a,"b"', "big": 9223372036854775807, "list": [1, None],
                     "struct": {"k": "v"}, "flag": True, "odd": "x\ty\n|", "empty": ""}
    assert second["big"] == 18446744073709551615 and second["d"] == "nan" and second["odd"] == "é"
    assert [json.loads(line) for line in formatted("jsonl").splitlines()] == [first, second]
    assert json.loads(formatted("json", "SELECT 1 AS a WHERE false")) == []


def test_csv_and_tsv_keep_null_and_empty_apart():
    text = formatted("csv")
    assert list(csv.reader(io.StringIO(text)))[1] == ["1", "", 'a,"b"', "9223372036854775807", "[1, null]",
                                                      '{"k": "v"}', "true", "x\ty\n|", ""]
    assert text.endswith("é,\n") and '|",""\n' in text
    assert formatted("tsv").splitlines()[1].split("\t")[-2:] == ["x\\ty\\n|", ""]
    assert formatted("tsv").splitlines()[2].split("\t")[-1] == "\\N"


def test_tables_and_markdown_are_for_people():
    assert formatted("table",
                     "SELECT 1 AS number, NULL AS nothing, 'text' AS name").splitlines() == [
                         "number  nothing  name", "     1  NULL     text"]
    assert formatted("markdown",
                     "SELECT 1 AS a, 'x|y' AS b").splitlines() == ["| a | b |", "| --- | --- |", "| 1 | x\\|y |"]
    wide = "SELECT " + ", ".join(f"{i} AS column_{i}" for i in range(100))
    assert formatted("table", wide).splitlines()[0].split()[-1] == "column_99"
    done = probe("query", "--expanded", "SELECT 1 AS a, 'text' AS bcd")
    assert done.stdout.splitlines() == ["-- row 1", "  a: 1", "bcd: text"]
    assert "DUMMY_SCAN" in formatted("table", "EXPLAIN SELECT 1") and "\n│" in formatted("table", "EXPLAIN SELECT 1")


def test_statements_come_from_anywhere(tmp_path):
    file = tmp_path / "report.sql"
    file.write_text("-- a comment; with a semicolon\nSELECT 1 AS a;\nSELECT ';' AS b; /* ; */\n")
    assert probe("query", "--format", "csv", "-f", file).stdout == "a\n1\n\nb\n;\n"
    done = subprocess.run([jobs.PROGRAM, "query", "--format", "csv"], input=b"SELECT 2 AS a", stdout=subprocess.PIPE)
    assert done.stdout == b"a\n2\n"
    out = tmp_path / "rows.jsonl"
    assert probe("query", "-o", out, "SELECT 3 AS a").stdout == ""
    assert out.read_text() == '{"a": 3}\n'
    assert probe("query", "-o", out, "SELECT nonsense").returncode == 1
    assert out.read_text() == '{"a": 3}\n' and sorted(os.listdir(tmp_path)) == ["report.sql", "rows.jsonl"]


def test_calls_that_are_wrong_say_so():
    # Not 0, which is no limit.
    done = probe("query", "--timeout", "0.01ms", "SELECT count(*) FROM range(1000000000) a, range(1000000) b")
    assert done.returncode == 1 and "took longer than" in done.stderr
    for words in (["--format", "xml", "SELECT 1"], ["--timeout", "soon", "SELECT 1"], ["--watch", "0", "SELECT 1"],
                  ["-f", "x", "SELECT 1"]):
        done = probe("query", *words)
        assert done.returncode == 2 and done.stderr.startswith("probing: query: "), words


def test_what_a_dead_process_left_can_be_asked():
    with jobs.python() as victim:
        assert probe(victim.pid, "inject").returncode == 0
        jobs.wait_until(lambda: len(rows(victim.pid, "SELECT * FROM memory_usage")) >= 2)
        before = rows(victim.pid, "SELECT max(timestamp)::VARCHAR AS last, count(*) AS n FROM memory_usage")[0]
        os.kill(victim.pid, signal.SIGKILL)
        victim.process.wait()
        after = rows("-t", victim.pid, "SELECT max(timestamp)::VARCHAR AS last, count(*) AS n FROM memory_usage")[0]
        assert after["n"] >= before["n"] and after["last"] >= before["last"]
        assert rows("-t", victim.pid, "SELECT * FROM system.process") == []


def test_all_ranks_are_one_table():
    code = "import time; print('ready', flush=True); time.sleep(600)  # ranks-of-test-query"
    with jobs.python(code, env={"RANK": "0"}) as zero, jobs.python(code, env={"RANK": "1"}) as one:
        found = [probe(target.pid, "inject").returncode for target in (zero, one)]
        assert found == [0, 0]
        # The two scripts are files of one folder, named alike.
        found = rows(
            "-t", os.path.dirname(zero.script) + "/train-", "--all", "SELECT rank, target_pid, pid FROM system.process "
                                                                     "WHERE rank IS NOT NULL ORDER BY rank")
        mine = [row for row in found if row["pid"] in (zero.pid, one.pid)]
        assert mine == [{"rank": 0, "target_pid": zero.pid, "pid": zero.pid},
                        {"rank": 1, "target_pid": one.pid, "pid": one.pid}]


# Root, but without the right to read a process that has all capabilities.
POOR = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]


def ask_ranks(*args, poor=False):
    """A query over both ranks."""
    return subprocess.run([*(POOR if poor else []), jobs.PROGRAM, "-t", "ranks-of-one-job", "--all", "query",
                           "--format", "json", *args],
                          capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up rights")
def test_a_rank_whose_live_read_fails_is_named_and_the_others_are_shown():
    code = "import time; print('ready', flush=True); time.sleep(120)"
    with jobs.start(*POOR, sys.executable, "-c", code, "ranks-of-one-job", ready="ready", env={"RANK": "0"}) as good, \
            jobs.start(sys.executable, "-c", code, "ranks-of-one-job", ready="ready", env={"RANK": "1"}) as bad:
        done = ask_ranks("SELECT DISTINCT rank FROM python.backtrace; SELECT * FROM probing.sources", poor=True)
        assert done.returncode == 0, done.stderr
        # Its rank is told where its environment may be read.
        assert re.search(rf"process {bad.pid}\)? is missing in python.backtrace: ", done.stderr)
        assert f"process {good.pid}" not in done.stderr
        ranks, sources = (json.loads(part) for part in done.stdout.split("\n\n"))
        assert ranks == [{"rank": 0}]
        told = {(row["pid"], row["rows"]): row for row in sources}
        assert set(told) == {(good.pid, None), (bad.pid, "python.backtrace")}
        assert told[good.pid, None]["state"] == "not probed" and told[good.pid, None]["error"] is None
        assert told[bad.pid, "python.backtrace"]["state"] == "failed" and told[bad.pid, "python.backtrace"]["error"]
        strict = ask_ranks("--strict", "SELECT DISTINCT rank FROM python.backtrace", poor=True)
        assert strict.returncode == 1 and json.loads(strict.stdout) == [{"rank": 0}] and "--strict" in strict.stderr
        assert ask_ranks("--strict", "SELECT DISTINCT rank FROM python.backtrace").returncode == 0


@pytest.mark.alone
def test_a_warm_worker_answers_at_once_and_costs_the_target_nothing(job):
    probe("query", "SELECT 1")
    took = []
    for _ in range(10):
        began = time.monotonic()
        assert probe("query", "SELECT 1").returncode == 0
        took.append(time.monotonic() - began)
    assert min(took) < 0.03
    before = (job.threads(), job.fds(), rows(job.pid, "SELECT cpu_user_s + cpu_system_s AS s FROM "
                                                      "system.process")[0]["s"])
    for _ in range(20):
        rows(job.pid, "SELECT count(*) FROM memory_usage")
    after = (job.threads(), job.fds(), rows(job.pid, "SELECT cpu_user_s + cpu_system_s AS s FROM "
                                                     "system.process")[0]["s"])
    assert before[:2] == after[:2] and after[2] - before[2] < 0.2


def test_watch_repeats(job):
    with jobs.start(jobs.PROGRAM, "query", "--watch", "100ms", "--format", "csv", "SELECT 1 AS a") as watching:
        jobs.wait_until(lambda: watching.output.count("a\n1\n") >= 3, what="three times")
        assert watching.alive()


def test_names_of_any_case_bring_the_locals(job):
    assert any(row["locals"] for row in rows(job.pid, "SELECT LOCALS FROM PYTHON.BACKTRACE"))


def test_of_many_processes_none_is_left_out_without_a_word(tmp_path):
    """More than the kernel passes on at a time; and more than the tool may have descriptors for."""
    program = tmp_path / "many-sleepers"
    shutil.copy("/bin/sleep", program)
    sleepers = [subprocess.Popen([program, "1000"]) for _ in range(270)]
    pids = {sleeper.pid for sleeper in sleepers}
    words = ["-t", str(program), "--all", "query", "--strict", "--timeout", "120", "--format", "json",
             "SELECT target_pid, pid FROM system.process"]
    try:
        for most in ("1024:1024", "256:2048"):
            done = subprocess.run(["prlimit", f"--nofile={most}", jobs.PROGRAM, *words], capture_output=True, text=True)
            assert done.returncode == 0 and done.stderr == "", done.stderr
            found = json.loads(done.stdout)
            assert len(found) == len(pids)
            assert {row["target_pid"] for row in found} == {row["pid"] for row in found} == pids
        done = subprocess.run(["prlimit", "--nofile=128:128", jobs.PROGRAM, *words], capture_output=True, text=True)
        assert done.returncode == 1
        named = {int(pid) for pid in re.findall(r"process (\d+) is missing in system.process", done.stderr)}
        assert named and {row["pid"] for row in json.loads(done.stdout)} == pids - named, done.stderr
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


EMPTY = {
    "SELECT * FROM python.torch_trace": "probing.torch.profiling=on",
    "SELECT count(*) FROM profiling_data": "probing.torch.profiling=on",
    "SELECT epoch, avg(loss) FROM training_logs GROUP BY epoch": "track VARIABLE@FUNCTION",
    "SELECT * FROM memory_allocations": "probing.memory.sampling=on",
    "SELECT src_rank FROM comm_metrics": "probing.torch.profiling=on",
    "SELECT * FROM python.variables": "watch VARIABLE@FUNCTION",
    "SELECT * FROM python.samples s JOIN python.stacks USING (stack)": "record",
}


def test_a_table_that_is_empty_says_once_what_fills_it():
    with jobs.python() as job:
        assert probe(job.pid, "inject").returncode == 0
        for sql, word in EMPTY.items():
            done = probe(job.pid, "query", "--format", "json", sql)
            notes = [line for line in done.stderr.splitlines() if "is empty" in line]
            assert done.returncode == 0 and len(notes) == 1 and word in notes[0], (sql, done.stderr)
        jobs.wait_until(lambda: rows(job.pid, "SELECT * FROM memory_usage"), what="a row")
        done = probe(job.pid, "query", "SELECT * FROM memory_usage WHERE memory_mb < 0")
        assert done.returncode == 0 and "is empty" not in done.stderr, "it has rows, of which none is asked for"


def test_a_table_has_the_same_columns_before_its_first_row():
    """By the manual's own list of what a process records without torch."""
    names = ("SELECT table_name AS t, list(column_name ORDER BY column_index) AS c FROM duckdb_columns() WHERE "
             "database_name = 'memory' GROUP BY ALL")
    code = """
import probing, time
def work(x):
    y = x + 1
    return y
probing.log(epoch=1, loss=0.5)
probing.register("numbers", "static", "mine", lambda: [{"n": 1}])
print("ready", flush=True)
while True:
    work(1)
    time.sleep(0.01)
"""
    with jobs.python("import time\nprint('ready', flush=True)\ntime.sleep(600)") as bare, jobs.python(code, env={
        "PYTHONPATH": str(jobs.TOP / "python")}) as job:
        assert probe(bare.pid, "inject").returncode == 0
        before = {row["t"]: row["c"] for row in rows(bare.pid, names)}
        jobs.wait_until(lambda: rows(job.pid, "SELECT * FROM memory_usage"), what="a row")
        assert probe(job.pid, "watch", "y@work", "--duration", "200ms").returncode == 0
        assert probe(job.pid, "break", f"{job.script}:4", "--log", "x={x}").returncode == 0
        assert probe(job.pid, "record", "--duration", "1s").returncode == 0
        after = {row["t"]: row["c"] for row in rows(job.pid, names)}
        recorded = [row["name"].split(".")[-1] for row in rows(job.pid, "SELECT name FROM probing.tables WHERE kind = "
                                                                        "'recorded' AND rows > 0")]
        assert {"memory_usage", "variables", "break_hits", "registered", "training_logs", "samples", "sampling",
                "memory"} <= set(recorded), recorded
        assert {name: after[name] for name in recorded if name in before
                and name != "training_logs"} == {name: before[name] for name in recorded if name in before
                                                 and name != "training_logs"}


def test_pythons_memory_has_a_row_without_a_recorder():
    with jobs.python("import time\nkeep = [object() for _ in range(100000)]\nprint('ready', flush=True)\n"
                     "time.sleep(600)") as job:
        for _ in range(2):
            row, = rows(job.pid, "SELECT * FROM python.memory")
            status = open(f"/proc/{job.pid}/statm").read().split()
            assert row["pid"] == job.pid, row
            assert abs(row["rss_bytes"] - int(status[1]) * os.sysconf("SC_PAGESIZE")) < 4 << 20, row
            assert row["heap_bytes"] is None or row["heap_bytes"] > 100000 * 16
            assert probe(job.pid, "inject").returncode == 0
        said = [int(probe(job.pid, "eval", "__import__('sys').getallocatedblocks()").stdout) for _ in range(2)][1]
        blocks = rows(job.pid, "SELECT heap_blocks AS n FROM python.memory")[0]["n"]
        assert blocks is None or abs(blocks - said) < 0.1 * said, (blocks, said)
