"""Code that does what it should not, for clients that do what they should not, while other code runs beside it: each
has an answer, and the program is unharmed and can fork. PROBING_SOAK=1 takes every interpreter."""
import itertools
import signal
import socket
import subprocess

import builds
import jobs
import pytest
import roots
from channel_kit import CODE, DONE, ERROR, FILENAME, MODE, OUTPUT, RUN, STATUS, TIMEOUT_MS, Connection, field, frame
from jobs import probe
from prompt_kit import NC, Nc, address, needs_nc
from every_python import FEW, NEWER, PYTHONS, SOME, name_of, program

# With a GIL and without; every one in the long form.
TWO = pytest.mark.parametrize("python", FEW if len(FEW) == len(PYTHONS) else [FEW[1], FEW[-1]], ids=name_of)

# It forks all the time, and looks whether anything of it has changed; its beat tells how often, and which code has
# begun.
FORKING = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
streams, began, n = (sys.stdout, sys.stderr), 0, 0
def child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[1]
def traced():
    found = []
    thread = threading.Thread(target=lambda: found.append(sys.gettrace()))
    thread.start()
    thread.join()
    return found + [sys.gettrace()]
while "stop" not in globals():
    n += 1
    if child() != 0 or traced() != [None, None]:
        print("harmed", flush=True)
    with open(sys.argv[0] + ".new", "w") as file:
        file.write("%d %d" % (n, began))
    os.rename(sys.argv[0] + ".new", sys.argv[0] + ".beat")
    if n == 1:
        print("ready", flush=True)
    time.sleep(0.005)
