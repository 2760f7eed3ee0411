"""Channels: bytes both ways between a client and Python code in the target, with an end that both sides see, whatever
the client, the program or the agent does in the middle of it."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import channel_kit
import jobs
import pytest
from channel_kit import ECHO, Client
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe

EVERY = pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
CHANNEL_THREAD = "probing-channel"


def inject(job):
    done = probe(job.pid, "inject")
    assert done.returncode == 0, done.stderr


def wait_for_threads(job, count=0):
    jobs.wait_until(lambda: job.threads().count(CHANNEL_THREAD) == count, what="the end of the channels' threads")


RUN = """
source = channel.read(60000).decode()
try:
    channel.evaluate(compile(source, "<sent>", "exec"), globals(), globals())
except KeyboardInterrupt:
    channel.write(b"interrupted")
"""


@EVERY
def test_bytes_an_interrupt_and_the_end_reach_the_other_side(interpreter):
    with jobs.python(interpreter=interpreter) as job:
        inject(job)
        channel, data = Client(job.pid, ECHO), os.urandom(50000)
        channel.send(data)
        assert channel.receive(len(data)) == data
        channel.finish()
        assert channel.receive() == b"" and channel.end == (0, "")

        channel = Client(job.pid, RUN)
        channel.send(b"channel.write(b'runs')\nwhile True: pass")
        assert channel.receive(4) == b"runs"
        channel.interrupt()
        assert channel.receive(11) == b"interrupted"
        assert channel.receive() == b"" and channel.end == (0, "")

        channel = Client(job.pid, "while True:\n try: channel.read()\n except KeyboardInterrupt: break\n"
                                  "channel.close('bye', 1)")
        channel.interrupt()
        assert channel.receive() == b"" and channel.end == (1, "bye")
        channel = Client(job.pid, "1 / 0")
        assert channel.receive() == b""
        assert channel.end == (1, "the channel's code failed: ZeroDivisionError: division by zero")
        channel = Client(job.pid, kind="nothing")
        assert channel.receive() == b"" and "no channel of kind 'nothing'" in channel.end[1]
        wait_for_threads(job)
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n" and job.output == "ready\n"


def test_channels_are_not_jobs_and_have_a_limit_of_their_own():
    with jobs.python() as job:
        inject(job)
        channels = [Client(job.pid, ECHO) for _ in range(8)]
        with pytest.raises(OSError, match="8 channels are open already"):
            Client(job.pid, ECHO)
        evals = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval",
                                   f"import time; time.sleep(1.5); print({i})"],
                                  stdout=subprocess.PIPE) for i in range(8)]
        for number, channel in enumerate(channels):
            channel.send(b"%d" % number)
            assert channel.receive() == b"%d" % number
        assert [done.communicate()[0] for done in evals] == [b"%d\n" % i for i in range(8)]
        for channel in channels:
            channel.close()
        wait_for_threads(job)


GONE = """
import time
{busy}
while not channel.ended(): time.sleep(0.001)
open({path!r}, "w").write(channel.ended())
"""


@pytest.mark.parametrize("busy", ["", "channel.read()", "while channel.write(b'x' * 65536, 60000): pass",
                                  "try: channel.evaluate(compile('while True: pass', 'c', 'exec'), {}, {})\n"
                                  "except KeyboardInterrupt: pass"],
                         ids=["idle", "reading", "writing", "running"])
def test_a_client_that_is_killed_is_seen_at_once(busy, tmp_path):
    told = tmp_path / "told"
    with jobs.python() as job:
        inject(job)
        channel = Client(job.pid, GONE.format(busy=busy, path=str(told)))
        jobs.wait_until(lambda: CHANNEL_THREAD in job.threads())
        time.sleep(0.1)
        channel.close()
        jobs.wait_until(lambda: told.exists() and told.read_text(), what="being told")
        assert told.read_text() == "the client is gone"
        wait_for_threads(job)
        assert probe(job.pid, "eval", "1").stdout == "1\n"


LOCKED = """
import threading, time
lock = threading.Lock()
beats = 0
print("ready", flush=True)
while True:
    with lock:
        beats += 1
    time.sleep(0.001)
"""


def test_a_client_that_stops_reading_does_not_hold_the_program():
    """Not for longer than a write waits, even where the code that writes holds a lock of the program's."""
    with jobs.python(LOCKED) as job:
        inject(job)
        channel = Client(job.pid, "import __main__\nwith __main__.lock:\n"
                                  "    while channel.write(b'x' * 65536, 1500): pass")
        time.sleep(0.5)
        beats = int(probe(job.pid, "eval", "beats").stdout)
        jobs.wait_until(lambda: int(probe(job.pid, "eval", "beats").stdout) > beats + 100, seconds=15,
                        what="the program's going on")
        data = channel.receive(1 << 30)
        assert channel.end == (1, "the client does not read") and len(data) > 0 and not data.strip(b"x")
        assert job.alive()


