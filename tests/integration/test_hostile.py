"""The tool under attack by the job: its memory, files, sockets and names are whatever it likes, and the tool is often
root. Each command ends in seconds, with an answer or one line that says why not, whatever it finds."""
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import interpreters
import jobs
import pytest
import roots
from jobs import probe
from stack_kit import LIBRARIES

TOP = Path(__file__).resolve().parent.parent.parent
TARGETS = Path(__file__).resolve().parent / "targets"
MEMORY = 512 << 20  # of address space, which a command must not need more of
# Root without the right to trace a process that has all capabilities: what it reads comes through the agent.
POOR = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]

CODE = """
import asyncio, threading, time
class Thing:
    def __init__(self):
        self.items = {"a": [1, 2.5, "text"], b"k": (1, {2, 3})}
        self.other = self
def innermost(thing, number):
    with threading.RLock():
        print("ready", flush=True)
        time.sleep(1000)
def waits():
    async def one():
        await asyncio.sleep(1000)
    async def several():
        await asyncio.gather(*[one() for _ in range(5)])
    asyncio.run(several())
threading.Thread(target=waits, name="loop", daemon=True).start()
time.sleep(0.3)
innermost(Thing(), 7**300)
"""

TELLING = [*[path for path in interpreters.INTERPRETERS if interpreters.version_of(path) >= (3, 13)],
           *[("sid", path) for path in roots.INTERPRETERS["sid"]]]
SOAK = os.environ.get("PROBING_SOAK")  # takes every interpreter
EVERY_THAT_TELLS = pytest.mark.parametrize("interpreter", TELLING if SOAK else TELLING[-1:],
                                           ids=lambda i: i[1].rsplit("/", 1)[1] if isinstance(i, tuple)
                                           else interpreters.interpreter_id(i))


