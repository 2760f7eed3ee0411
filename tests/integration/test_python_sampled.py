"""What is hard to read once is sampled right too: a GIL that C code keeps for ever, names in all scripts and with
parentheses, and several interpreters in one process."""
import time

import interpreters
import jobs
import pytest
from jobs import probe
from stack_kit import HELD, SUBINTERPRETER

EVERY = pytest.mark.parametrize("interpreter", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)


def sample(pid, folded, *options):
    """The folded stacks, as text."""
    done = probe("-t", pid, "flamegraph", "--duration", "0.4s", "--rate", "100", "-o", folded, *options)
    assert done.returncode == 0, done.stderr
    return folded.read_text(encoding="utf-8")


@EVERY
def test_the_gil_held_in_c_for_ever(interpreter, tmp_path):
    with jobs.python(HELD, interpreter) as job:
        time.sleep(0.7)
        rows = sample(job.pid, tmp_path / "x.folded", "--gil", "--idle").splitlines()
    assert rows and all("hold (" in row for row in rows), rows


@EVERY
def test_names_in_all_scripts(interpreter, tmp_path):
    script = tmp_path / "naïve_模块 😀.py"
    script.write_text("""# coding: utf-8
import threading
def größe():
    def 计算():
        print("ready", flush=True)
        while True:
            pass
    计算()
threading.Thread(target=größe, name="пот)ок (😀").start()
""", encoding="utf-8")
    with jobs.start(interpreter, script, ready="ready", env={"PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1"}) as job:
        text = sample(job.pid, tmp_path / "x.folded", "--threads")
    rows = [row for row in text.splitlines() if "计算" in row]
    assert rows and all("пот)ок (😀" in row and "größe" in row and script.name in row for row in rows), text


@pytest.mark.parametrize("interpreter", [path for path in interpreters.INTERPRETERS
                                         if interpreters.version_of(path) >= (3, 8)],
                         ids=interpreters.interpreter_id)
def test_every_interpreter_of_a_process(interpreter, tmp_path):
    # Not a loop that only runs: up to 3.11 such a one never gives the GIL to another interpreter.
    code = SUBINTERPRETER.replace("    time.sleep(1000)\\ninside", "    while True: time.sleep(0.001)\\ninside")
    assert code != SUBINTERPRETER
    with jobs.python(code, interpreter) as job:
        text = sample(job.pid, tmp_path / "x.folded")
    assert any("inside (" in row for row in text.splitlines()), text
