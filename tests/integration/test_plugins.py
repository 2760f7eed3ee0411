"""Tables of C and C++ code in a program (include/probing.h): rows that it appends, and rows that a function gives at
the moment of a query."""
import json
import shutil
import subprocess
import sys
import time

import jobs
import pytest


def rows(pid, sql):
    done = jobs.probe("-t", pid, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(pid, sql, *options):
    done = jobs.probe("-t", pid, "query", *options, sql)
    assert done.returncode == 1, done.stdout
    return done.stderr


def library(source, path, compiler="cc", *flags):
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-fPIC", "-I", jobs.TOP / "include", *flags, source, "-o",
                    path, "-ldl", "-lpthread"], check=True)
    return path


def example(name, folder):
    return library(jobs.TOP / "examples/plugin" / (name + ".c"), folder / ("lib%s.so" % name), "cc", "-shared")


def test_a_library_in_c_records(tmp_path):
    """The example plug-in: its rows go to whatever agent is there, before, between and after."""
    code = (f"import ctypes, time\nload = ctypes.CDLL({str(example('loader', tmp_path))!r}).load\nprint('ready', "
            f"flush=True)\n"
            "while True: load(b'/proc/self/stat')\n")
    with jobs.python(code) as job:
        for _ in range(3):
            assert jobs.probe("-t", job.pid, "inject").returncode == 0
            jobs.wait_until(lambda: rows(job.pid, "SELECT name FROM probing.tables WHERE name = 'loader.loads' "
                                                  "AND rows > 10"), what="a row")
            found = rows(job.pid, "SELECT min(bytes) > 50 AS read, min(wait_ms) > 0 AS timed, min(file) AS file FROM "
                                  "loader.loads")
            assert found == [{"read": True, "timed": True, "file": "/proc/self/stat"}]
            assert jobs.probe("-t", job.pid, "detach").returncode == 0


def await_registered(pid, name):
    """An agent that has just come looks for tables in a thread of its own."""
    jobs.wait_until(lambda: "probing.registered" in jobs.probe("-t", pid, "query",
                                                               "SELECT name FROM probing.tables").stdout and rows(
        pid, "SELECT name FROM probing.registered WHERE name = '%s'" % name), what="the table to be known")


def test_a_library_in_c_is_asked_for_rows(tmp_path):
    """The example plug-in is loaded before any agent, and asked by one after the other."""
    code = f"""import ctypes, time
reader = ctypes.CDLL({str(example('open_files', tmp_path))!r})
slot, buffer = reader.reader_open(b'/etc/passwd'), ctypes.create_string_buffer(100)
for _ in range(3): reader.reader_read(slot, buffer, ctypes.c_long(100))
print('ready', flush=True)
while True: time.sleep(0.1)
"""
    with jobs.python(code) as job:
        for _ in range(2):
            assert jobs.probe("-t", job.pid, "inject").returncode == 0
            await_registered(job.pid, "reader.open_files")
            assert rows(job.pid, "SELECT * FROM reader.open_files") == [{
                "slot": 0, "path": "/etc/passwd", "reads": 3, "megabytes": 0.0003}]
            assert rows(job.pid, "SELECT function FROM probing.registered") == [{"function": "list_files"}]
            assert jobs.probe("-t", job.pid, "detach").returncode == 0


# What a function can do: give every type, fail, say why, give too much or nonsense, not return; unregister.
TABLES = r"""
#include <probing.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static const struct probing_column all_columns[] = {
    {"i8", PROBING_INT8, 0, 0}, {"u8", PROBING_UINT8, 0, 0}, {"i64", PROBING_INT64, 0, 0}, {"u64", PROBING_UINT64, 0, 0},
    {"f32", PROBING_FLOAT32, 0, 0}, {"f64", PROBING_FLOAT64, 0, 0}, {"yes", PROBING_BOOL, 0, 0}, {"moment", PROBING_TIMESTAMP, 0, 0},
    {"s", PROBING_STRING, 0, 0}, {"b", PROBING_BYTES, 0, 0}};
static const struct probing_column one[] = {{"n", PROBING_INT8, 0, 0}};

static int all_types(struct probing_rows *to, void *arg)
{
    struct probing_value none = PROBING_NULL;
    struct probing_value v[10] = {PROBING_INT(-128), PROBING_INT(255), PROBING_INT(INT64_MIN), PROBING_INT(-1), PROBING_FLOAT(0.1f), PROBING_FLOAT(0.1),
                                  PROBING_INT(1), PROBING_INT(0), PROBING_DATA("a\tb\n\\c\0d", 8), PROBING_DATA("\0\xff\t", 3)};
    (void)arg;
    if (probing_row(to, v) < 0)
        return -EIO;
    v[5].f = INFINITY;
    if (probing_row(to, v) < 0)
        return -EIO;
    for (int i = 0; i < 10; i++)
        v[i] = none;
    return probing_row(to, v);
}

static int nothing(struct probing_rows *to, void *arg) { (void)to; (void)arg; return 0; }
static int fails(struct probing_rows *to, void *arg)
{
    struct probing_value v[1] = {PROBING_INT(1)};
    (void)arg;
    probing_row(to, v);
    return -ENODEV;
}
static int says_why(struct probing_rows *to, void *arg) { (void)arg; return probing_fail(to, "the queue\tis closed"); }
static int too_large(struct probing_rows *to, void *arg)
{
    struct probing_value v[1] = {PROBING_INT(128)};
    (void)arg;
    return probing_row(to, v);
}
static int for_ever(struct probing_rows *to, void *arg)
{
    struct probing_value v[1] = {PROBING_INT(1)};
    int r;
    (void)arg;
    while ((r = probing_row(to, v)) == 0)
        ;
    return r;
}
static int asleep(struct probing_rows *to, void *arg)
{
    (void)to;
    while (!*(volatile int *)arg)
        usleep(1000);
    return 0;
}
static int wake;
static struct probing_live tables[] = {
    PROBING_LIVE("c.every_type", all_columns, all_types, 0), PROBING_LIVE("c.no_rows", one, nothing, 0), PROBING_LIVE("c.failing", one, fails, 0),
    PROBING_LIVE("c.saying_why", one, says_why, 0), PROBING_LIVE("c.too_large", one, too_large, 0), PROBING_LIVE("c.for_ever", one, for_ever, 0),
    PROBING_LIVE("c.sleeping", one, asleep, &wake), PROBING_LIVE("not a name", one, nothing, 0)};

#ifdef __cplusplus
extern "C"
#endif
__attribute__((constructor)) void tell(void);
void tell(void)
{
    for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        probing_register(&tables[i]);
}
#ifdef __cplusplus
extern "C"
#endif
int take_back(int i);
int take_back(int i) { wake = 1; return probing_unregister(&tables[i]); }
#ifdef PROGRAM
int main(void)
{
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
#endif
"""