@contextmanager
def job_of(interpreter, tmp_path):
    """The program above in an interpreter of this machine, or (root, path) in one of a root."""
    if isinstance(interpreter, str):
        with jobs.python(CODE, interpreter=interpreter) as job:
            yield job.pid
        return
    script = tmp_path / f"hostile-{os.getpid()}.py"
    script.write_text(CODE)
    roots.path(interpreter[0])
    inside = roots.put(interpreter[0], script)
    try:
        with roots.start(*interpreter, inside) as target:
            target.wait_for("ready")
            yield target.pid
    finally:
        os.unlink(roots.ROOTS / interpreter[0] / inside[1:])


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The reader with lies in what it reads, under the sanitizers."""
    binary = tmp_path_factory.mktemp("hostile") / "reader"
    subprocess.run(["cc", "-std=gnu17", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
                    "-D_GNU_SOURCE",
                    f"-I{TOP / 'src'}", "-o", binary, TARGETS / "hostile_reader.c",
                    *(TOP / "src/remote/python").glob("*.c"), *LIBRARIES, "-ldl"],
                   check=True)
    return binary


def facts_of(reader, *words):
    done = subprocess.run([reader, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, timeout=300,
                          env={**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=4"})
    assert done.returncode == 0, done.stdout[-4000:]
    return {key: int(value) for key, value in (word.split("=") for word in done.stdout.split())}


@EVERY_THAT_TELLS
def test_no_word_of_told_offsets_crashes_or_stops_the_reader(interpreter, reader, tmp_path):
    """Every word, each as every value; where no build can have that value the stack is read all the same."""
    with job_of(interpreter, tmp_path) as pid:
        facts = facts_of(reader, "told", pid, "innermost")
    assert facts["readings"] > 2000 and facts["noted"] > 500, facts
    assert facts["slowest_ms"] < 2000 and facts["peak_mb"] < 200, facts


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS if SOAK else interpreters.INTERPRETERS[1::3],
                         ids=interpreters.interpreter_id)
def test_memory_that_changes_while_it_is_read_ends_every_reading(interpreter, reader, tmp_path):
    with job_of(interpreter, tmp_path) as pid:
        facts = facts_of(reader, "shifting", pid, 1, 150)
    assert facts["readings"] == 150 and facts["slowest_ms"] < 2000 and facts["peak_mb"] < 200, facts


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def told_at(pid):
    """Where the process tells its offsets."""
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in open(f"/proc/{pid}/maps"):
            where, rights, _, _, inode = line.split()[:5]
            if rights[:2] != "rw" or inode == "0":
                continue
            start, end = (int(number, 16) for number in where.split("-"))
            memory.seek(start)
            at = memory.read(end - start).find(b"xdebugpy")
            if at >= 0:
                return start + at
    raise AssertionError("it tells no offsets")


@jobs.three_tries
def timed(*words, seconds=2.0, prefix=(), **options):
    """Runs a command, which must not crash and must say in one line why it fails."""
    began = jobs.calm()
    done = subprocess.run([*prefix, str(jobs.PROGRAM), *map(str, words)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **options)
    done.seconds = jobs.calm() - began
    done.text, done.errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert done.returncode in (0, 1), (words, done.returncode, done.errors)
    # another test's process may have had the pid
    told = [line for line in done.errors.splitlines() if not line.startswith("note: ")]
    assert done.returncode == 0 or len(told) == 1, (words, done.errors)
    jobs.in_time(done.seconds < seconds, (words, done.seconds, done.errors))
    return done


@pytest.mark.parametrize("interpreter", TELLING[:1])
def test_commands_read_past_offsets_that_cannot_be(interpreter, tmp_path):
    """The type's offset and a bytes object's among them, which once made the tool read far beyond its copy."""
    with job_of(interpreter, tmp_path) as pid:
        at = told_at(pid)
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for word, value in ((45, 0xF0000), (65, 0xF0000), (35, 0xFFFFFFFF), (21, 2**64 - 1), (1, 7), (68, 8)):
                memory.seek(at + 8 * word)
                true = memory.read(8)
                memory.seek(at + 8 * word)
                memory.write(struct.pack("<Q", value))
                for command in (["backtrace"], ["backtrace", "--locals"]):
                    done = timed("-t", pid, *command, preexec_fn=limited)
                    assert done.returncode == 0 and "innermost" in done.text, (word, done.text, done.errors)
                    assert "are used" in done.text, "it is said that they were not used"
                done = timed("-t", pid, "query", "select func from python.backtrace", seconds=5)
                assert "innermost" in done.text and "are used" in done.errors, done.errors
                memory.seek(at + 8 * word)
                memory.write(true)
        assert "are used" not in timed("-t", pid, "backtrace").text


FAKE = ["silent", "slow", "dribble", "huge", "half", "wrong", "flood", "closes", "garbage", "error"]
ASKED = [["--timeout", "1s", "eval", "1+1"], ["--timeout", "1s", "config", "probing.sample_rate=0.5"],
         ["--timeout", "1s", "detach"], ["tables"], ["memory"], ["config"], ["backtrace"], ["query", "select 1"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up the right to trace")
def test_an_agent_that_does_not_answer_as_one_holds_no_command():
    """All ways not to answer at once, and all commands: they wait, most of the time."""
    def ask(mode):
        with jobs.start(sys.executable, TARGETS / "fake_agent.py", mode, ready="ready") as job:
            with ThreadPoolExecutor(len(ASKED)) as pool:
                for done in pool.map(lambda words: timed("-t", job.pid, *words, seconds=25, prefix=POOR), ASKED):
                    assert "\x1b" not in done.text + done.errors and "\x07" not in done.errors, mode
            assert str(job.pid) in timed("list", seconds=10).text, mode
            assert job.alive(), mode

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(ask, FAKE))


def make_run(pid):
    """A run directory of a process of ours, with nothing in it."""
    start = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19]
    path = Path(f"/dev/shm/probing-{os.geteuid()}/{os.stat(f'/proc/{pid}/ns/pid').st_ino}-{pid}-{start}")
    path.mkdir(parents=True, mode=0o700)
    return path


def fifo(path):
    os.mkfifo(path)


def huge(path):
    with open(path, "w") as file:
        file.write("program=x\n")
        file.truncate(8 << 30)


def link(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


@pytest.mark.parametrize("kind", [fifo, huge, link, folder])
def test_files_of_a_run_that_are_none_hold_no_command(kind):
    """about, settings, secret and tables of a run are what the target made of them."""
    with jobs.python() as job:
        path = make_run(job.pid)
        perf = Path(f"/tmp/perf-{job.pid}.map")
        try:
            for name in ("about", "config", "secret", "arena", "control"):
                kind(path / name)
            kind(perf)
            for words in (["list"], ["-t", job.pid, "tables"], ["-t", job.pid, "config"], ["-t", job.pid, "backtrace"],
                          ["-t", job.pid, "backtrace", "--native"], ["-t", job.pid, "query", "select 1"],
                          ["-t", job.pid, "memory"]):
                timed(*words, seconds=20)
            assert "train" in timed("-t", job.pid, "backtrace").text
        finally:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(perf) if perf.is_dir() and not perf.is_symlink() else perf.unlink()


NAMES = r"""
import ctypes, sys, threading, time
evil = "\x1b[31mred\x07\x9b2J\r\u202e"
def wait():
    ctypes.CDLL(None).prctl(15, b"\x1b[2J\xff\x9b1m", 0, 0, 0)
    time.sleep(1000)
