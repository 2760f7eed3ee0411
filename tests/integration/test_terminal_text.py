"""Every text that a process chooses, through the commands, at a terminal and into a pipe: only text comes out.

What a terminal would obey is shown by number, whichever command prints it and however the text got there; a name does
not begin a line.
"""
import json
import os
import re
import subprocess
import sys

import jobs
import pytest
from jobs import probe
from terminal_kit import EVIL, OBEYED, OWN, at_terminal

JOB = f"""
import logging, os, sys, threading, time
sys.path.insert(0, {str(jobs.TOP / "python")!r})
import probing
EVIL = {EVIL!r}

def named(name, code):
    names = dict(time=time, os=os, EVIL=EVIL, probing=probing)
    exec(compile(code, name, "exec"), names)
    function = names["function"]
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name, **(dict(co_qualname=name) if hasattr(function.__code__, "co_qualname") else dict()))
    return function

class Strange(Exception):
    def __repr__(self):
        return EVIL

def work():
    value, error, table = EVIL, Strange(EVIL), {{EVIL: [EVIL, EVIL.encode()]}}
    while True:
        with probing.span(EVIL, note=EVIL):
            time.sleep(0.02)

lock = threading.Lock()
lock.acquire()
held = named(EVIL, "def function(lock):\\n    lock.acquire()\\n")
threading.Thread(target=held, args=(lock,), name=EVIL, daemon=True).start()
print("ready", flush=True)
named(EVIL + "2", "def function(work):\\n    work()\\n")(work)
"""
SETUP = """
import logging
import __main__, probing
EVIL = __main__.EVIL
probing.log(step=1, loss=0.5, note=EVIL)
for name, column in (("told", "text"), ("told", EVIL), (EVIL, "text")):
    try:
        probing.table(name, {"text" if column == "text" else column: str}).append(EVIL)
    except Exception as error:
        print(repr(error))
"""
# Of each: the words, and whether a program may ask for them as JSON.
COMMANDS = [
    ["backtrace"], ["backtrace", "--locals"], ["backtrace", "--native"], ["backtrace", "--merge"], ["now"],
    ["top", "-d", "0.3"],
    ["flamegraph", "-d", "0.3", "--idle", "-o", "{folder}/a.svg"], ["memory"], ["tables"], ["config"], ["probes"],
    ["doctor"], ["trace"], ["break"], ["watch"], ["groups"], ["torch"],
    ["query", "SELECT * FROM system.threads"], ["query", "SELECT * FROM system.envs"],
    ["query", "SELECT * FROM system.process"], ["query", "SELECT * FROM python.spans LIMIT 5"],
    ["query", "SELECT * FROM python.backtrace"], ["query", "SELECT 1 AS \"{evil}\""],
    ["query", "SELECT * FROM \"{evil}\""], ["query", "--format", "markdown", "SELECT * FROM told"],
    ["query", "SELECT * FROM told"], ["query", "SELECT * FROM training_logs"], ["query", "SELECT error('{evil}')"],
    ["eval", "raise __import__('__main__').Strange(__import__('__main__').EVIL)"], ["inspect", "__main__.EVIL"],
    ["show", "EVIL"], ["backtrace", "--source", "{evil}"], ["track", "{evil}"], ["inspect", "{evil}"],
]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    script = tmp_path_factory.mktemp("job") / "evil.py"
    script.write_text(JOB)
    env = {**os.environ, "EVIL_VALUE": EVIL, f"EVIL_{EVIL}": "1", "RANK": "0", "JOB_NAME": EVIL, "HOSTNAME": EVIL,
           "SLURM_JOB_ID": EVIL}
    with jobs.start(sys.executable, script, EVIL, ready="ready", env=env) as running:
        for words in (["inject"], ["eval", SETUP]):
            done = probe("-t", running.pid, *words)
            assert done.returncode == 0, done.stderr
        yield running


def check(text, words, own=False):
    text = text.decode()  # valid UTF-8
    rest = OWN.sub("", text).replace("\r\n", "\n") if own else text
    found = OBEYED.search(rest)
    assert not found, (words, rest[max(0, found.start() - 100):found.end() + 20])
    assert "eval" in words or not re.search("^FORGED", rest, re.M), (words, rest[:2000])


@pytest.mark.parametrize("given", COMMANDS, ids=lambda given: " ".join(given)[:40])
def test_only_text_comes_out_of_every_command(job, tmp_path, given):
    words = [str(jobs.PROGRAM), "-t", str(job.pid), *(word.replace("{evil}", EVIL).replace("{folder}", str(tmp_path))
                                                      for word in given)]
    piped = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    seen = at_terminal(words, 1.5 if given == ["torch"] else 30)  # it stays, until "q"
    if given[0] != "eval":  # its output is that of the program, byte by byte, where no terminal is
        check(piped.stdout, words)
        check(piped.stderr, words)
    check(seen, words, own=True)
    # The texts were there, where they are to be seen.
    assert not set(given) & {"backtrace", "now", "SELECT * FROM told"} or rb"]0;T" in piped.stdout + piped.stderr, piped


@pytest.mark.parametrize("given", [["core", f"/nosuch{EVIL}"], ["-t", f"nosuch{EVIL}", "now"], ["serve", "--status"],
                                   ["list"], ["now"]], ids=lambda given: given[0])
def test_nor_where_no_process_is_named(job, given):
    words = [str(jobs.PROGRAM), *given]
    piped = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    check(piped.stdout, words)
    check(piped.stderr, words)
    check(at_terminal(words), words, own=True)


def str_of(value):
    """All texts in it."""
    return value if isinstance(value, str) else "".join(map(str_of,
                                                            value.values() if isinstance(value, dict) else value
                                                            if isinstance(value, list) else []))


def test_rows_for_a_program_have_the_texts_as_they_are(job):
    for words in (["backtrace", "--locals", "--json"], ["now", "--json"],
                  ["query", "--format", "json", "SELECT * FROM told"]):
        done = subprocess.run([jobs.PROGRAM, "-t", str(job.pid), *words], stdout=subprocess.PIPE, timeout=60)
        assert "\x1b]0;T\x07\x1b[31;41mb" in str_of(json.loads(done.stdout)), words
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", done.stdout), words


def test_a_terminal_gets_none_of_it_also_from_rows_and_bytes(job):
    for words in (["query", "--format", "csv", "SELECT * FROM told"],
                  ["query", "--format", "json", "SELECT * FROM told"],
                  ["eval", "print(__import__('__main__').EVIL)"],
                  ["eval", "import sys; sys.stdout.buffer.write(b'\\xff\\x9b2J\\xc2'); "
                           "sys.stdout.write('\\x1b[31;41m')"]):
        check(at_terminal([str(jobs.PROGRAM), "-t", str(job.pid), *words]).replace(b"\r\nFORGED", b""), words, own=True)