def check_tables(pid):
    first, second, nulls = rows(pid, "SELECT * REPLACE (hex(b) AS b, epoch(now()) - epoch(moment) AS moment) FROM "
                                     "c.every_type")
    up = first.pop("moment")
    assert abs(up - time.monotonic()) < 30
    assert first == {"i8": -128, "u8": 255, "i64": -2 ** 63, "u64": 2 ** 64 - 1, "f32": pytest.approx(0.1), "f64": 0.1,
                     "yes": True, "s": "a\tb\n\\c\0d", "b": "00FF09"}
    assert second["f64"] in ("Infinity", "inf", float("inf")) and set(nulls.values()) == {None}, nulls
    assert rows(pid, "SELECT count(*) AS n FROM c.no_rows") == [{"n": 0}]
    assert "table c.failing: the function fails returned -19: No such device" in refused(pid, "SELECT * FROM c.failing")
    assert "table c.saying_why: the function says_why failed: the queue\\tis closed" in refused(
        pid, "SELECT * FROM c.saying_why")
    assert "table c.too_large: the function too_large gave a value that does not fit column n in row 1" in refused(
        pid, "SELECT * FROM c.too_large")
    assert "table c.for_ever: the function for_ever gave more than 100000 rows" in refused(
        pid, "SELECT * FROM c.for_ever")
    # One that fails and is not wanted, though it is named, is no failed query.
    assert rows(pid, "SELECT 'c.failing' AS x, count(*) AS n FROM c.no_rows") == [{"x": "c.failing", "n": 0}]


def test_every_type_and_every_failure_of_a_function_in_c(tmp_path):
    source = tmp_path / "tables.c"
    source.write_text(TABLES)
    path = library(source, tmp_path / "libtables.so", "cc", "-shared")
    code = f"""import _ctypes, ctypes, sys
tables = ctypes.CDLL({str(path)!r})
print('ready', flush=True)
for line in sys.stdin:
    if line == 'close\\n':
        _ctypes.dlclose(tables._handle)
        print('closed', flush=True)
    else:
        print(tables.take_back(int(line)), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as job:
        assert job.stdout.readline() == "ready\n"
        assert jobs.probe("-t", job.pid, "inject").returncode == 0
        await_registered(job.pid, "c.sleeping")
        check_tables(job.pid)
        assert "the function asleep did not return within 0." in refused(
            job.pid, "SELECT * FROM c.sleeping", "--timeout", "1")
        assert "the function asleep is still busy with an earlier query" in refused(
            job.pid, "SELECT * FROM c.sleeping", "--timeout", "5")
        job.stdin.write("6\n1\n")
        job.stdin.flush()
        assert job.stdout.readline().strip() in ("-16", "0")  # -EBUSY: a query was in it
        assert job.stdout.readline() == "0\n"
        assert "no_rows" in refused(job.pid, "SELECT * FROM c.no_rows")
        # A library that is gone has taken its tables along.
        job.stdin.write("close\n")
        job.stdin.flush()
        assert job.stdout.readline() == "closed\n"
        jobs.wait_until(lambda: str(path) not in open("/proc/%d/maps" % job.pid).read(), what="the library to go")
        assert "every_type" in refused(job.pid, "SELECT * FROM c.every_type")
        assert jobs.probe("-t", job.pid, "eval", "1 + 1").stdout == "2\n"
        job.stdin.close()
        assert job.wait(timeout=30) == 0
    jobs.forget(job.pid)


@pytest.mark.parametrize("compiler", ["cc", "c++"])
def test_a_program_without_python_is_asked_for_rows(compiler, tmp_path):
    if not shutil.which(compiler):
        pytest.skip("no %s here" % compiler)
    source = tmp_path / ("program.c" if compiler == "cc" else "program.cc")
    source.write_text(TABLES)
    program = library(source, tmp_path / "program", compiler, "-DPROGRAM", "-rdynamic")
    with jobs.start(program, ready="ready") as job:
        assert jobs.probe("-t", job.pid, "inject").returncode == 0
        await_registered(job.pid, "c.sleeping")
        check_tables(job.pid)