FORKS = """
import os, sys, time
children = []
print("ready", flush=True)
while True:
    pid = os.fork()
    if pid == 0:
        os._exit(len(os.listdir("/proc/self/task")) - 1)
    assert os.waitpid(pid, 0)[1] == 0
    time.sleep(0.001)
"""


@EVERY
def test_forks_of_the_program_and_of_a_channels_own_code(interpreter):
    own_fork = """
import os
pid = os.fork()
if pid == 0:
    ok = channel.read() == b"" and channel.write(b"child") is False and channel.ended() is not None
    os._exit(7 if ok else 8)
channel.write(b"%d" % (os.waitpid(pid, 0)[1] >> 8))
"""
    with jobs.python(FORKS, interpreter=interpreter) as job:
        inject(job)
        channel = Client(job.pid, ECHO)
        for i in range(50):
            channel.send(b"word %d" % i)
            assert channel.receive() == b"word %d" % i, (channel.end, job.alive(), job.output)
        other = Client(job.pid, own_fork)
        assert other.receive() == b"7"
        channel.close()
        assert job.alive()


def test_detach_ends_channels_and_waits_for_none():
    with jobs.python() as job:
        before = job.threads()
        for _ in range(3):
            inject(job)
            reading, running = Client(job.pid, ECHO), Client(job.pid, RUN)
            port = channel_kit.listen(job.pid, ECHO)
            plain = channel_kit.tcp(port)
            running.send(b"channel.write(b'r')\nwhile True: pass")
            assert running.receive() == b"r"
            plain.sendall(b"p")
            assert plain.recv(1) == b"p"
            assert probe(job.pid, "detach").returncode == 0
            for channel in (reading, running):
                channel.receive()
                assert channel.end == (1, "the agent was detached")
            assert channel_kit.receive_all(plain) == b""
            with pytest.raises(OSError):
                channel_kit.tcp(port)
            jobs.wait_until(lambda: job.threads() == before, what="the end of its threads")
        assert job.alive()


def memory_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def test_a_thousand_channels_leave_nothing():
    with jobs.python() as job:
        inject(job)

        def use(count):
            for i in range(count):
                while True:
                    try:
                        channel = Client(job.pid, "channel.write(channel.read() or b'')")
                        break
                    except OSError:  # the last eight are still going
                        time.sleep(0.001)
                if i % 3:
                    channel.send(b"x")
                if i % 3 == 1:
                    assert channel.receive() == b"x"
                channel.close()
            wait_for_threads(job)

        use(100)
        memory, maps = memory_kb(job.pid), len(Path(f"/proc/{job.pid}/maps").read_text().splitlines())
        use(1000)
        assert memory_kb(job.pid) - memory < 1024
        # glibc keeps stacks of threads that ended, each two mappings: as many as were there at once, not one a channel.
        assert len(Path(f"/proc/{job.pid}/maps").read_text().splitlines()) - maps < 32
        resident = next(task for task in Path(f"/proc/{job.pid}/task").iterdir()
                        if (task / "comm").read_text() == "probing\n")
        assert len(list((resident / "fd").iterdir())) < 16


