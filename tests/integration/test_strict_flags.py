"""Our Python files in a program that makes every warning an error: they raise none, and the program prints what it
prints without us."""
import subprocess

import builds
import interpreters
import jobs
import pytest
import roots
from jobs import probe
from every_python import EVERY, NEWER, version_of_any
from starting_kit import PTH, site

FLAGS = ["-W", "error", "-X", "dev", "-X", "warn_default_encoding", "-bb"]
FILES = sorted(path for folder in ("probing", "launch") for path in (jobs.TOP / "python" / folder).glob("*.py"))
# It works for a while in a function with a local, and ends.
PROGRAM = """
import sys, threading, time, warnings
class Model:
    def __init__(self): self.weights = [1.0, 2.0]
def step(model, n):
    total = n * 2
    time.sleep(0.005)
    return total
def train(model):
    print("ready", flush=True)
    n = 0
    while not stop:
        n += 1
        step(model, n)
stop = []
def other():
    while not stop: time.sleep(0.01)
threading.Thread(target=other, daemon=True).start()
train(Model())
print("end", flush=True)
raise ValueError("as ever")
"""
# Each is done to the program, and succeeds.
COMMANDS = [("inject",), ("eval", "1+1"), ("eval", "import os; print(os.getpid() > 0)"),
            ("execute", "import json\nprint(json.dumps(1))"), ("eval", "1/0"),
            ("trace", "step", "--args", "--duration", "300ms"), ("watch", "total@step", "--duration", "300ms"),
            ("break", "FILE:8", "--log", "{total}", "--duration", "300ms"),
            ("inspect", "step"), ("show", "stop"), ("groups",), ("query", "SELECT count(*) FROM python.backtrace"),
            ("pause", "--limit", "1s"), ("continue",),
            ("pause", "--all", "--limit", "1s"), ("continue",), ("probes", "start", "memory_usage", "interval=50ms"),
            ("config", "probing.memory.sampling=on"),
            ("config", "probing.memory.sampling=off"), ("catch", "--no-prompt")]
RECORDS = """
import probing, sys, warnings
table = probing.table("strict", {"n": int, "text": str, "raw": bytes})
table.append(1, "a", raw=b"b")
probing.log(epoch=1, loss=0.5, name="x")
with probing.span("outer", size=1):
    with probing.trace("inner"): probing.event("now", n=1)
@probing.span
def work(): return 3
work()
probing.register("strict_rows", lambda: [{"a": 1, "b": b"x"}])
probing.step(1)
probing.set_role("trainer"); probing.current_role(); probing.clear_role()
print("recorded", probing.is_enabled(), probing.messages(), flush=True)
"""


@EVERY
def test_commands_raise_no_warning(python, tmp_path):
    if python in builds.FREE_THREADED:
        pytest.skip("a launcher starts these builds, which takes no flags")
    version = version_of_any(python)
    flags = FLAGS if version >= (3, 7) else ["-W", "error", "-bb"]
    script = (roots.path("sid") / "tmp" if python in NEWER else tmp_path) / "strict.py"
    script.write_text(PROGRAM)
    plain = PROGRAM.replace("stop = []", "stop = [1]")
    if python in NEWER:
        context = roots.start("sid", python, *flags, "/tmp/strict.py", env={})
    else:
        context = jobs.start(python, *flags, str(script), ready="ready")
    with context as job:
        jobs.wait_until(lambda: "ready" in job.output, what="the start")
        for words in COMMANDS:
            words = [str(word).replace("FILE", "strict.py") for word in words]
            if version == (3, 8) and "--all" in words or words == ["continue"]:
                probe("-t", job.pid, *words)  # refused where it has nothing to do
                continue
            done = probe("-t", job.pid, *words)
            wanted = 1 if words[1:] == ["1/0"] else 0
            assert done.returncode == wanted and "Warning" not in done.stderr + done.stdout, (words, done.stderr)
        notes = subprocess.run([jobs.PROGRAM, "-t", str(job.pid), "repl"], input="notes()\nimport json\n",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        assert "Warning" not in notes.stdout and "fail" not in notes.stdout, notes.stdout
        probe("-t", job.pid, "eval", "stop.append(1)")
        jobs.wait_until(lambda: not job.alive(), what="the end")
        said = job.output
    script.write_text(plain)
    if python not in NEWER:
        alone = subprocess.run([python, *flags, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               universal_newlines=True)
        assert said == alone.stdout
    else:
        assert said.startswith("ready\nend\nTraceback") and said.count("Warning") == 0


PYTHONS = [pytest.param(path, id=interpreters.interpreter_id(path)) for path in interpreters.INTERPRETERS]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_file_compiles_without_a_warning(python):
    code = ("import sys\nfor path in sys.argv[1:]:\n"
            " with open(path, 'rb') as file: compile(file.read(), path, 'exec', 0, True)")
    done = subprocess.run([python, *FLAGS[:2], "-bb", "-c", code, *map(str, FILES)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("python", PYTHONS)
def test_it_starts_and_records_without_a_line_of_ours(python, launched, tmp_path):
    """By the .pth file of an installed package, also beside `probing launch`, which starts it too."""
    version = interpreters.version_of(python)[:2]
    flags = FLAGS if version >= (3, 7) else ["-W", "error", "-bb"]
    program = site(tmp_path, python)
    assert "_start" in PTH
    words = [program, *flags, "-c", RECORDS]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PROBING_LOG": str(tmp_path / "log")}
    command = [jobs.PROGRAM, "launch", "--", *words] if launched else words
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=60, env=env if launched else {**env, "PROBING": "1"})
    assert (done.stdout, done.stderr, done.returncode) == ("recorded True []\n", "", 0)
    assert not (tmp_path / "log").exists(), (tmp_path / "log").read_text()
