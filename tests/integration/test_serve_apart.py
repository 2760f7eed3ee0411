"""A service of root's for all users: what a command of another user inherits of root, and what one that will not end
costs the rest."""
import json
import os
import platform
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import jobs
import pytest
from jobs import PROGRAM
from serve_kit import NEEDS_SERVE, commands_of, service
from serve_users_kit import NEEDS_ROOT, OTHER, ask_as, for_all

pytestmark = [NEEDS_SERVE, NEEDS_ROOT]
SERVE = str(PROGRAM) + "-serve"
ADD_KEY, REQUEST_KEY, KEYCTL, IOPRIO_SET, IOPRIO_GET = \
    (217, 218, 219, 30, 31) if platform.machine() == "aarch64" else (248, 249, 250, 251, 252)
RT_SIGACTION = 134 if platform.machine() == "aarch64" else 13
LONG = "SELECT count(*) FROM range(100000000000) a"

# As the other user: what it has, as JSON.
REPORT = f"""
import ctypes, json, os, resource
libc = ctypes.CDLL(None)
key = libc.syscall({KEYCTL}, 10, -3, b"user", b"canary", 0)
value = ctypes.create_string_buffer(32)
libc.syscall({KEYCTL}, 11, key, value, 32)
def terminal():
    try:
        return bool(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
def status(*names):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return [lines[name].split() for name in names]
listed = os.open("/proc/self/fd", os.O_RDONLY)
print(json.dumps(dict(
    ids=status("Uid", "Gid", "Groups"), capabilities=sum(status("CapInh", "CapPrm", "CapEff", "CapAmb"), []), privileges=status("NoNewPrivs"),
    leads=os.getsid(0) == os.getpid(), terminal=terminal(), key=value.value.decode(), fds=sorted(int(n) for n in os.listdir(listed) if int(n) != listed and os.path.exists(f"/proc/self/fd/{{n}}")),
    umask=os.umask(0), limits=[resource.getrlimit(n) for n in (resource.RLIMIT_CORE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NOFILE)],
    nice=os.getpriority(os.PRIO_PROCESS, 0), policy=os.sched_getscheduler(0), ioprio=libc.syscall({IOPRIO_GET}, 1, 0), oom=open("/proc/self/oom_score_adj").read().strip(),
    cwd=os.getcwd(), env=sorted(os.environ))))
"""
# Root's own process as no command of another user may be, which then becomes the program. What the machine refuses
# stays as it is.
SPOILED = f"""
import ctypes, fcntl, os, pty, resource, signal, struct, sys, termios
os.setsid()
leader, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
libc = ctypes.CDLL(None)
libc.syscall({KEYCTL}, 1, b"of root")
assert libc.syscall({ADD_KEY}, b"user", b"canary", b"SECRET", 6, -3) > 0
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
for number in (32, 33):  # glibc lets nobody ignore its own two; what it did not start can
    assert libc.syscall({RT_SIGACTION}, number, struct.pack("4Q", 1, 0, 0, 0), None, 8) == 0
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGALRM}})
os.umask(0)
def attempt(change, *arguments):
    try:
        change(*arguments)
    except (OSError, ValueError):
        pass
for which, limit in ((resource.RLIMIT_CORE, resource.RLIM_INFINITY), (resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY), (resource.RLIMIT_NOFILE, 500000),
                     (resource.RLIMIT_NICE, 40), (resource.RLIMIT_RTPRIO, 99), (resource.RLIMIT_MSGQUEUE, 1 << 24)):
    attempt(resource.setrlimit, which, (resource.getrlimit(which)[1],) * 2)
    attempt(resource.setrlimit, which, (limit, limit))
libc.syscall({IOPRIO_SET}, 1, 0, 1 << 13 | 4)
attempt(os.setpriority, os.PRIO_PROCESS, 0, -5)
attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1))
attempt(lambda: open("/proc/self/oom_score_adj", "w").write("-500"))
header, caps = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
assert libc.capget(header, caps) == 0
low, high = struct.unpack("6I", caps.raw)[:3], struct.unpack("6I", caps.raw)[3:]
assert libc.capset(header, struct.pack("6I", low[0], low[1], low[1], high[0], high[1], high[1])) == 0
assert libc.prctl(28, 0x14) == 0 or libc.prctl(8, 1) == 0  # securebits that keep capabilities, or KEEPCAPS alone
os.set_inheritable(os.open("/etc/shadow", os.O_RDONLY), True)
os.environ["SECRET_OF_ROOT"] = "1"
os.execv(sys.argv[1], sys.argv[1:])
"""


