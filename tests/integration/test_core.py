"""core: the stacks of processes that died, from cores of the kernel and of gdb, on every interpreter."""
import gzip
import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import interpreters
import jobs
import pytest
import roots
from jobs import probe

EVERY = pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)

PROGRAM = """
import ctypes, sys, threading, time
def worker(n):
    label = "w\\u20ac" * n
    time.sleep(1000)
def inner(count, table):
    text = "hello \\u20ac"
    ctypes.string_at(0xdead0)
def outer():
    numbers = [1, 2, 3]
    inner(7, {"k": 2.5})
threading.Thread(target=worker, args=(2,), name="sleeper", daemon=True).start()
time.sleep(0.1)
print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(1000)
outer()
"""

FAULT = """
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static volatile int *nowhere;
__attribute__((noinline)) int deepest(int n) { return *nowhere + n; }
__attribute__((noinline)) int middle(int n) { return deepest(n) + 1; }
static void *wait(void *arg) { for (;;) pause(); return arg; }
int main(int argc, char **argv)
{
    pthread_t t;
    pthread_create(&t, 0, wait, 0);
    usleep(50000);
    nowhere = (int *)(long)argc;
    return argc > 1 ? kill(getpid(), SIGTERM) : middle(3) + 1;
}
"""


def limit():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def kernel_core(command, folder, cwd=None):
    """Runs what dies in that folder; the core that the kernel left there."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"cores go elsewhere here: core_pattern is {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("cores are limited here (ulimit -H -c)")
    subprocess.run(command, cwd=cwd or folder, preexec_fn=limit, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   check=False)
    core, = folder.glob("core*")
    return core


def gcore(pid, folder):
    if not shutil.which("gcore"):
        pytest.skip("gcore is not installed (Debian: gdb)")
    subprocess.run(["gcore", "-o", str(folder / "live"), str(pid)], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True)
    return folder / f"live.{pid}"


def stacks(core, *options):
    done = probe("core", core, "backtrace", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def names(thread):
    return [f["function"].rpartition(".")[2] for f in thread["frames"]]


def line_of(text, program=PROGRAM):
    return 1 + next(i for i, line in enumerate(program.splitlines()) if text in line)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "crash.py"
    path.write_text(PROGRAM)
    return path


@EVERY
def test_what_a_crash_left_is_read(interpreter, script, tmp_path):
    core = kernel_core([interpreter, str(script)], tmp_path)
    process = stacks(core, "--locals", "--native")
    dead, waits = process["threads"]
    assert process["source"] == "core file" and process["signal"] == "SIGSEGV" and process["notes"] == []
    assert process["verdict"].endswith('"MainThread": there is no memory at 0xdead0')
    assert dead["gil"] and dead["state"] == "died of SIGSEGV" and dead["tid"] == process["pid"] == process["died_in"]
    assert names(dead) == ["string_at", "inner", "outer", "<module>"]
    assert [f["line"] for f in dead["frames"][1:]] == [line_of("string_at"), line_of("inner(7"),
                                                       line_of("outer()", PROGRAM.replace("def outer()", ""))]
    assert dead["frames"][1]["locals"] == {"count": "7", "table": "{'k': 2.5}", "text": "'hello \u20ac'"}
    assert names(waits)[0] == "worker" and waits["name"] == "sleeper" and not waits["gil"]
    assert waits["syscall"] in ("clock_nanosleep", "select", "pselect6")
    assert waits["frames"][0]["locals"]["label"] == "'w\u20acw\u20ac'"
    # The native frames lead from the fault to the call in Python.
    merged = [f["function"] for f in dead["stack"]]
    assert "strlen" in (merged[0] or "") and merged.index("string_at") < merged.index("inner") < merged.index("outer")


@EVERY
def test_a_core_of_a_live_process_is_what_backtrace_shows(interpreter, script, tmp_path):
    with jobs.start(interpreter, script, "wait", ready="ready") as job:
        live = json.loads(probe("-t", job.pid, "backtrace", "--json").stdout)[0]
        core = gcore(job.pid, tmp_path)
    process = stacks(core)
    assert process["pid"] == job.pid and process["python"] == live["python"] and "signal" not in process
    shown = [{key: thread[key] for key in ("tid", "name", "syscall", "frames", "gil")} for thread in process["threads"]]
    assert shown == [{key: thread[key] for key in ("tid", "name", "syscall", "frames", "gil")}
                     for thread in live["threads"]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", roots.INTERPRETERS["sid"])
def test_a_core_from_a_container_is_read_with_its_files(program, script, tmp_path):
    root = roots.path("sid")
    roots.put("sid", script)
    folder = root / "tmp" / f"core-{program[-4:]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = ["unshare", "--fork", "--pid", "--mount", f"--mount-proc={root}/proc", "--kill-child", "chroot", root,
               "/usr/bin/env", "-C", f"/tmp/{folder.name}", program, "/tmp/crash.py"]
    try:
        core = kernel_core(command, folder, cwd=tmp_path)  # where unshare, which dies likewise, leaves its own
        process = stacks(core, "--root", root)
        assert process["pid"] == 1 and process["python"].startswith(program[-4:]) and process["notes"] == []
        assert [names(t)[0] for t in process["threads"]] == ["string_at", "worker"]
        assert process["threads"][1]["name"] == "sleeper"
        # With our files instead of its own nothing is made up.
        process = stacks(core)
        assert any("is not the file that ran" in note or "cannot be read" in note for note in process["notes"])
    finally:
        shutil.rmtree(folder)


def compiled(folder):
    (folder / "fault.c").write_text(FAULT)
    subprocess.run(["cc", "-g", "-O1", "-o", folder / "fault", folder / "fault.c", "-pthread"], check=True)
    return folder / "fault"


def test_a_program_without_python_shows_native_stacks(tmp_path):
    core = kernel_core([compiled(tmp_path)], tmp_path)
    done = probe("core", core)
    assert done.returncode == 0, done.stderr
    assert "no Python in it, 2 threads" in done.stdout and "there is no memory at 0x1\n" in done.stdout
    first = done.stdout.split("\n\n")[1]
    assert [line.split()[0] for line in first.splitlines()[1:4]] == ["deepest", "middle", "main"]
    assert "fault.c:6)" in first


def test_a_signal_that_was_sent_names_its_sender(tmp_path):
    """SIGQUIT dumps core, like a fault."""
    program = compiled(tmp_path)
    text = FAULT.replace("SIGTERM", "SIGQUIT")
    (tmp_path / "fault.c").write_text(text)
    subprocess.run(["cc", "-o", program, tmp_path / "fault.c", "-pthread"], check=True)
    process = stacks(kernel_core([program, "quit"], tmp_path))
    assert process["verdict"].startswith("it died of SIGQUIT in thread") and "sent itself" in process["verdict"]


def test_a_replaced_program_is_not_believed(tmp_path):
    program = compiled(tmp_path)
    core = kernel_core([program], tmp_path)
    (tmp_path / "fault.c").write_text(FAULT.replace("deepest", "another"))
    subprocess.run(["cc", "-g", "-O2", "-o", program, tmp_path / "fault.c", "-pthread"], check=True)
    done = probe("core", core)
    assert f"{program} is not the file that ran" in done.stdout and "another [" not in done.stdout


def test_a_core_cut_short_says_so_and_shows_the_rest(script, tmp_path):
    core = kernel_core([interpreters.INTERPRETERS[-1], str(script)], tmp_path)
    os.truncate(core, core.stat().st_size // 3)
    done = probe("core", core)
    assert done.returncode == 0 and "the core is cut short" in done.stdout and "died of SIGSEGV" in done.stdout
    os.truncate(core, 1000)
    done = probe("core", core)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1 and "cut short" in done.stderr


def test_a_deadlock_is_seen_in_a_core(tmp_path):
    code = """
