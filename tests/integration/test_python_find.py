"""CPython is found wherever it is: in programs that export nothing, that are stripped, renamed, without sections,
deleted or replaced, and in those that load it themselves."""
import glob
import os
import re
import shutil
import subprocess
import time

import interpreters
import jobs
import pytest
import stack_kit
from jobs import probe
from stack_kit import backtrace, functions

# Nothing but what every interpreter has built in: modules of a shared build would bring a second interpreter along.
WAITING = """
import _thread
def spin(begun):
    n = 0
    begun.release()
    while True:
        n += 1
def wait(lock):
    print("ready", flush=True)
    lock.acquire()
lock, begun = _thread.allocate_lock(), _thread.allocate_lock()
lock.acquire()
begun.acquire()
_thread.start_new_thread(spin, (begun,))
begun.acquire()
wait(lock)
"""


def prefix_of(interpreter):
    return os.path.dirname(os.path.dirname(os.path.realpath(interpreter)))


def archive_of(interpreter):
    """Of one that was built here: a distribution's wants libraries that need not be there."""
    if prefix_of(interpreter) == "/usr":
        return None
    return next(iter(glob.glob(f"{prefix_of(interpreter)}/lib/python3*/config-*/libpython3*.a")), None)


STATIC = [path for path in interpreters.INTERPRETERS if archive_of(path)]


def drop_sections(path):
    """The table of sections is not needed to run."""
    with open(path, "r+b") as f:
        f.seek(40)
        f.write(bytes(8))
        f.seek(60)
        f.write(bytes(4))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Makes programs with an interpreter in them, by interpreter: with symbols, stripped, and without sections."""
    made = {}

    def make(interpreter):
        if interpreter not in made:
            folder = tmp_path_factory.mktemp("embed")
            folder.chmod(0o755)
            plain, stripped, bare = folder / "trainer", folder / "trainer-stripped", folder / "trainer-bare"
            subprocess.run(["cc", "-w", stack_kit.TARGETS / "python_embed.c", archive_of(interpreter), "-o", plain,
                            "-Wl,--exclude-libs,ALL", "-lpthread", "-ldl", "-lutil", "-lm"], check=True)
            subprocess.run(["strip", "--strip-all", "-o", stripped, plain], check=True)
            shutil.copy(stripped, bare)
            drop_sections(bare)
            made[interpreter] = {"symbols": plain, "stripped": stripped, "bare": bare}
        return made[interpreter]
    return make


def start(interpreter, script, *words):
    script.write_text(WAITING)
    return jobs.start(*words, "-S", script, ready="ready", env={"PYTHONHOME": prefix_of(interpreter)})


def check(pid, interpreter, gil=True):
    for _ in range(50):
        process = backtrace(pid)
        spin = next(thread for thread in process["threads"] if functions(thread) == ["spin"])
        main = next(thread for thread in process["threads"] if thread["name"] == "MainThread")
        # It waits for the GIL before it waits for the lock, and the GIL is between two owners at times.
        if spin["gil"] == gil and main["frames"] and main["frames"][0]["line"] == 10:
            break
        time.sleep(0.02)
    assert ".".join(map(str, interpreters.version_of(interpreter))) == process["python"] and process["verified"]
    assert spin["gil"] == gil and spin["frames"][0]["line"] in (6, 7)
    assert [(frame["name"], frame["line"]) for frame in main["frames"]] == [("wait", 10), ("<module>", 16)]


@pytest.mark.parametrize("kind", ["symbols", "stripped", "bare"])
@pytest.mark.parametrize("interpreter", STATIC, ids=interpreters.interpreter_id)
def test_a_program_that_exports_nothing(interpreter, kind, programs, tmp_path):
    with start(interpreter, tmp_path / "waiting.py", programs(interpreter)[kind]) as job:
        # 3.6 keeps who has the GIL in a variable that nothing points out where there is no symbol.
        check(job.pid, interpreter, gil=kind == "symbols" or interpreters.version_of(interpreter) >= (3, 7))


@pytest.mark.parametrize("interpreter", [path for path in interpreters.INTERPRETERS
                                         if glob.glob(f"{prefix_of(path)}/lib/libpython3.*.so.1.0")],
                         ids=interpreters.interpreter_id)
def test_a_program_that_loads_it_under_another_name(interpreter, tmp_path):
    host, library = tmp_path / "host", tmp_path / "libengine.so"
    shutil.copy(glob.glob(f"{prefix_of(interpreter)}/lib/libpython3.*.so.1.0")[0], library)
    subprocess.run(["cc", "-w", "-DLIBRARY", stack_kit.TARGETS / "python_embed.c", "-o", host, "-ldl"], check=True)
    with start(interpreter, tmp_path / "waiting.py", host, library) as job:
        check(job.pid, interpreter)


# A root without capabilities is anybody: the kernel's links to mapped files are closed to it.
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("rights", [True, False], ids=["root", "owner"])
@pytest.mark.parametrize("change", ["deleted", "replaced"])
@pytest.mark.parametrize("kind", ["stripped", "bare"])
def test_a_program_whose_file_is_gone(kind, change, rights, programs, tmp_path):
    if rights and os.geteuid() != 0:
        pytest.skip("only root is root")
    interpreter = STATIC[-1]
    words = [] if rights else WITHOUT_RIGHTS
    program, script = tmp_path / "trainer", tmp_path / "waiting.py"
    shutil.copy(programs(interpreter)[kind], program)
    with start(interpreter, script, *words, program) as job:
        program.unlink()
        if change == "replaced":
            shutil.copy("/bin/true", program)
        done = subprocess.run([*words, jobs.PROGRAM, "-t", str(job.pid), "backtrace"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        assert "spin (" in done.stdout, done.stdout
        assert re.search(rf"wait \({re.escape(str(script))}:(9|10)\)", done.stdout), done.stdout


def test_a_process_without_python_is_told_apart_quickly():
    with jobs.start("sleep", "1000") as job:
        done = probe("-t", job.pid, "backtrace")
        assert done.returncode == 0 and "no Python in it" in done.stdout
