"""listen: the prompt over TCP, with a real nc."""
import re
import socket
import time

import jobs
import pytest
from jobs import probe
from prompt_kit import COUNTING, Nc, address, goes_on, listening, needs_nc
from every_python import EVERY, program

pytestmark = needs_nc


@pytest.fixture
def job():
    with jobs.python(COUNTING) as job:
        yield job


@EVERY
def test_nc_is_a_prompt(python):
    with program(python, COUNTING) as job:
        with listening(job) as nc:
            assert re.fullmatch(r"Python 3\.\S+ in process \d+; help\(\) explains\n>>> ", nc.wait(">>> "))
            assert nc.ask("rate") == "0.1\n"
            nc.send("def f(n):\n    return n + 1\n\n")
            assert nc.wait(">>> ") == "... ... >>> "
            assert nc.ask("f(41)") == "42\n" and nc.ask("_") == "42\n"
            assert nc.ask("1 / 0").endswith("ZeroDivisionError: division by zero\n")
            nc.send("exit()\n")
            assert nc.end() == ""
        assert probe(job.pid, "listen", "--stop").returncode == 0
        assert job.alive() and job.output == "ready\n"


def test_it_stops(job):
    command = address(probe(job.pid, "listen"))
    with Nc(command) as nc, Nc(command) as other:
        nc.wait(">>> ")
        other.wait(">>> ")
        nc.send("while True: pass\n\n")
        assert probe(job.pid, "listen", "--stop").returncode == 0
        nc.end()
        other.end()
    with Nc(command) as nc:
        assert ">>>" not in nc.end()
    done = probe(job.pid, "listen", "--stop")
    assert (done.returncode, done.stderr) == (0, "note: it was not listening\n")
    goes_on(job)


def test_other_machines_need_a_token(job):
    done = probe(job.pid, "listen", "0.0.0.0:0")
    assert done.returncode == 2 and "--token" in done.stderr
    command = address(probe(job.pid, "listen", "0.0.0.0", "--token", "s3cret"))
    with Nc(command) as nc:
        nc.wait("token: ")
        nc.send("wrong\n")
        assert "not the token" in nc.end()
    with Nc(command) as nc:
        nc.wait("token: ")
        nc.send("s3cret\n1 + 1\n")
        assert nc.wait("2\n")
    for wrong in ("nonsense", "1.2.3.4.5", "127.0.0.1:99999", "[::1"):
        assert probe(job.pid, "listen", wrong).returncode == 2
    taken = command.split()[-1]
    assert "in use" in probe(job.pid, "listen", taken).stderr
    assert probe(job.pid, "detach").returncode == 0
    with Nc(command) as nc:
        assert "token" not in nc.end()


def test_telnet_speaks_of_itself(job):
    command = address(probe(job.pid, "listen"))
    with socket.create_connection(command.split()[1:], timeout=10) as peer:
        peer.sendall(b"\xff\xfd\x01\xff\xfb\x1f\xff\xfa\x1f\x00\x50\xff\xf0rate\r\nexec('print(\"it runs\")\\nwhile "
                     b"True: pass')\r\n")
        seen = b""
        while b"0.1\n>>> it runs\n" not in seen:
            seen += peer.recv(4096)
        peer.sendall(b"\xff\xf4\xff\xfd\x06")  # Ctrl-C of a telnet
        while b"KeyboardInterrupt\n>>> " not in seen:
            seen += peer.recv(4096)
        peer.sendall(b"'still' + ' here'\r\n")
        while b"'still here'\n>>> " not in seen:
            seen += peer.recv(4096)
    goes_on(job)


def test_a_client_may_go_at_any_point(job):
    command = address(probe(job.pid, "listen"))
    for text in (
        "", "1 +", "def f():\n", "while True: print('x' * 9999)\n\n", "import time\nfor i in range(100): print(i); "
                                                                      "time.sleep(0.01)\n\n"):
        with Nc(command) as nc:
            nc.wait(">>> ")
            nc.send(text)
            time.sleep(0.1)
            if "9999" in text:
                goes_on(job)  # nobody reads
    jobs.wait_until(lambda: "probing-channel" not in job.threads(), what="the end of the prompts")
    with Nc(command) as nc:  # its end looks like that of its input, as long as the code prints nothing
        nc.wait(">>> ")
        nc.send("while True: time.sleep(0.01)\n\n")
        nc.wait("... ")
    goes_on(job)
    assert probe(job.pid, "listen", "--stop").returncode == 0
    jobs.wait_until(lambda: "probing-channel" not in job.threads(), what="the end of the last prompt")
    assert job.output == "ready\n"


def test_what_was_sent_before_the_end_is_run(job):
    command = address(probe(job.pid, "listen"))
    with socket.create_connection(command.split()[1:], timeout=10) as peer:
        peer.sendall(b"sent = 41\nsent + 1")
        peer.shutdown(socket.SHUT_WR)
        seen = b""
        while True:
            data = peer.recv(4096)
            if not data:
                break
            seen += data
    assert seen.endswith(b">>> >>> 42\n>>> "), seen
