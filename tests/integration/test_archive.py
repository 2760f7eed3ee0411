"""archive: rows outlive the arena and the process, as Parquet that any engine reads; archived and live rows are one
table, none twice and none lost, wherever the recorder is killed."""
import datetime
import fcntl
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import duckdb
import jobs
import pyarrow.dataset
import pyarrow.parquet
import pytest
from archive_kit import program, writer  # noqa: F401
from sql_kit import NATIVE, hole  # noqa: F401

SOAK = bool(os.environ.get("PROBING_SOAK"))


def test_archived_and_live_rows_are_one_table(writer):
    w = writer()
    assert w.tell("rows 20000") == 20000
    assert w.count() == (20000, 0, 19999)
    said = w.archived().stdout
    moved = int(re.search(r"test.stream: (\d+) rows of \d+ segments", said).group(1))
    assert 15000 < moved < 20000 and w.count() == (20000, 0, 19999)
    assert w.archived().stdout.startswith("nothing to archive") and len(w.files()) == 1
    # What the arena has no room for any more is still there; times choose between the files.
    for _ in range(3):
        w.tell("rows 15000")
        w.archived()
    assert w.count() == (65000, 0, 64999)
    assert int(w.rows("SELECT count(*) FROM test.stream", "--archive", "none")[0][0]) < 40000
    assert w.listed() == 65000
    done = w.probe("-t", w.pid, "query", "--stats", "SELECT count(*) FROM test.stream WHERE timestamp < (SELECT "
                                                    "min(timestamp) FROM test.stream)")
    assert "archived files read: 4, skipped: 0" in done.stderr  # the bound is no constant
    middle = w.rows("SELECT max(timestamp) FROM test.stream WHERE n < 20000")[0][0]
    done = w.probe("-t", w.pid, "query", "--format", "csv", "--stats", f"SELECT count(*) FROM test.stream WHERE "
                                                                       f"timestamp <= '{middle}'")
    assert "archived files read: 2, skipped: 2" in done.stderr, done.stderr
    assert int(done.stdout.split()[1]) >= 20000
    assert w.rows("SELECT n FROM test.stream LIMIT 3") == [["0"], ["1"], ["2"]]
    assert w.rows("SELECT count(*) FROM (SUMMARIZE test.stream) WHERE count = 65000")[0][0] == "9"
    assert w.rows("SELECT count(*) FROM query('FROM test.stream')")[0][0] == "65000"
    assert w.rows("SELECT a.n FROM test.stream a JOIN test.stream b ON a.n + 64990 = b.n WHERE a.n < 3 ORDER BY 1") == [
        ["0"], ["1"], ["2"]]


def test_a_run_outlives_what_it_left(writer, tmp_path):
    w, other = writer(), writer(job="", rank="")
    w.tell("rows 5000")
    other.tell("rows 100")
    w.archived()
    w.kill()
    other.kill()
    assert w.count() == (5000, 0, 4999)
    # An ended process: everything that it left, open segments too.
    w.archived()
    other.archived()
    for run in tmp_path.glob("probing-*"):
        shutil.rmtree(run)
    assert w.count() == (5000, 0, 4999) and w.rows("SELECT count(*) FROM shy")[0][0] == "1"
    assert w.listed() == 5000
    listed = w.probe("list", "--format", "csv").stdout
    assert re.search(rf"^{w.pid},archived,,3,.*writer$", listed, re.M), listed
    # Without a target: all archived runs, with rank and target_pid.
    done = jobs.probe("query", "--archive", w.archive, "--format", "csv",
                      "SELECT rank, target_pid, count(*) FROM test.stream GROUP BY ALL ORDER BY ALL")
    assert done.stdout.splitlines()[1:] == [f"3,{w.pid},5000", f",{other.pid},100"]
    out = tmp_path / "out.parquet"
    assert w.probe("-t", w.pid, "export", "test.stream", "-o", out).returncode == 0
    assert sorted(pyarrow.parquet.read_table(out)["n"].to_pylist()) == list(range(5000))
    assert jobs.probe("export", "test.stream", "--archive", w.archive, "-o", out).returncode == 0
    assert pyarrow.parquet.read_table(out).num_rows == 5100
    done = w.probe("-t", w.pid, "archive", "--once")
    assert done.returncode == 1 and "left nothing but its archive" in done.stderr
    assert "unit" in w.probe("-t", w.pid, "query", "SELECT * FROM probing.columns LIMIT 0").stdout


