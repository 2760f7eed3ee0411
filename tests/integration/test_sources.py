"""Where a process may not be read from outside: through /proc/PID/mem, and through the agent that is in it."""
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe
from agent_kit import field, frame, connect, run_dir
from seccomp_kit import SECCOMP

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up rights")
EVERY = pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
NOBODY = 65534
# Root, but without the right to trace a process that has all capabilities: as in a pod without SYS_PTRACE.
POOR = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
VM_READV = 310 if os.uname().machine == "x86_64" else 270

CODE = """
import threading, time
def worker(n):
    label = "x" * n
    time.sleep(1000)
def deep(n):
    if n:
        return deep(n - 1)
    time.sleep(1000)
threading.Thread(target=worker, args=(3,), name="sleeper", daemon=True).start()
threading.Thread(target=deep, args=(200,), name="deep", daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
time.sleep(1000)
"""

# Not dumpable, as a program is that changed its user: even its owner may not trace it.
UNDUMPABLE = "import ctypes, os\nos.setgid(65534); os.setuid(65534)\nassert ctypes.CDLL(None).prctl(3) == 0\n" + CODE


def run(prefix, *words, program=jobs.PROGRAM):
    return subprocess.run([*prefix, str(program), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=60)


def stacks(prefix, pid, *options, **program):
    done = run(prefix, "-t", pid, "backtrace", "--json", *options, **program)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def python_threads(process):
    return [{key: t[key] for key in ("tid", "name", "gil", "syscall", "frames")} for t in process["threads"]
            if t["python"]]


@EVERY
def test_the_agent_reads_what_we_may_not(interpreter):
    with jobs.python(CODE, interpreter=interpreter) as job:
        done = run(POOR, "-t", job.pid, "backtrace")
        assert done.returncode == 1
        assert "may not be read" in done.stderr
        assert "agent" in done.stderr
        assert done.stderr.count("\n") == 1
        assert probe(job.pid, "inject").returncode == 0
        outside = stacks([], job.pid, "--locals")
        through = stacks(POOR, job.pid, "--locals")
        assert outside["source"] == "process_vm_readv" and through["source"] == "agent"
        assert python_threads(through) == python_threads(outside) and len(python_threads(through)) == 3
        assert "read through the agent" in run(POOR, "-t", job.pid, "backtrace").stdout


def test_everything_else_works_through_it_too():
    with jobs.python(CODE) as job:
        assert probe(job.pid, "inject").returncode == 0
        frames = json.loads(run(POOR, "-t", job.pid, "query", "SELECT func, lineno FROM python.backtrace", "--format",
                                "json").stdout)
        assert {"func": "worker", "lineno": 5} in frames
        # A thread that sleeps tells where it stands.
        native = stacks(POOR, job.pid, "--native")
        assert "worker" in [f["function"] for f in native["threads"][1]["stack"]]
        assert any("sleep" in (f["function"] or "") for f in native["threads"][0]["stack"])
        rows = {row["check"]: row for row in json.loads(run(POOR, "-t", job.pid, "doctor", "--format", "json").stdout)}
        assert rows["ptrace"]["state"] == "fail" and "through the agent" in rows["stacks"]["found"]
        rows = {row["check"]: row for row in json.loads(run([], "-t", job.pid, "doctor", "--format", "json").stdout)}
        assert rows["ptrace"]["state"] == "ok" and "process_vm_readv" in rows["stacks"]["found"]
        assert job.alive()


def test_a_thread_that_runs_is_not_made_up():
    code = CODE.replace('print("ready"', 'threading.Thread(target=lambda: [None for _ in iter(int, 1)], '
                                         'name="spinner", daemon=True).start()\nprint("ready"')
    with jobs.python(code) as job:
        assert probe(job.pid, "inject").returncode == 0
        for _ in range(5):
            threads = {t["name"]: t for t in stacks(POOR, job.pid)["threads"]}
            spinner = [t for t in threads.values() if t["python"] and not t["frames"]]
            assert all(t["read"] == "refused" for t in spinner)
            if "spinner" in threads:  # caught while another thread had the CPU or the GIL: then it is true
                assert [f["function"] for f in threads["spinner"]["frames"]][-1] == "Thread._bootstrap"
            assert [f["function"].rpartition(".")[2] for f in threads["deep"]["frames"]].count("deep") == 201


def test_a_process_that_forbids_it_to_its_owner(tmp_path):
    program = tmp_path / "probing"
    shutil.copyfile(jobs.PROGRAM, program)
    for path in (program, *list(tmp_path.parents)[:2], tmp_path):
        path.chmod(0o755)
    owner = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with jobs.start("/usr/bin/python3", "-c", UNDUMPABLE, ready="ready") as job:
        assert run(owner, "-t", job.pid, "backtrace", program=program).returncode == 1
        assert probe(job.pid, "inject").returncode == 0
        process = stacks(owner, job.pid, "--locals", program=program)
        assert process["source"] == "agent"
        worker = next(t for t in process["threads"] if t["name"] == "sleeper")["frames"][0]
        assert worker["function"] == "worker" and worker["locals"] == {"n": "3", "label": "'xxx'"}
        # What it waits in is not told there, so neither is where it stands.
        done = run(owner, "-t", job.pid, "backtrace", "--native", program=program)
        assert done.returncode == 1 and "registers" in done.stderr and done.stderr.count("\n") == 1
        assert job.alive()


def test_where_a_filter_forbids_the_call_the_file_is_read():
    with jobs.python(CODE) as job:
        filtered = [sys.executable, "-c", SECCOMP, f"[{VM_READV}]", "0x50001"]
        process = stacks(filtered, job.pid)
        assert process["source"] == "/proc/PID/mem"
        assert python_threads(process) == python_threads(stacks([], job.pid))


def pieces(*all):
    return field(13, b"".join(struct.pack("<QQ", *piece) for piece in all))


def test_what_is_asked_of_the_agent_never_brings_it_down():
    """Requests with unmapped addresses, too many, too large, malformed: each gets an answer, and the process goes
    on."""
    with jobs.python(CODE) as job:
        assert probe(job.pid, "inject").returncode == 0
        directory = run_dir(job.pid)
        client = connect(directory)
        client.sendall(frame(1, field(1, (directory / "secret").read_bytes())))
        client.recv(4096)

        def ask(kind, fields):
            client.sendall(frame(kind, fields, number=5))
            answer = b""
            while len(answer) < 16 or len(answer) < 16 + struct.unpack("<I", answer[12:16])[0]:
                answer += client.recv(1 << 20)
            return struct.unpack("<H", answer[4:6])[0], answer[16:]

        start, end = next((int(a, 16), int(b, 16)) for a, b in (line.split()[0].split("-")
                                                                for line in Path(
                                                                    f"/proc/{job.pid}/maps").read_text().splitlines()))
        kind, answer = ask(7, pieces((start, 4), (start, 8)))
        assert kind == 65 and answer[8:] == b"\x7fELF\x7fELF\x02\x01\x01\x00"
        for nobody in (0, 8, 1 << 47, (1 << 64) - 4, (1 << 63)):
            assert ask(7, pieces((nobody, 64))) == (65, field(14, b""))
        assert ask(7, pieces((start, 4), (8, 4), (start, 4)))[1] == field(14, b"\x7fELF")
        for wrong in (b"", field(13, b"x" * 15), pieces(*[(start, 1)] * 65), pieces((start, 65537)),
                      pieces((start, (1 << 64) - 1)), pieces((start, 65536), (start, 1))):
            assert ask(7, wrong)[0] == 66
        for offset in (0, 1 << 40, (1 << 64) - 1):
            assert ask(8, field(15, struct.pack("<Q", offset)))[0] == 65
        for tid in (0, 1, -1, 1 << 31, 1 << 40):
            assert ask(9, field(16, struct.pack("<q", tid)))[0] == 66
        assert ask(9, field(16, struct.pack("<q", job.pid)))[0] == 65
        # One that asks and does not read is refused or closed; the others are served.
        lazy = connect(directory)
        lazy.sendall(frame(1, field(1, (directory / "secret").read_bytes())))
        lazy.settimeout(0.5)
        try:
            for _ in range(200):
                lazy.sendall(frame(7, pieces((start, min(65536, end - start)))))
        except (socket.timeout, BrokenPipeError, ConnectionResetError):
            pass
        assert ask(2, b"")[0] == 65 and job.alive()
        assert probe(job.pid, "eval", "1 + 1").stdout == "2\n"