def become(folder, *command):
    """What the command prints, run by `probing-serve --as` in a session with a terminal of root's and in a folder
    behind a closed one."""
    (folder / "closed/open").mkdir(parents=True)
    (folder / "closed").chmod(0o700)
    done = subprocess.run([sys.executable, "-c", SPOILED, SERVE, "--as", str(OTHER), str(OTHER), *command],
                          cwd=folder / "closed/open", stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_command_of_another_user_inherits_is_the_list_of_the_documentation(tmp_path):
    has = json.loads(become(tmp_path, "/usr/bin/python3", "-c", REPORT))
    assert has["ids"][:2] == [[str(OTHER)] * 4] * 2 and "0" not in has["ids"][2]
    assert {int(each, 16) for each in has["capabilities"]} == {0} and has["privileges"] == [["1"]]
    assert (has["leads"], has["terminal"], has["key"], has["fds"]) == (True, False, "", [0, 1, 2])
    assert (has["umask"], has["nice"], has["policy"], has["ioprio"] >> 13, has["oom"],
            has["cwd"]) == (0o22, 0, os.SCHED_OTHER, 0, "0", "/")
    for (soft, hard), most in zip(has["limits"], [(0, 0), (0, 0), (0, 0), (8 << 20,) * 2, (819200,) * 2,
                                                  (1024, 262144)]):
        assert 0 <= soft <= most[0] and 0 <= hard <= most[1], has["limits"]
    assert set(has["env"]) <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "HOME", "USER", "XDG_RUNTIME_DIR"}


def test_a_command_of_another_user_has_no_signal_blocked_or_ignored(tmp_path):
    lines = dict(line.split(":", 1) for line in become(tmp_path, "/bin/cat", "/proc/self/status").splitlines())
    assert [int(lines[name], 16) for name in ("SigIgn", "SigBlk", "SigPnd")] == [0, 0, 0]