RECORDED = ("python.samples", "python.stacks", "python.memory")


@pytest.mark.parametrize("probed", [True, False])
def test_what_was_recorded_of_a_process_is_archived_with_it(writer, tmp_path, probed):
    archive = tmp_path / "archive"
    env = {**os.environ, "PROBING_DIR": str(tmp_path), "PROBING_ARCHIVE": str(archive), "RANK": "5"}

    def probe(*words):
        done = jobs.probe(*words, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def counts(*target):
        sql = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in RECORDED)
        return [int(n) for n in probe(*target, "query", "--format", "csv", sql).splitlines()[1].split(",")]

    with jobs.python(env=env) as job:
        if probed:
            probe("-t", job.pid, "inject")
        else:
            done = jobs.probe("-t", job.pid, "archive", "--once", env=env)
            assert done.returncode == 1 and "neither probed nor recorded" in done.stderr
        probe("-t", job.pid, "record", "--duration", "1.5")
        once = counts("-t", job.pid)
        assert all(once)
        assert "python.samples" in probe("-t", job.pid, "archive", "--once")
        assert counts("-t", job.pid) == once, "what is on both sides is counted once"
        # A recording that begins later, and goes on while it is archived, until the process ends.
        said = probe("-t", job.pid, "archive", "--background", "--every", "100ms")
        recorder = int(re.search(r"by process (\d+)", said).group(1))
        try:
            probe("-t", job.pid, "record", "--background")
            time.sleep(2.5)
            assert all(n > m for n, m in zip(counts("-t", job.pid), once))
            job.process.kill()
            job.process.wait()
            jobs.wait_until(lambda: not Path(f"/proc/{recorder}").exists(), what="the recorder's end")
        finally:
            if Path(f"/proc/{recorder}").exists():
                os.kill(recorder, signal.SIGKILL)
        left = counts("-t", job.pid)
        # Stacks of different recordings are different ones.
        stacks = probe("-t", job.pid, "query", "--format", "csv",
                       "SELECT max(n), max(recordings) FROM (SELECT count(DISTINCT (function, line, kind)) AS n FROM "
                       "python.stacks GROUP BY stack), "
                       "(SELECT count(DISTINCT stack >> 32) AS recordings FROM python.samples SEMI JOIN python.stacks "
                       "USING (stack))")
        assert stacks.splitlines()[1] == "1,2"
        for table, n in zip(RECORDED, left):
            theirs = duckdb.sql(f"SELECT count(*), min(rank) FROM "
                                f"read_parquet('{archive}/{table}/*/*/*/*/*.parquet')").fetchall()[0]
            assert theirs == (n, 5), table
        for run in tmp_path.glob("probing-*"):
            shutil.rmtree(run)
        assert counts("-t", job.pid) == left
        assert len(re.findall(rf"^{job.pid},archived,", probe("list", "--format", "csv"), re.M)) == 1
        everybody = probe(
            "query", "--archive", archive, "--format", "csv", "SELECT DISTINCT pid, count(*) FROM python.memory "
                                                              "GROUP BY pid")
        assert everybody.split()[1] == f"{job.pid},{left[2]}"
    # What is too old goes, with all that is written down of it.
    for file in archive.glob("*/*/*/*/*/*.parquet"):
        age(file, 40)
    w = writer()
    w.tell("rows 3000")
    w.archived("--once", "--retention", "30", "--prune")
    assert len(list((archive / "_probing").iterdir())) == 1