import threading, time
a, b = threading.Lock(), threading.Lock()
def one():
    with a:
        time.sleep(0.2)
        with b: pass
def two():
    with b:
        time.sleep(0.2)
        with a: pass
for f in (one, two): threading.Thread(target=f, daemon=True).start()
time.sleep(0.6)
print("ready", flush=True)
time.sleep(1000)
"""
    with jobs.python(code) as job:
        core = gcore(job.pid, tmp_path)
    assert "deadlock" in stacks(core)["verdict"]


@pytest.mark.timeout(120)
def test_a_torch_process(needs_torch, tmp_path):
    code = ("import torch, ctypes\ndef step(x):\n    ctypes.string_at(16)\nprint('ready', flush=True)\n"
            "step(torch.ones(3, 4))\n")
    (tmp_path / "train.py").write_text(code)
    core = kernel_core([str(jobs.TOP / "build/venv/bin/python"), "train.py"], tmp_path)
    process = stacks(core, "--locals", "--native")
    step = next(f for f in process["threads"][0]["frames"] if f["function"] == "step")
    assert step["line"] == 3 and "dtype=float32, shape=(3, 4)" in step["locals"]["x"]
    core.unlink()


@pytest.mark.parametrize("make, says", [
    (lambda p: p.write_bytes(b""), "is empty"),
    (lambda p: p.write_text("hello"), "is no core file"),
    (lambda p: p.write_bytes(gzip.compress(b"x" * 100)), "packed with gzip: unpack it first (gunzip -k"),
    (lambda p: shutil.copyfile("/bin/true", p), "is a program or library, not a core file"),
    (lambda p: p.mkdir(), "is no file"),
    (os.mkfifo, "is no file"),
    (lambda p: None, "No such file"),
])
def test_what_is_no_core_is_refused_in_one_line(make, says, tmp_path):
    path = tmp_path / "x"
    make(path)
    done = probe("core", path)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "", done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr, done.stderr


def test_calls_that_are_wrong(tmp_path):
    done = probe("core")
    assert done.returncode == 2 and "probing core FILE" in done.stderr
    done = probe("core", "x", "flamegraph")
    assert done.returncode == 2 and "no 'flamegraph'" in done.stderr
    done = probe("core", "/dev/null", "--root", "/nowhere")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
