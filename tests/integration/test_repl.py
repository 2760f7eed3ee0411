"""repl: a prompt in the running process, on a terminal and from a pipe, and what it must not do to the program."""
import os
import signal
import subprocess
import time

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import PROGRAM, probe
from prompt_kit import COUNTING, goes_on
from terminal_kit import probing
from every_python import EVERY, has_locals, program

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def asks(screen):
    return screen.lines()[screen.row] == ">>>"


def script(job, text, timeout=60):
    return subprocess.run([str(PROGRAM), str(job.pid), "repl"], input=text, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout)


@pytest.fixture
def job():
    with jobs.python(COUNTING) as job:
        yield job


@pytest.fixture
def prompt(job, tmp_path):
    with probing(job.pid, "repl", env={"XDG_STATE_HOME": str(tmp_path)}) as terminal:
        terminal.wait(asks)
        terminal.job = job
        yield terminal


@EVERY
def test_a_pipe_is_run_as_a_script(python):
    with program(python, COUNTING) as job:
        done = script(job, "1 + 1\n_ * 2\nrate\ndef triple(n):\n    return n * 3\ntriple(14)\nfor i in range(2):\n"
                           "    print('line', i)\n"
                           "class Kept:\n    at = rate\nKept.at\n")
        assert (done.stdout, done.stderr, done.returncode) == ("2\n4\n0.1\n42\nline 0\nline 1\n0.1\n", "", 0)
        if python != "cp313t":  # which gets no stand-ins for its streams
            done = script(job, "import sys\nlen(sys.stdout.write('written\\n') * [0])\n"
                               "print('last', file=sys.stderr)\n")
            assert (done.stdout, done.stderr, done.returncode) == ("written\n8\n", "last\n", 0)
        assert probe(job.pid, "eval", "triple(2), Kept.at").stdout == "(6, 0.1)\n"
        if has_locals(python):
            done = script(job, "model.hidden_size\nstep > 0 and total > 0\nframe(0, 0).locals['model'].weights\n"
                               "[f.function for f in frames()][-2:]\nx = 5\n")
            assert (done.stdout, done.stderr) == ("32\nTrue\n[1.0, 2.0]\n['train', '<module>']\n", "")
            assert script(job, "source(helper)\n").stdout == "def helper(n):\n    doubled = n * 2\n    return doubled\n"
        done = script(job, "threads()[0].name\nhelp()\nx = 5\n1 / 0\nx = 6\n")
        assert done.stdout.startswith("'MainThread'\n") and "tensors()" in done.stdout
        assert done.returncode == 1
        assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert "<probing>" not in done.stderr
        assert probe(job.pid, "eval", "x").stdout == "5\n"
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive() and job.output == "ready\n"


@pytest.mark.parametrize("python", [INTERPRETERS[0], INTERPRETERS[-1]], ids=interpreter_id)
def test_await_runs_in_the_loop_of_the_program(python):
    code = ("import asyncio, threading\nasync def main():\n    print('ready', flush=True)\n    while True:\n"
            "        await asyncio.sleep(0.01)\n"
            "async def who():\n    import sys\n    sys.stdout.write('from the loop\\n')\n"
            "    await asyncio.sleep(0.05)\n"
            "    return threading.current_thread().name\n"
            "asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main())\n")
    with jobs.python(code, interpreter=python) as job:
        done = script(job, "await who()\n")
        assert (done.stdout, done.stderr, done.returncode) == ("from the loop\n'MainThread'\n", "", 0)
        done = script(job, "await asyncio.sleep(0, 1 / 0)\n")
        assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
        assert job.alive() and "from the loop" not in job.output
    with jobs.python(COUNTING, interpreter=python) as job:
        assert "no running event loop" in script(job, "await nothing\n").stderr


def test_a_person_types(prompt):
    prompt.send("def f(n):\r    return n + 1\r\rf(41)\r")
    prompt.wait("42\n>>>")
    prompt.send("_ + 1\r")
    prompt.wait("43\n>>>")
    prompt.send("model.hid\t\r")
    prompt.wait(">>> model.hidden_size\n32\n>>>")
    prompt.send("f_of_nothing = 7\rf_of_n\t\r")
    prompt.wait(">>> f_of_nothing\n7\n>>>")
    prompt.send("model.weights.\t")
    prompt.wait("extend")
    prompt.send("\x15'''open\r'''\r")
    prompt.wait("'open\\n'\n>>>")
    prompt.send("1 / 0\r")
    prompt.wait("ZeroDivisionError: division by zero\n>>>")
    assert b"\x1b[1;31mZeroDivisionError" in prompt.raw
    prompt.send("import time\rwhile True: time.sleep(0.01)\r\r")
    time.sleep(0.3)
    prompt.send(CTRL_C)
    prompt.wait("KeyboardInterrupt\n>>>")
    prompt.send("'nothing runs'" + CTRL_C + "'next'\r")
    prompt.wait("'next'\n>>>")
    prompt.send("time.sleep(600)\r")
    time.sleep(0.2)
    prompt.send(CTRL_C)
    prompt.wait("inside a C function")
    goes_on(prompt.job)
    prompt.send(CTRL_C)
    time.sleep(0.3)
    prompt.send(CTRL_C)
    prompt.wait("gave up waiting; the code was interrupted")
    assert prompt.end() == 1
    assert prompt.flags() == (True, True, True) and prompt.job.output == "ready\n"