def test_other_engines_read_it_as_it_is(writer):
    w = writer()
    w.tell("rows 3000")
    w.tell("at 4102444790 20")  # 2099-12-31 23:59:50, over midnight
    w.tell("grow later")
    w.tell("rows 3000")
    w.kill()
    w.archived("--retention", "0")
    table = pyarrow.dataset.dataset(str(w.archive / "test.stream"), partitioning="hive", format="parquet").to_table()
    kinds = {field.name: str(field.type) for field in table.schema}
    assert {k: kinds[k] for k in ("timestamp", "timestamp_ns", "n", "name", "address", "ratio", "flag", "raw", "size",
                                  "rank", "date")} == {
        "timestamp": "timestamp[us]", "timestamp_ns": "int64", "n": "int64", "name": "string", "address": "int64",
                                      "ratio": "double",
        "flag": "bool", "raw": "binary", "size": "int64", "rank": "int32", "date": "string"}
    rows = {row["n"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 6020
    assert rows[5]["address"] % 2**64 == 2**64 - 6
    assert rows[4]["address"] == 4
    assert rows[4]["ratio"] == 1.0
    assert rows[3]["ratio"] is None
    assert rows[4]["name"] == "näme '4\""
    assert rows[4]["raw"] == b"\0\xff"
    assert rows[4]["size"] == 2**32 - 5
    assert rows[4]["job"] == "a/b c"
    epoch = datetime.datetime(1970, 1, 1)
    assert all(row["timestamp"] == epoch + datetime.timedelta(microseconds=row["timestamp_ns"] // 1000)
               for row in rows.values())
    # A day's folder holds that day's rows, also of a segment that spans midnight.
    assert all(str(row["timestamp"].date()) == row["date"] for row in rows.values())
    assert {row["date"] for row in rows.values()} >= {"2099-12-31", "2100-01-01"}
    assert not {str(name) for file in w.files()
                for name in [pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0).compression]} - {"ZSTD"}
    theirs = duckdb.sql(f"SELECT count(*), sum(proof), min(rank), max(job), count(later) FROM "
                        f"read_parquet('{w.glob()}', union_by_name = true)").fetchall()[0]
    assert theirs == (6020, sum(n * 31 + 7 for n in range(6020)), 3, "a/b c", 3000)
    # And we read back what was written, in the types it had.
    assert w.count() == (6020, 0, 6019)
    assert w.rows("SELECT typeof(address), address, typeof(size), typeof(timestamp), later FROM "
                  "test.stream WHERE n = 5") == [
        ["UBIGINT", str(2**64 - 6), "UINTEGER", "TIMESTAMP", ""]]
    assert w.rows("SELECT later, count(*) FROM test.stream WHERE n = 6019 GROUP BY ALL") == [["6019", "1"]]


def test_compression_is_what_is_set(writer):
    w = writer()
    w.env["PROBING_COMPRESSION"] = "snappy"
    w.tell("rows 3000")
    w.archived()
    assert pyarrow.parquet.ParquetFile(w.files()[0]).metadata.row_group(0).column(0).compression == "SNAPPY"


def test_only_one_archives_a_run(writer):
    w = writer()
    w.tell("rows 3000")
    done = w.archived("--background", "--every", "100ms")
    recorder = int(re.search(r"by process (\d+)", done.stdout).group(1))
    try:
        second = w.probe("-t", w.pid, "archive", "--once")
        assert second.returncode == 1
        assert f"is being archived to {w.archive} already (by process {recorder})" in second.stderr
        w.tell("rows 10000")
        jobs.wait_until(lambda: sum(pyarrow.parquet.read_metadata(file).num_rows for file in w.files()) > 12000,
                        what="the archive")
        w.kill()
        jobs.wait_until(lambda: not Path(f"/proc/{recorder}").exists(), what="the recorder's end")
    finally:
        if Path(f"/proc/{recorder}").exists():
            os.kill(recorder, signal.SIGKILL)
    # It saw the process end and took the rest.
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT n) FROM read_parquet('{w.glob()}')").fetchall()[0] == (
        13000, 13000)


def test_all_ranks_are_archived_in_the_background(writer, tmp_path):
    mark = f"job-{time.monotonic_ns()}"
    ranks = [writer(job=mark, rank=str(rank)) for rank in range(3)]
    for w in ranks:
        w.tell("rows 4000")
    w = ranks[0]
    done = w.probe("-t", mark, "--all", "archive", "--background", "--every", "100ms", timeout=20)
    recorders = [int(pid) for pid in re.findall(r"by process (\d+)", done.stdout)]
    assert len(recorders) == 3, done.stderr
    for one in ranks:
        one.kill()
    jobs.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in recorders), what="the recorders' end")
    done = jobs.probe(
        "query", "--archive", w.archive, "--format", "csv", "SELECT rank, count(*), max(n) FROM test.stream GROUP BY "
                                                            "rank ORDER BY rank")
    assert done.stdout.splitlines()[1:] == [f"{rank},4000,3999" for rank in range(3)]