os.unlink(sys.argv[0] + ".beat")
time.sleep(0.2)
print("end", (sys.stdout, sys.stderr) == streams, sys.stdout.closed, flush=True)
"""
# What it is: the code; exit status, what is printed and what is said to a client that waits for it. BEGIN is where it
# is seen to have begun; what ends by itself takes a moment from there on.
MOMENT = "BEGIN; time.sleep(0.02); import os, sys"
LOUD = "for i in range(100): BEGIN; print('x' * 999_999)\n"
CODES = {
    "loops for ever": ("while True: BEGIN\n", 1, "", "KeyboardInterrupt"),
    "prints 100 MB": (LOUD, 0, "x" * 999_999 + "\n", ""),
    "raises in __repr__": (f"class Bad:\n    def __repr__(self): raise ValueError('no repr')\n\n{MOMENT}; Bad()", 1, "",
                           "ValueError: no repr"),
    "calls sys.exit": (f"{MOMENT}; sys.exit(3)", 1, "", "SystemExit: 3"),
    "forks": (f"{MOMENT}; pid = os.fork(); print(os.waitpid(pid, 0)[1] if pid else 'child')", 0, "0\n", ""),
    "closes stdout": (f"{MOMENT}; sys.stdout.close(); sys.stderr.close(); sys.stdout.buffer.close(); print('after')", 0,
                      "after\n", ""),
    "changes settrace": (f"{MOMENT}; sys.settrace(lambda *words: None); print('traced')", 0, "traced\n", ""),
}
BESIDE = "import time\nwhile 'stop' not in globals(): time.sleep(0.01)\n'beside'"


class Watch:
    """The program seen from outside: its beat, and the threads that run code for a client."""

    def __init__(self, job, python):
        self.job, self.python, self.numbers = job, python, itertools.count(1)
        self.beat = (roots.ROOTS / "sid" / job.script[1:] if python in NEWER else job.script).__str__() + ".beat"
        self.busy = 0

    def read(self):
        with open(self.beat) as file:
            n, began = file.read().split()
        return int(n), int(began)

    def marked(self, code):
        """The code, so that its beginning can be seen."""
        self.number = next(self.numbers)
        return code.replace("BEGIN", f"began = {self.number}")

    def began(self):
        jobs.wait_until(lambda: self.read()[1] == self.number, 20, "the beginning of the code")

    def running(self):
        return sum(name in ("probing-eval", "probing-channel") for name in self.job.threads())

    def settled(self, what):
        """The code has ended, and the program still forks."""
        jobs.wait_until(lambda: self.running() <= self.busy, 30, f"the end of what {what}")
        before = self.read()[0]
        jobs.wait_until(lambda: self.read()[0] > before + 1, 20, f"a fork after what {what}")
        assert self.job.alive() and "harmed" not in self.job.output, (what, self.job.output)


def tool(watch, code, *words):
    return subprocess.Popen([str(jobs.PROGRAM), str(watch.job.pid), "eval", watch.marked(code), *words],
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def ends(process):
    process.kill()
    process.communicate()


def eval_waits(watch, code, status, out, says):
    for seconds in ("1", "10", "60") if says == "KeyboardInterrupt" else ("60",):
        process = tool(watch, code, "--timeout", seconds)
        stdout, stderr = process.communicate(timeout=90)
        if "GIL could not be had" not in stderr:  # the time limit is for that too, on a machine that is busy
            break
    assert (process.returncode, stdout) == (status, out * 100 if code is LOUD else out), (code, stderr)
    assert says in stderr, (code, stderr)


def eval_killed(watch, code, *_):
    process = tool(watch, code)
    watch.began()
    ends(process)


def eval_stops_reading(watch, code, *_):
    process = tool(watch, code)
    watch.began()
    process.send_signal(signal.SIGSTOP)
    before = watch.read()[0]
    jobs.wait_until(lambda: watch.read()[0] > before + 4, 20, "forks beside a client that does not read")
    ends(process)


def eval_half_closed(watch, code, *_):
    """To the agent such a client has gone: the code is told to stop, and nothing more comes."""
    client = Connection(watch.job.pid)
    client.socket.sendall(frame(RUN, field(CODE, watch.marked(code)) + field(FILENAME, "<half>") + field(MODE, 0)
                                + field(TIMEOUT_MS, 60000), 2))
    watch.began()
    client.socket.shutdown(socket.SHUT_WR)
    kind = OUTPUT
    while kind == OUTPUT:
        kind, _ = client.next()
    assert kind in (None, ERROR) or code != CODES["loops for ever"][0]
    client.close()


def nc_waits(watch, code, _, out, says):
    with Nc(watch.nc) as nc:
        nc.wait(">>> ")
        nc.send(watch.marked(code) + "\n")
        watch.began()
        if says == "KeyboardInterrupt":
            nc.send("\x03")
        seen = nc.wait(says or out.rstrip() or ">>> ", 60) if "SystemExit" not in says else nc.end()
        assert "Traceback" in seen or not says or "SystemExit" in says, seen


def nc_killed(watch, code, *_):
    with Nc(watch.nc) as nc:
        nc.wait(">>> ")
        nc.send(watch.marked(code) + "\n")
        watch.began()


def nc_stops_reading(watch, code, *_):
    with Nc(watch.nc) as nc:
        nc.wait(">>> ")
        nc.send(watch.marked(code) + "\n")
        watch.began()
        nc.process.send_signal(signal.SIGSTOP)
        before = watch.read()[0]
        jobs.wait_until(lambda: watch.read()[0] > before + 4, 20, "forks beside a client that does not read")


def nc_half_closed(watch, code, _, out, says):
    """-N: the end of its input closes half of the connection. What was typed is run, and its output still comes."""
    with subprocess.Popen([NC, "-N", *watch.nc.split()[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          universal_newlines=True) as nc:
        nc.stdin.write(watch.marked(code) + "\n")
        nc.stdin.close()
        watch.began()
        if says == "KeyboardInterrupt":  # nothing can be said any more: the end of the client is the end of the code
            nc.kill()
            return
        seen = nc.stdout.read()
        assert ("Traceback" in seen if says and "SystemExit" not in says else out.rstrip() in seen), seen[-2000:]


@SOME
def test_every_code_for_every_client(python):
    with program(python, FORKING) as job:
        watch = Watch(job, python)
        assert probe(job.pid, "inject").returncode == 0
        beside = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", BESIDE, "--timeout", "0"],
                                  stdout=subprocess.PIPE, universal_newlines=True)
        jobs.wait_until(lambda: watch.running() == 1, what="the code beside")
        watch.busy = 1
        for does, way in itertools.product(CODES, (eval_waits, eval_killed, eval_stops_reading, eval_half_closed)):
            if python == "cp313t" and does == "closes stdout":  # which gets no stand-ins for its streams
                continue
            way(watch, *CODES[does])
            watch.settled(f"{does} ({way.__name__})")
        assert probe(job.pid, "eval", "stop = 1").returncode == 0
        assert beside.communicate(timeout=20)[0] == "'beside'\n"
        assert job.process.wait(20) == 0 and job.output == "ready\nend True False\n", job.output


@needs_nc
@TWO
def test_every_code_for_every_nc(python):
    with program(python, FORKING) as job:
        watch = Watch(job, python)
        watch.nc = address(probe(job.pid, "listen"))
        for does, way in itertools.product(CODES, (nc_waits, nc_killed, nc_stops_reading, nc_half_closed)):
            if does == "prints 100 MB" and way in (nc_waits, nc_half_closed) and python != FEW[1]:
                continue  # once is enough to wait for
            if python == "cp313t" and does == "closes stdout":
                continue
            way(watch, *CODES[does])
            watch.settled(f"{does} ({way.__name__})")
        assert probe(job.pid, "eval", "stop = 1").returncode == 0
        assert job.process.wait(20) == 0 and job.output == "ready\nend True False\n", job.output


KINDS = ["1 + 1", "import os; os.getpid()", "print('x' * 1000)", "def f():\n    return 1\nf()", "1 / 0",
         "class A: pass\nA()", "[n for n in range(1000)]"]


def resident_kb(job):
    with open(f"/proc/{job.pid}/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmRSS")))


@TWO
def test_a_thousand_evals_leave_nothing(python):
    with program(python, jobs.TRAINING) as job:
        assert probe(job.pid, "inject").returncode == 0
        client = Connection(job.pid)

        def run(times):
            for number in range(times):
                text = KINDS[number % len(KINDS)]
                kind, answer = client.ask(RUN, field(CODE, text) + field(FILENAME, "<eval>") + field(MODE, 0)
                                          + field(TIMEOUT_MS, 60000), number + 2)
                while kind == OUTPUT:
                    kind, answer = client.next()
                assert kind == DONE and answer[STATUS][0] == (text == "1 / 0"), (text, answer)

        run(300)  # what is kept once: modules, the stand-ins, a heap for the threads
        before, rounds, most = resident_kb(job), 1, 1024
        # there code objects wait for the garbage collector, which this program hardly needs
        if python in builds.FREE_THREADED:
            rounds, most = 3, 5120
        for _ in range(rounds):
            run(1000)
            if rounds > 1:
                assert probe(job.pid, "eval", "import gc; gc.collect() >= 0").stdout == "True\n"
        grown = resident_kb(job) - before
        assert grown < most, f"{grown} KB more after {rounds},000 evals"
        client.close()
        assert probe(job.pid, "detach").returncode == 0 and job.alive() and job.output == "ready\n"