def test_ctrl_d_leaves(prompt):
    assert prompt.screen.lines()[0].endswith("Python in process %d; help() explains, Ctrl-D leaves" % prompt.job.pid)
    prompt.send(CTRL_D)
    assert prompt.end() == 0
    assert prompt.flags() == (True, True, True) and prompt.job.output == "ready\n"


def test_what_was_entered_is_there_next_time(job, tmp_path):
    for keys in ("'multi' + \\\r 'line'\r", UP + UP + "\r"):
        with probing(job.pid, "repl", env={"XDG_STATE_HOME": str(tmp_path)}) as terminal:
            terminal.wait(asks)
            terminal.send(keys)
            terminal.wait("'multiline'\n>>>")
            terminal.send("exit(3)\r")
            assert terminal.end() == 0
    assert (tmp_path / "probing/python_history").read_text().startswith("'multi' + \\\\\\n 'line'\n")


def test_an_assignment_to_a_lent_name_holds_at_the_prompt(job):
    done = script(job, "total = -1\ntotal\ndef look():\n    return total\nlook()\n_ = 8\n_ + 1\n")
    assert done.stdout == "-1\n-1\n9\n" and "total" in done.stderr
    assert probe(job.pid, "eval", "total > 0, '_' in globals()").stdout == "(True, False)\n"


def test_leaving_is_not_the_end_of_the_program(job):
    for code in ("sys.exit(4)", "exit()", "raise SystemExit('bye')", "quit()"):
        done = script(job, "import sys\n%s\nprint('not reached')" % code)
        assert done.stdout == "" and done.stderr == ("bye\n" if "bye" in code else "")
        assert done.returncode == (1 if "4" in code or "bye" in code else 0)
    assert "would be that of the program" in script(job, "input('x')").stderr
    goes_on(job)


def test_a_hundred_megabytes_come_through(job):
    done = script(job, "for i in range(100): print('x' * 999999)\n")
    assert len(done.stdout) == 100_000_000 and done.returncode == 0
    goes_on(job)


def test_a_client_may_go_at_any_point(job):
    """Killed while it types, while code runs, prints, completes; stopped while it should read."""
    points = ["", "1 + 1\r", "import time\rwhile True: time.sleep(0.01)\r\r", "while True: print('x' * 5000)\r\r",
              "while True: pass\r\r", "class D:\r  def __dir__(self):\r    while True: pass\r\rd = D()\rd.x\t"]
    for keys in points:
        with probing(job.pid, "repl") as terminal:
            terminal.wait(asks)
            terminal.send(keys)
            time.sleep(0.2)
            if "print" in keys:
                os.kill(terminal.pid, signal.SIGSTOP)
                goes_on(job)
    goes_on(job)
    jobs.wait_until(lambda: "probing-channel" not in job.threads(), what="the end of the prompts' threads")
    assert job.output == "ready\n"


def test_the_program_forks_and_is_asked_beside_an_open_prompt(prompt):
    job = prompt.job
    prompt.send("import os, time\rpid = os.fork()\r")
    prompt.wait(lambda screen: asks(screen) and "fork()" in screen.text())
    prompt.send("os.waitpid(pid, 0)[1]\r")
    prompt.wait("\n0\n>>>")
    prompt.send("while True: time.sleep(0.01)\r\r")
    assert probe(job.pid, "eval", "rate").stdout == "0.1\n"
    goes_on(job)
    assert probe(job.pid, "detach").returncode == 0
    prompt.wait("detach")
    assert prompt.end() == 1
    assert job.alive() and job.output == "ready\n"


def test_a_process_that_ends_says_so(prompt):
    prompt.send("import os\ros._exit(0)\r")
    prompt.wait("the process ended")
    assert prompt.end() == 1


def test_references_go_with_the_prompt(job):
    script(job, "import gc\nclass Big: pass\nbig = Big()\nbig\ndel big\n")
    assert probe(job.pid, "eval", "sum(type(x).__name__ == 'Big' for x in gc.get_objects())").stdout == "0\n"