def test_where_a_step_fails_the_command_does_not_run(tmp_path):
    """A group leader can leave no session: nothing is run rather than with root's terminal."""
    done = subprocess.run([SERVE, "--as", str(OTHER), str(OTHER), "/bin/echo", "ran"],
                          preexec_fn=lambda: os.setpgid(0, 0), capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (126, "") and "session" in done.stderr, done.stderr


# --- commands that will not end ---

ASK = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
body = sys.argv[2].encode()
client.sendall(b"POST /api/v1/query?timeout=20 HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
print("sent", flush=True)
sys.stdin.read()
"""


@contextmanager
def asking(path, uid=OTHER, sql=LONG):
    """A client that waits for the answer to a long query until it is told to leave."""
    with subprocess.Popen(["/usr/bin/python3", "-c", ASK, path, sql], user=uid, group=uid, extra_groups=[],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as client:
        try:
            assert client.stdout.readline() == "sent\n"
            yield client
        finally:
            client.kill()


def find_query(served, uid=OTHER):
    for pid in commands_of(served):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid and b"\0query\0" in Path(
                f"/proc/{pid}/cmdline").read_bytes() and b"--as" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        except OSError:
            continue
    return 0


def query_of(served):
    """The pid of the running query, when it is the other user's."""
    jobs.wait_until(lambda: find_query(served), what="the query")
    return find_query(served)


@pytest.fixture
def for_users(tmp_path):
    with for_all() as folder, service(tmp_path / "r", "--socket", str(folder / "socket"),
                                      program=folder / "probing/bin/probing") as s:
        yield s, str(folder / "socket")


def stops_at_once(served, limit=6):
    began = time.monotonic()
    stop = subprocess.run([PROGRAM, "serve", "--stop"], env=served.env, capture_output=True, text=True, timeout=30)
    assert stop.returncode == 0, stop.stderr
    assert time.monotonic() - began < limit


def test_a_command_of_another_user_has_no_terminal_of_the_services(tmp_path):
    """In a terminal's foreground, as root starts it by hand."""
    with for_all() as folder:
        pid, fd = pty.fork()
        if pid == 0:
            os.environ["XDG_RUNTIME_DIR"] = str(tmp_path)
            os.execv(folder / "probing/bin/probing", ["probing", "serve", "--socket", str(folder / "socket")])
        try:
            assert b"token=" in os.read(fd, 4096)
            served = type("Served", (), {"process": type("Process", (), {"pid": pid})})
            with asking(str(folder / "socket")):
                child = query_of(served)
                state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
                assert (int(state[3]), int(state[4])) == (child, 0), "a session of its own, and no terminal"
                assert os.readlink(f"/proc/{child}/cwd") == "/"
        finally:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            os.close(fd)


def test_a_command_that_stops_itself_ends_when_its_client_leaves(for_users):
    s, path = for_users
    with asking(path) as client:
        child = query_of(s)
        os.kill(child, signal.SIGSTOP)
        client.kill()
        jobs.wait_until(lambda: not os.path.exists(f"/proc/{child}"), 5, "the end of the command")


# Traces a process of its own user and never waits for it: when that is killed its parent cannot have its status.
HOLDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0
print("traced", flush=True)
sys.stdin.read()
"""


def test_a_command_whose_status_nobody_gets_loses_its_place_and_holds_up_no_end(for_users):
    s, path = for_users
    with asking(path) as client:
        child = query_of(s)
        with subprocess.Popen(["/usr/bin/python3", "-c", HOLDS, str(child)], user=OTHER, group=OTHER, extra_groups=[],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as tracer:
            if tracer.stdout.readline() != "traced\n":
                pytest.skip("a user may not trace processes here")
            client.kill()
            jobs.wait_until(lambda: Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z", 5,
                            "the end of the command")
            time.sleep(2.5)
            before = os.times()
            used = [int(n) for n in Path(f"/proc/{s.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]]
            assert ask_as(OTHER, path, ("POST", "/api/v1/query", "SELECT 1 AS a"))[0][0] == 200
            time.sleep(1)
            after = [int(n) for n in Path(f"/proc/{s.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]]
            assert sum(after) - sum(used) < 50 * (os.times().elapsed
                                                  - before.elapsed), "the service waits for it without using the CPU"
            stops_at_once(s)
            tracer.stdin.close()


# --- what they leave ---

# A command line from elsewhere, as `probing -t` sends it: `launch` runs the code.
LEAVES = """
import socket, struct, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(b"GET /api/v1/command HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: Upgrade\\r\\nUpgrade: probing-command\\r\\n\\r\\n")
answer = client.makefile("rb")
assert b" 101 " in answer.readline()
while answer.readline().strip():
    pass
words = ["xterm", "launch", "--", "/usr/bin/python3", "-c", sys.argv[2]]
for kind, data in ((b"A", b"".join(word.encode() + b"\\0" for word in words)), (b"B", b"")):
    client.sendall(kind + struct.pack("<I", len(data)) + data)
print(answer.read().decode(errors="replace"))
"""
DEEP = """
import os
for way in ("a", "b", "c"):
    back = os.open(".", os.O_RDONLY)
    for i in range(300):
        os.mkdir(way)
        open(f"{way}{i}", "w").close()
        os.chdir(way)
    os.fchdir(back)
os.mkdir("closed", 0)
os.mkdir("up-9000")
os.symlink("/", "root")
print("left", os.getcwd())
"""


def test_folders_that_a_command_leaves_are_removed(for_users):
    s, path = for_users
    shutil.copytree(jobs.TOP / "python/launch", Path(path).parent / "probing/lib/probing/python/launch")
    done = subprocess.run(["/usr/bin/python3", "-c", LEAVES, path, DEEP], user=OTHER, group=OTHER, extra_groups=[],
                          capture_output=True, text=True, timeout=60, cwd="/")
    assert f"left {s.folder}/probing-serve/job-" in done.stdout, done
    jobs.wait_until(lambda: not list((s.folder / "probing-serve").glob("job-*")), 5, "the end of its folder")