def test_what_was_overwritten_is_said_and_counted(writer):
    w = writer(bound=1 << 20)
    w.tell("rows 30000")
    done = w.archived()
    n, first, last = w.count()
    lost = int(re.search(r"test.stream: (\d+) rows were overwritten before they were archived", done.stderr).group(1))
    assert lost == 30000 - n and last == 29999
    w.tell("rows 1000")
    assert "overwritten" not in w.archived().stderr.replace(f"{lost} rows were overwritten before they were archived, "
                                                            f"{lost} in all", "")


def test_nothing_is_lost_or_doubled_wherever_it_is_killed(writer, tmp_path):
    """The recorder is killed at random moments while the process writes; other engines never see a file that is not
    whole."""
    w = writer(bound=16 << 20)
    chance = random.Random(os.environ.get("PROBING_SEED", "11"))
    written = 0
    for turn in range(300 if SOAK else 30):
        written = w.tell(f"rows {chance.choice([500, 2000])}")
        if turn % 5 == 0:
            written = w.tell(f"at {4102444780 + turn * 86400} 40")  # over midnight
            written = w.tell("rows 400")
        recorder = subprocess.Popen([jobs.PROGRAM, "-t", str(w.pid), "archive", "--once", "--retention", "0"],
                                    env=w.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, 0.12))
        recorder.kill()
        recorder.wait()
        if turn % 6 == 0:
            assert w.count() == (written, 0, written - 1)
        for file in w.files():
            pyarrow.parquet.read_metadata(file)
    w.archived("--once", "--retention", "0")
    w.kill()
    w.archived("--once", "--retention", "0")
    assert w.count() == (written, 0, written - 1)
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT n), min(n), max(n) FROM read_parquet('{w.glob()}', "
                      f"union_by_name = true)").fetchall()[0] == (
        written, written, 0, written - 1)
    assert not [path for path in w.archive.rglob(".*")], "something was left half done"


def test_queries_see_every_row_once_while_it_is_archived(writer):
    w = writer(bound=8 << 20)
    w.tell("rows 1000")
    recorder = subprocess.Popen([jobs.PROGRAM, "-t", str(w.pid), "archive", "--every", "100ms"], env=w.env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True)
    try:
        seconds = 60 if SOAK else 6
        w.say(f"rate 20000 {seconds}")
        before, asked, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            n, first, last = w.count()
            assert n == last + 1 and first == 0 and last >= before, (n, first, last, before)
            before, asked = last, asked + 1
        written = int(w.process.stdout.readline())
        assert asked > 5 and written > 20000 and w.files()
        assert w.count() == (written, 0, written - 1)
    finally:
        recorder.terminate()
        assert recorder.wait(10) == 0
    assert "overwritten" not in recorder.stderr.read()


def small_files(w, n):
    """So many rounds of a recorder, each with rows for a small file."""
    for _ in range(n):
        written = w.tell("rows 700")
        w.archived()
    return written


def archived_by_others(w):
    return duckdb.sql(f"SELECT count(*), count(DISTINCT n), bool_and(proof = n * 31 + 7) FROM "
                      f"read_parquet('{w.glob()}', union_by_name = true)").fetchall()[0]


def test_small_files_become_large_ones(writer):
    w = writer(bound=16 << 20)
    written = small_files(w, 15)
    before = archived_by_others(w)
    assert len(w.files()) == 15
    written = w.tell("rows 700")
    said = w.archived().stdout
    assert "test.stream: 16 small files merged into one" in said, said
    (merged,) = w.files()
    n, different, whole = archived_by_others(w)
    assert n == different and whole and before[0] < n < written
    assert w.count() == (written, 0, written - 1)
    # It is as if nothing had happened: what is archived is not archived again, also with other columns, and by another
    # recorder.
    w.tell("grow later")
    written = small_files(w, 16)
    files = w.files()
    assert merged in files and len(files) == 2
    assert w.count() == (written, 0, written - 1) and w.rows("SELECT count(later) > 0 FROM test.stream") == [["true"]]
    w.kill()
    w.archived()
    assert archived_by_others(w) == (written, written, True)
    for run in w.archive.parent.glob("probing-*"):
        shutil.rmtree(run)
    assert w.count() == (written, 0, written - 1) and w.listed() == written


