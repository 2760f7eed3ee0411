"""`probing backtrace --native`: native frames where they were called, beside Python's, and of programs without
Python."""
import csv
import io
import json
import subprocess
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id

CODE = """
import threading, time
def leaf(): time.sleep(1000)
def key(x): leaf()
def body(): sorted([1, 2], key=key)
threading.Thread(target=body, name="other", daemon=True).start()
print("ready", flush=True)
body()
"""
C_PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int innermost(int x) { pause(); return x + 1; }
__attribute__((noinline)) int outer(int x) { return innermost(x) * 2; }
static void *work(void *arg) { return (void *)(long)outer(3); }
__attribute__((noinline)) int spinner(volatile int *x) { for (;;) ++*x; return *x; }
int main(void)
{
    pthread_t a, b;
    int x = 0;
    pthread_create(&a, NULL, work, NULL);
    pthread_create(&b, NULL, work, NULL);
    puts("ready");
    fflush(stdout);
    return spinner(&x);
}
"""
# Waits in a function that looks like a call of the interpreter's loop, but has no Python frames: as if just entered.
FALSE_LOOP = r"""
#include <unistd.h>
__attribute__((noinline)) static int down(int n) { return n ? down(n - 1) + 1 : pause(); }
int _PyEval_EvalFrameDefault(int n) { return down(n) + 1; }
"""
CALLS_IT = """
import ctypes
enter = ctypes.CDLL({library!r})._PyEval_EvalFrameDefault
def called(n):
    if n: return called(n - 1)
    print("ready", flush=True)
    enter({depth})
called({depth})
"""
TORCH = """
import threading, torch
def multiply():
    a = torch.randn(1500, 1500)
    while True: a = (a @ a).clamp(-1, 1)