code = compile("def " + "f(**k):\n    time.sleep(1000)\n", "/tmp/" + evil + ".py", "exec")
space = {"time": time}
exec(code, space)
named = space["f"]
if hasattr(named.__code__, "replace"):
    named.__code__ = named.__code__.replace(co_name=evil)
threading.Thread(target=wait, name=evil, daemon=True).start()
threading.Thread(target=named, kwargs={evil: evil, "s": evil}, daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_names_with_control_characters_reach_no_terminal(interpreter):
    with jobs.python(NAMES, interpreter=interpreter, flags=()) as job:
        for words in (["backtrace"], ["backtrace", "--locals"], ["backtrace", "--json"],
                      ["query", "select * from python.backtrace"], ["backtrace", "--native"]):
            done = timed("-t", job.pid, *words, seconds=10)
            for bad in (b"\x1b[", b"\x07", b"\r", "\x9b".encode()):
                assert bad not in done.stdout + done.stderr, (words, bad)
            done.stdout.decode(), done.stderr.decode()


NEXT = 8  # of a thread state: where it names the next one
FAKE_STATES = r"""
import ctypes, os, struct, threading, time, sys
# Its list of thread states goes on into a chain of made up ones, each as the first, and each the next one's neighbour.
def innermost():
    print("ready", ADDRESS, flush=True)
    time.sleep(1000)
LENGTH, COUNT = 1024, 60000
memory = ctypes.create_string_buffer(LENGTH * COUNT)
ADDRESS = ctypes.addressof(memory)
innermost()
"""


@pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS[-1:], ids=interpreters.interpreter_id)
def test_made_up_thread_states_cost_little(interpreter):
    """60,000 of them after the true one: in linear time, with few descriptors, and what is left out is said."""
    if interpreters.version_of(interpreter) < (3, 13):
        pytest.skip("only a process from 3.13 on tells where its thread states are")
    with jobs.python(FAKE_STATES, interpreter=interpreter, ready="ready") as job:
        jobs.wait_until(lambda: job.output.endswith("\n") and len(job.output.split()) > 1)
        chain = int(job.output.split()[1])
        with open(f"/proc/{job.pid}/mem", "r+b", buffering=0) as memory:
            state = first_state(job.pid, memory)
            memory.seek(state)
            copy = memory.read(1024)
            fakes = bytearray()
            for i in range(60000):
                following = chain + (i + 1) * 1024 if i < 59999 else 0
                fakes += copy[:NEXT] + struct.pack("<Q", following) + copy[NEXT + 8:]
            memory.seek(chain)
            memory.write(bytes(fakes))
            memory.seek(state + NEXT)
            memory.write(struct.pack("<Q", chain))
        done = timed("-t", job.pid, "backtrace", seconds=10, preexec_fn=few)
        assert done.returncode == 0, done.text[-2000:]
        assert "innermost" in done.text, done.text[-2000:]
        assert "more thread states" in done.text, done.text[-2000:]
        timed("-t", job.pid, "record", "--duration", "1s", seconds=20, preexec_fn=few)


def few():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


def first_state(pid, memory):
    """The address of the main thread's state: by its ident, which is in it."""
    at = told_at(pid)
    memory.seek(at)
    told = struct.unpack("<128Q", memory.read(1024))
    memory.seek(at + told[5])
    interp = struct.unpack("<Q", memory.read(8))[0]
    memory.seek(interp + told[9])
    return struct.unpack("<Q", memory.read(8))[0]