def test_a_merge_waits_for_queries_that_read(writer):
    """A query opens its files when it gets to them: none that it was told of may go meanwhile."""
    w = writer(bound=16 << 20)
    small_files(w, 15)
    reader = os.open(w.archive, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_SH)  # as a query does
        written = w.tell("rows 700")
        done = w.archived()
        assert "small files of test.stream were not merged" in done.stderr and len(w.files()) == 16
        assert w.count() == (written, 0, written - 1)
    finally:
        os.close(reader)
    written = w.tell("rows 700")
    w.archived()
    assert len(w.files()) == 1 and w.count() == (written, 0, written - 1)


def test_a_merge_that_is_killed_loses_and_doubles_nothing(writer, tmp_path):
    """Killed before and after each rename, after each removal, and after all that is brought to disk, of a recorder
    that merges."""
    library = tmp_path / "killed_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", library,
                    jobs.TOP / "tests/integration/targets/killed_at.c", "-ldl"], check=True)
    w = writer(bound=16 << 20)
    small_files(w, 15)
    written = w.tell("rows 700")
    saved, killed, half_done, step = tmp_path / "saved", 0, 0, 1 if SOAK else 3
    shutil.copytree(w.archive, saved, copy_function=os.link)
    for point in range(1, 200, step):
        for path in w.archive.iterdir():  # the folder itself stays: it is what a worker may read
            shutil.rmtree(path)
        shutil.copytree(saved, w.archive, copy_function=os.link, dirs_exist_ok=True)
        done = w.probe("-t", w.pid, "archive", "--once", env_more={"LD_PRELOAD": str(library), "KILLED_AT": str(point)})
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        merged = [path for path in w.files() if "~" in path.name]
        half_done += bool(merged) and len(w.files()) > 1
        if done.returncode == 0:
            break
        killed += 1
        assert w.count() == (written, 0, written - 1), point
        w.archived()
        assert len(w.files()) in (1, 16) and not list(w.archive.rglob(".*")), (point, w.files())
        n, different, whole = archived_by_others(w)
        assert n == different and whole, point
    assert killed > 8 and half_done > 2, (killed, half_done)
    assert len(w.files()) == 1 and w.count() == (written, 0, written - 1)


def age(path, days):
    """Makes a file of the archive look as if its rows were that much older."""
    run, first, last, rest = path.name.split("-", 3)
    older = [str(int(us) - days * 86400 * 10**6) for us in (first, last)]
    return path.rename(path.with_name("-".join([run, *older, rest])))


def test_the_retention_of_one_process_leaves_what_others_archived(writer):
    other, w = writer(rank="1"), writer(rank="2")
    for one in (other, w):
        one.tell("rows 20000")
        one.archived()
    mine = [path for path in w.files() if "/rank=2/" in str(path)]
    theirs = [path for path in w.files() if "/rank=1/" in str(path)]
    assert len(mine) == len(theirs) == 1
    mine, theirs = age(mine[0], 40), age(theirs[0], 40)
    w.archived("--once")  # by probing.retention_days, 7
    assert not mine.exists() and theirs.exists()
    w.archived("--once", "--retention", "30", "--max-size", "1")
    assert theirs.exists()
    w.archived("--once", "--retention", "30", "--prune")
    assert not theirs.exists()


def test_a_segment_of_more_days_than_a_batch_has_files_is_archived(writer):
    w = writer()
    for day in range(12):
        written = w.tell(f"at {4102444800 + day * 86400} 2")
    w.kill()
    w.archived("--once", "--retention", "0")
    assert sum(pyarrow.parquet.read_metadata(path).num_rows for path in w.files()) == written == 24
    shutil.rmtree(next(w.archive.parent.glob("probing-*")))  # only the archive is left
    assert w.count() == (24, 0, 23)
    assert w.rows("SELECT count(*) FROM test.stream WHERE timestamp >= '2100-01-11'") == [["4"]]