@pytest.mark.skipif(not shutil.which("nc"), reason="nc is not installed")
def test_nc_reaches_python_code():
    with jobs.python() as job:
        inject(job)
        port = channel_kit.listen(job.pid, "channel.write(b'? ')\nchannel.write(b'so ' + channel.read())")
        done = subprocess.run(["nc", "127.0.0.1", str(port)], input=b"it is\n", stdout=subprocess.PIPE, timeout=20)
        assert done.stdout == b"? so it is\n"
        assert channel_kit.stop_listening(job.pid) == 1
        with pytest.raises(OSError):
            channel_kit.tcp(port)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another uid")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_another_user_is_not_let_in_at_a_loopback_port(address):
    code = ("import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10); c.sendall(b'x'); "
            "print(c.recv(10))")
    program = "import time; print('ready', flush=True); time.sleep(60)"
    with jobs.start("/usr/bin/python3", "-c", program, ready="ready", user=65534) as job:
        inject(job)
        port = channel_kit.listen(job.pid, ECHO, address=address)
        said = [subprocess.run(["/usr/bin/python3", "-c", code, address, str(port)], user=user, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT,
                               universal_newlines=True, timeout=20).stdout for user in (65534, 0, 65533)]
        assert "b'x'" in said[0] and "b'x'" in said[1]
        assert "b''" in said[2] or "Reset" in said[2] or "Broken" in said[2], said[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another uid")
def test_another_user_who_is_gone_before_it_is_looked_at_is_not_let_in_either():
    """The kernel lists a closed socket as root's."""
    code = ("import socket, sys\nfor _ in range(3):\n"
            "    c = socket.socket(); c.connect(('127.0.0.1', int(sys.argv[1]))); c.sendall(b'x'); c.close()")
    with jobs.python() as job:
        inject(job)
        port = channel_kit.listen(job.pid, "import sys; sys.heard = getattr(sys, 'heard', b'') + channel.read()")
        os.kill(job.pid, signal.SIGSTOP)
        subprocess.run(["/usr/bin/python3", "-c", code, str(port)], user=65534, check=True, timeout=60)
        os.kill(job.pid, signal.SIGCONT)
        with channel_kit.tcp(port) as last:  # whose turn is after theirs
            last.sendall(b"last")
            jobs.wait_until(lambda: probe(job.pid, "eval", "sys.heard").returncode == 0, what="the last client")
        assert probe(job.pid, "eval", "sys.heard").stdout == "b'last'\n"


def test_the_gil_that_cannot_be_had_is_the_reason_of_the_end():
    with jobs.python() as job:
        inject(job)
        assert probe(job.pid, "eval", "1").returncode == 0
        holder = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval",
                                   "import ctypes; ctypes.PyDLL(None).usleep(3000000)"], stderr=subprocess.DEVNULL)
        time.sleep(0.7)
        begun, channel = jobs.calm(), Client(job.pid, ECHO, timeout_ms=300)
        assert channel.receive() == b"" and channel.end[0] == 1
        assert "the GIL could not be had within 0.3 s: it is held by thread" in channel.end[1]
        assert jobs.calm() - begun < 2
        holder.wait()
        wait_for_threads(job)
        channel = Client(job.pid, ECHO)
        channel.send(b"x")
        assert channel.receive() == b"x"


def test_a_process_without_python_says_so():
    with jobs.start("sleep", "60") as job:
        inject(job)
        channel = Client(job.pid, ECHO)
        channel.receive()
        assert channel.end == (1, "there is no Python in this process")


def test_a_client_that_breaks_the_rules_is_closed_and_nothing_else():
    with jobs.python() as job:
        inject(job)
        good = Client(job.pid, ECHO)
        many = b"".join(channel_kit.frame(channel_kit.STREAM, channel_kit.field(channel_kit.DATA, b"x" * 60000), 2)
                        for _ in range(4))
        for words in (many, channel_kit.frame(2, b"", 2), channel_kit.frame(channel_kit.STREAM, b"", 3),
                      channel_kit.frame(channel_kit.STREAM, b"", 2),
                      channel_kit.frame(channel_kit.WINDOW, channel_kit.field(channel_kit.VALUE, 1 << 62), 2),
                      b"GET / HTTP/1.0\r\n\r\n"):
            bad = Client(job.pid, "import time; time.sleep(0.3)")
            with contextlib.suppress(BrokenPipeError):  # it may be closed before it has sent all
                bad.socket.sendall(words)
            assert bad.receive() == b"" and bad.end[0] in (None, channel_kit.ERROR), bad.end
            bad.close()
        good.send(b"still")
        assert good.receive() == b"still"
        assert job.alive()


def test_a_stopped_tool_and_one_that_takes_half_of_its_connection_down():
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import channel_kit, time\n"
            "c = channel_kit.Client(int(sys.argv[1]), sys.argv[2]); c.send(b'x'); print(c.receive(), flush=True); "
            "time.sleep(60)")
    with jobs.python() as job:
        inject(job)
        tool = subprocess.Popen([sys.executable, "-c", code, str(job.pid), ECHO], stdout=subprocess.PIPE)
        assert tool.stdout.readline() == b"b'x'\n"
        tool.send_signal(signal.SIGSTOP)
        assert probe(job.pid, "eval", "1").stdout == "1\n"
        other = Client(job.pid, ECHO)
        other.send(b"y")
        assert other.receive() == b"y"
        other.socket.shutdown(socket.SHUT_WR)
        wait_for_threads(job, 1)
        tool.kill()
        tool.wait()
        wait_for_threads(job)