threading.Thread(target=multiply, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def backtrace(pid, *words):
    done = jobs.probe("-t", str(pid), "backtrace", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def threads(pid, *words):
    (process,) = json.loads(backtrace(pid, "--json", *words))
    return process["threads"]


def names(thread):
    return [(f["kind"], f["function"] or "?") for f in thread["stack"]]


def in_order(found, wanted):
    """Whether wanted comes in found, in that order, with anything between."""
    rest = iter(found)
    return all(any(kind == k and part in f for k, f in rest) for kind, part in wanted)


@pytest.fixture(scope="module")
def c_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    (folder / "waits.c").write_text(C_PROGRAM)
    subprocess.run(["cc", "-g", "-O1", "-fno-optimize-sibling-calls", "-pthread", str(folder / "waits.c"), "-o",
                    str(folder / "waits")], check=True)
    return str(folder / "waits")


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_c_between_python_stands_where_it_was_called(interpreter):
    with jobs.python(CODE, interpreter=interpreter) as job:
        time.sleep(0.2)
        found = threads(job.pid, "--native")
        assert len(found) == 2
        for thread in found:
            assert thread["merge"] == "full", thread
            python = [f["function"] for f in thread["stack"] if f["kind"] == "python"]
            assert python == [f["function"] for f in thread["frames"]]
            # The names of static functions are not known of an interpreter that was stripped.
            sort = "" if ("native", "?") in names(thread) else "sort"
            assert in_order(names(thread), [("python", "leaf"), ("python", "key"), ("native", sort),
                                            ("python", "body")]), names(thread)
            assert names(thread)[0][0] == "native"
            assert all(f["module"] for f in thread["stack"] if f["kind"] == "native"), thread["stack"]
        text = backtrace(job.pid, "--native")
        between = text[text.index(" key ("):text.index(" body (")]
        assert " [" in between and " [" in text[:text.index(" leaf (")], text
        assert " [" not in backtrace(job.pid)


def test_a_c_program_shows_its_native_stacks_without_being_asked(c_program):
    with jobs.start(c_program, ready="ready") as job:
        time.sleep(0.1)
        text = backtrace(job.pid)
        assert "no Python in it, 3 threads" in text
        assert "spinner [waits]" in text and "waits.c:8" in text
        assert text.count("innermost [waits]") == 1 and '2 threads "waits"' in text, text
        for thread in threads(job.pid):
            assert not thread["python"]
            order = ["spinner", "main"] if thread["tid"] == job.pid else ["innermost", "outer", "work"]
            assert in_order(names(thread), [("native", f) for f in order]), names(thread)
            assert any((f["file"] or "").endswith("waits.c") and f["line"] for f in thread["stack"])


def test_without_stopping_one_that_runs_has_no_stack(c_program):
    with jobs.start(c_program, ready="ready") as job:
        time.sleep(0.1)
        text = backtrace(job.pid, "--no-stop")
        assert "innermost" in text and "spinner" not in text and "leave out --no-stop" in text, text


def test_a_torch_thread_shows_its_kernels(needs_torch):
    with jobs.python(TORCH) as job:
        time.sleep(0.5)
        for _ in range(20):
            found = [t for t in threads(job.pid, "--native")
                     if any(f["function"] == "multiply" for f in t.get("frames", ()))]
            modules = {(f["module"] or "").rsplit("/", 1)[-1] for t in found for f in t["stack"]
                       if f["kind"] == "native"}
            if any(m.startswith("libtorch_cpu") for m in modules):
                assert any("at::" in (f["function"] or "") for t in found for f in t["stack"])  # demangled
                return
        raise AssertionError(modules)


def test_native_frames_are_merged_and_written_as_rows_too(c_program):
    with jobs.start(c_program, ready="ready") as job:
        time.sleep(0.1)
        merged = backtrace(job.pid, "--merge", "--native")
        assert merged.startswith("1 process, 3 threads, 2 different stacks"), merged
        groups = {group.splitlines()[0].split(":")[0]: group for group in merged.split("\n\n")[1:]}
        assert "innermost [waits]" in groups["2 threads"] and "spinner [waits]" in groups["1 thread"], merged
        rows = list(csv.DictReader(io.StringIO(backtrace(job.pid, "--native", "--format", "csv"))))
        assert {row["kind"] for row in rows} == {"native"} and all(row["module"] for row in rows)
        of_main = [row["function"] for row in rows if row["tid"] == str(job.pid)]
        assert of_main[0] == "spinner" and "main" in of_main
        assert [int(row["depth"]) for row in rows if row["tid"] == str(job.pid)] == list(range(len(of_main)))
    with jobs.python(CODE) as job:
        time.sleep(0.2)
        rows = list(csv.DictReader(io.StringIO(backtrace(job.pid, "--native", "--format", "tsv")), delimiter="\t"))
        assert {row["kind"] for row in rows} == {"native", "python"}
        assert all(row["module"] for row in rows if row["kind"] == "native")
        assert {row["module"] for row in rows if row["kind"] == "python"} == {"\\N"}
        assert backtrace(job.pid, "--format", "csv").splitlines()[0].endswith(",line")


@pytest.fixture(scope="module")
def false_loop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    (folder / "loop.c").write_text(FALSE_LOOP)
    subprocess.run(["cc", "-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", str(folder / "loop.c"), "-o",
                    str(folder / "loop.so")], check=True)
    return str(folder / "loop.so")


@pytest.mark.parametrize("depth", [0, 100], ids=["short", "deep"])
def test_frames_that_do_not_fit_are_shown_apart_and_it_is_said(depth, false_loop, tmp_path):
    remark = "(where the Python frames belong among the native ones is not known; they are:)"
    with jobs.python(CALLS_IT.format(library=false_loop, depth=depth)) as job:
        time.sleep(0.2)
        (thread,) = threads(job.pid, "--native")
        assert thread["merge"] == "apart" and thread["read"] in ("asleep", "stopped"), thread
        kinds, functions = [f["kind"] for f in thread["stack"]], [f["function"] for f in thread["stack"]]
        first = kinds.index("python")
        assert set(kinds[:first]) == {"native"} and set(kinds[first:]) == {"python"}, kinds
        assert functions[first:] == [f["function"] for f in thread["frames"]] == ["called"] * (depth + 1) + ["<module>"]
        assert functions[:first].count("down") == depth + 1, functions
        assert functions[:first].count("_PyEval_EvalFrameDefault") >= 2, functions
        for words in ([], ["--merge"]):
            text = backtrace(job.pid, "--native", *words)
            assert text.count(remark) == 1, text
            assert text.index(" down [loop.so]") < text.index(remark) < text.index("<module> ("), text
            assert ("more frames .." in text) == (depth > 0)
            after = text[text.index(remark) + len(remark):]
            assert "called (" in after and "[" not in after, after
        assert remark not in backtrace(job.pid)
        done = jobs.probe("-t", job.pid, "flamegraph", "--native", "--idle", "--duration", 1, "-o",
                          tmp_path / "a.folded")
        assert done.returncode == 0 and " with native frames apart" in done.stdout, done