def test_one_table_that_cannot_be_archived_holds_up_no_other(writer):
    w = writer()
    w.tell("rows 100")
    w.kill()
    w.archive.mkdir()
    (w.archive / "test.stream").write_text("in the way")
    done = w.probe("-t", w.pid, "archive", "--once")
    assert done.returncode == 1 and "test.stream cannot be archived" in done.stderr, done.stderr
    assert len(w.files("shy")) == 1


@pytest.mark.parametrize("bad", ["a recording", "its own tables"])
def test_one_recording_that_cannot_be_read_holds_up_no_other(tmp_path, bad):
    env = {**os.environ, "PROBING_DIR": str(tmp_path), "PROBING_ARCHIVE": str(tmp_path / "archive")}
    with jobs.python(env=env) as job:
        if bad == "its own tables":
            assert jobs.probe("-t", job.pid, "inject", env=env).returncode == 0
        for _ in range(2):
            assert jobs.probe("-t", job.pid, "record", "--duration", "500ms", env=env).returncode == 0
        counted = jobs.rows("-t", job.pid, "SELECT count(*) AS n FROM python.samples", env=env)[0]["n"]
        job.process.kill()
        job.process.wait()
        recordings = sorted(tmp_path.glob("probing-*/*.of-*/arena"))
        own = [path for path in tmp_path.glob("probing-*/*/arena") if ".of-" not in path.parent.name]
        assert len(recordings) == 2 and len(own) == (bad == "its own tables")
        with open((own or recordings)[0], "r+b") as arena:
            arena.write(bytes(64))
        for _ in range(2):
            done = jobs.probe("-t", job.pid, "archive", "--once", env=env)
            assert done.returncode == 1, done.stderr
            assert "cannot be read" in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
        there = duckdb.sql(
            f"SELECT count(*) FROM read_parquet('{tmp_path}/archive/python.samples/*/*/*/*/*.parquet')").fetchall()[0][
                0]
        assert there == counted if own else 0 < there < counted, (there, counted)


def test_no_run_of_a_large_archive_is_dropped(writer, tmp_path):
    """All of 4,200 runs are asked at once, and each gives its rows."""
    w = writer(job="", rank="")
    w.tell("rows 3")
    w.kill()
    w.archived()
    (file,) = w.files()
    (run,) = (path for path in (w.archive / "_probing").iterdir() if path.is_dir())
    columns, about = run / "test.stream.columns", (run / "about").read_text()
    for i in range(4200):
        other = run.with_name(f"{i:016x}")
        other.mkdir()
        (other / "about").write_text(re.sub(r"(?m)^pid=.*$", f"pid={10_000_000 + i}", about))
        os.link(columns, other / columns.name)
        os.link(file, file.with_name(file.name.replace(run.name, other.name)))
    done = jobs.probe("query", "--archive", w.archive, "--format", "csv", "--timeout", "60",
                      "SELECT count(*), count(DISTINCT target_pid), max(target_pid) FROM test.stream")
    assert done.stdout.splitlines()[1:] == ["12603,4201,10004199"], done.stderr
    # Of what is there now there is nothing to see of processes that ended; of what is said of each, all that there are
    # descriptors for.
    done = jobs.probe("query", "--archive", w.archive, "--format", "csv", "SELECT count(*) FROM system.process")
    assert done.stdout.splitlines()[1:] == ["0"] and done.stderr == ""
    for most in (1000, 9000):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < most:
            continue
        done = subprocess.run(["prlimit", f"--nofile={most}:{most}", jobs.PROGRAM, "query", "--archive", w.archive,
                               "--format", "csv", "--strict", "--timeout", "60",
                               "SELECT count(*) FROM probing.sources"], capture_output=True, text=True)
        missing = done.stderr.count("is missing in probing.sources")
        assert done.stdout.splitlines()[1:] == [str(4201 - missing)], done.stderr
        assert (done.returncode, missing > 3200) == ((1, True) if most < 4201 else (0, False)), done.stderr


def test_no_file_of_a_large_archive_is_dropped(writer):
    """131,200 files of a year ago, and one of today, which is the last of them all."""
    w = writer()
    w.tell("rows 200")
    w.kill()
    w.archived()
    (file,) = w.files()
    run, first, last, rest = re.match(r"(\w+)-(\d+)-(\d+)-(1of1-c\d+-r\d+)-", file.name).groups()
    old, year = file.parent.with_name("date=2001-01-01"), 365 * 86400 * 10**6
    old.mkdir()
    for i in range(131_200):
        if i % 50_000 == 0:  # a file system may allow no more than 65,000 links of one
            copy = shutil.copy(file, w.archive.parent / f"copy{i}")
        os.link(copy, old / f"{run}-{int(first) - year + i}-{int(last) - year + i}-{rest}-{i + 1000:x}.parquet")
    done = w.probe("-t", w.pid, "query", "--format", "csv", "--stats", "SELECT count(*) FROM test.stream WHERE "
                                                                       "timestamp >= now() - INTERVAL 1 DAY")
    assert done.stdout.splitlines()[1:] == ["200"] and "archived files read: 1, skipped: 131200" in done.stderr
    said = w.archived("--once", "--retention", "30").stdout
    assert "131200 old files removed" in said and w.files() == [file]


def test_retention_takes_the_oldest_and_nothing_foreign(writer):
    w = writer(bound=16 << 20)
    for _ in range(6):
        w.tell("rows 4000")
        w.archived()
    files = w.files()
    assert len(files) == 6
    folder = files[0].parent
    foreign = [folder / "notes.parquet", folder / ".hidden", w.archive / "README",
               w.archive / "test.stream" / "mine.txt", w.archive / "own" / files[0].name]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (0, 0))
    outside = w.archive.parent / files[0].name
    outside.write_text("not ours to touch")
    link = folder / files[0].name.replace("-1of1-", "-1of2-")
    link.symlink_to(outside)
    oldest = age(files[0], 40)
    sizes = {path: path.stat().st_size for path in files[1:]}
    said = w.archived("--once", "--retention", "30").stdout
    assert "1 old files removed" in said and not oldest.exists() and all(path.exists() for path in sizes)
    room = sum(sizes[path] for path in files[3:])
    w.archived("--once", "--max-size", str(room))
    assert w.files() == sorted([*files[3:], folder / "notes.parquet", link])
    assert all(path.read_text() == "mine" for path in foreign) and outside.read_text() == "not ours to touch"
    # What is still live is not lost to a query, whatever was removed.
    assert w.count()[2] == 23999
    done = jobs.probe("query", "--archive", "none", "--format", "csv", "SELECT 1 AS one")
    assert done.stdout == "one\n1\n", done.stderr
    for words in (["--retention", "x"], ["--max-size", "lots"], ["--every", "1ms"], ["--once", "--background"]):
        done = w.probe("-t", w.pid, "archive", *words)
        assert done.returncode == 2 and done.stderr.startswith("probing: archive: --")


@contextmanager
def small_disk(where, size):
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], stderr=subprocess.PIPE,
                          universal_newlines=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_loses_nothing(writer, tmp_path):
    w = writer(bound=16 << 20)
    disk = tmp_path / "disk"
    with small_disk(disk, "400k"):
        w.archive = disk / "archive"
        w.env["PROBING_ARCHIVE"] = str(w.archive)
        w.tell("rows 5000")
        w.archived()
        w.tell("rows 30000")
        (disk / "ballast").write_bytes(bytes(300 << 10)) if shutil.disk_usage(disk).free > (300 << 10) else None
        done = w.probe("-t", w.pid, "archive", "--once")
        assert done.returncode == 1, done.stderr
        assert re.fullmatch(r"probing: archive: .*(disk is full|No space left).*\n", done.stderr), done.stderr
        assert w.count() == (35000, 0, 34999) and not list(w.archive.rglob(".tmp*"))
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        w.archived()
        assert w.count() == (35000, 0, 34999) and len(w.files()) >= 2


def test_a_damaged_file_is_named(writer):
    w = writer()
    w.tell("rows 3000")
    w.archived()
    whole = w.files()[0].read_bytes()
    for text in (b"", b"nothing of ours", whole[:-6], whole[:-8] + b"\xff\xff\xff\x7fPAR1"):
        w.files()[0].write_bytes(text)
        done = w.probe("-t", w.pid, "query", "SELECT count(*) FROM test.stream")
        told = (f"probing: query: the archived file {w.files()[0]} is damaged (remove it, or --archive none leaves "
                f"archived rows out)\n")
        assert (done.returncode, done.stderr) == (1, told)
    chance = random.Random(1)
    for _ in range(40):  # bytes that have changed anywhere: rows, or one line that says so
        at = chance.sample(range(len(whole)), chance.choice((1, 3, 10)))
        w.files()[0].write_bytes(bytes(byte ^ 0x55 if i in at else byte for i, byte in enumerate(whole)))
        done = w.probe("-t", w.pid, "query", "SELECT * FROM test.stream")
        # Changed bytes of a name or a value make errors of SQL that do not tell of a damage (a column of another
        # name, a number out of range): then that is the answer, as long as it is one and no crash.
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr.count("probing: query: ") == done.returncode, done.stderr
        assert "INTERNAL" not in done.stderr and "crashed" not in done.stderr, done.stderr
    assert w.files()[0].unlink() or w.count() == (3000, 0, 2999)


def test_a_query_reads_the_archive_and_no_other_file(writer, tmp_path):
    w = writer()
    w.tell("rows 3000")
    w.archived()
    secret = tmp_path / "secret.parquet"
    duckdb.sql("SELECT 1 AS x").write_parquet(str(secret))
    file = w.files()[0]
    assert w.rows(f"SELECT count(*) > 1000 FROM test.stream, (SELECT count(*) FROM read_parquet('{file}'))") == [
        ["true"]]
    for sql in (f"FROM read_parquet('{secret}')", f"FROM read_parquet('{w.archive}/../secret.parquet')",
                "FROM read_text('/etc/passwd')",
                f"COPY (SELECT 1) TO '{w.archive}/x.parquet'", f"FROM glob('{tmp_path}/*')",
                f"ATTACH '{w.archive}/x.db'"):
        done = w.probe("-t", w.pid, "query", f"SELECT count(*) FROM test.stream; {sql}")
        assert done.returncode == 1 and done.stderr.startswith("probing: query: "), (sql, done.stdout)
    assert w.rows("SELECT count(*) FROM test.stream") == [["3000"]] and not (w.archive / "x.parquet").exists()


def test_the_kernel_denies_what_the_archive_is_not(writer, hole):
    """A worker that may read an archive, taken over by an attacker: the rest of the file system is closed all the
    same."""
    w = writer()
    w.tell("rows 3000")
    w.archived()
    w.env["PROBING_SQL_WORKER"] = hole["PROBING_SQL_WORKER"]
    said = w.rows(" UNION ALL ".join(f"SELECT '{what}', pb_escape('{what}')" for what in NATIVE)
                  + " UNION ALL SELECT 'rows', count(*)::VARCHAR FROM test.stream")
    assert dict(said) == {**{what: "EPERM" for what in NATIVE}, "open": "EACCES", "rows": "3000"}


@pytest.mark.skipif(not SOAK, reason="the long form starts Spark: make soak")
def test_spark_reads_it_as_it_is(writer, tmp_path):
    from pyspark.sql import SparkSession

    w = writer()
    w.tell("rows 5000")
    w.tell("at 4102444790 20")
    w.kill()
    w.archived("--retention", "0")
    session = SparkSession.builder.master("local[1]").config("spark.sql.session.timeZone",
                                                             "UTC").config("spark.ui.enabled", "false").getOrCreate()
    try:
        rows = session.read.parquet(str(w.archive / "test.stream"))
        kinds = dict(rows.dtypes)
        assert {k: kinds[k] for k in ("timestamp", "timestamp_ns", "n", "name", "address", "ratio", "flag", "raw",
                                      "size", "rank", "date")} == {
            "timestamp": "timestamp_ntz", "timestamp_ns": "bigint", "n": "bigint", "name": "string",
                                          "address": "bigint", "ratio": "double",
            "flag": "boolean", "raw": "binary", "size": "bigint", "rank": "int", "date": "date"}
        assert rows.selectExpr("count(*)", "sum(proof)", "max(job)",
                               "count_if(date = to_date(timestamp))").collect()[0][:] == (
            5020, sum(n * 31 + 7 for n in range(5020)), "a/b c", 5020)
        assert rows.where("date = '2100-01-01'").count() == 10
    finally:
        session.stop()
