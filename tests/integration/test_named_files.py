"""Files that a process names, and sockets at the places of its own: root's tool opens them with the rights of that
process's user, and nothing that is no file."""
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import jobs
import pytest
from jobs import probe

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the tool and the process have different users")
USER, GROUP = 64201, 64202  # no users of this machine
AS_USER = {"user": USER, "group": USER, "extra_groups": [GROUP], "cwd": "/"}
# What root is in a container that lets it change no ids: the rights of another user are compared, not taken.
WITHOUT_IDS = ["setpriv", "--bounding-set=-setuid,-setgid", "--inh-caps=-setuid,-setgid"]

# Code whose file is whatever it says, each below the next; also of a process that is marked as not dumpable.
NAMES = """
import ctypes, os, sys, time
if sys.argv[1] == "undumpable":
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
os.chdir(sys.argv[2])
calls = [lambda: (print("ready", flush=True), time.sleep(1000))]
for name in sys.argv[3:]:
    names = {"inner": calls[-1]}
    exec(compile("def named():\\n inner()\\n", name, "exec"), names)
    calls.append(names["named"])
calls[-1]()
"""


def write(path, text, mode, user=0, group=0):
    path.write_text(f"{text} first line\n{text} second line\n")
    os.chown(path, user, group)
    path.chmod(mode)
    return path


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("prefix", [[], WITHOUT_IDS], ids=["taken", "compared"])
@pytest.mark.parametrize("kind", ["dumpable", "undumpable"])
def test_sources_are_read_with_the_rights_of_the_processs_user(folder, kind, prefix):
    closed, own = folder / "closed", folder / "own"
    closed.mkdir(mode=0o700)
    own.mkdir(mode=0o700)
    os.chown(own, USER, USER)
    (own / "link").symlink_to(folder / "private")
    (own / "outside").symlink_to("../private")
    allowed = [write(folder / "public", "ALLOWED-0", 0o644), write(own / "mine", "ALLOWED-1", 0o600, USER, USER),
               write(folder / "of_group", "ALLOWED-2", 0o640, 0, GROUP)]
    refused = [write(folder / "private", "REFUSED-0", 0o600), write(closed / "inside", "REFUSED-1", 0o644),
               write(folder / "of_root", "REFUSED-2", 0o640, 0, 0),
               write(folder / "not_of_group", "REFUSED-3", 0o604, 0, GROUP)]
    relative = [write(own / "relative", "ALLOWED-3", 0o600, USER, USER)]
    names = [*map(str, [*allowed, *refused, own / "link", own / "outside"]), "relative", "../closed/inside",
             "./../private", "../public"]
    with jobs.start("/usr/bin/python3", "-c", NAMES, kind, own, *names, ready="ready", **AS_USER) as job:
        shown = subprocess.run([*prefix, jobs.PROGRAM, "-t", str(job.pid), "backtrace"], stdout=subprocess.PIPE,
                               text=True, timeout=60).stdout
        whole = {name: subprocess.run([*prefix, jobs.PROGRAM, "-t", str(job.pid), "backtrace", "--source", name],
                                      stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, timeout=60) for name in names}
    assert shown.count("named (") == len(names) and "REFUSED" not in shown, shown
    for i, path in enumerate([*allowed, *relative]):
        name = str(path) if path in allowed else "relative"
        assert f"ALLOWED-{i} second line" in shown, (name, whole[name].stderr)
        assert whole[name].stdout == path.read_text(), (name, whole[name].stderr)
    assert whole["../public"].stdout == (folder / "public").read_text()
    for name in set(names) - {*map(str, allowed), "relative", "../public"}:
        assert (whole[name].returncode, whole[name].stdout) == (1, ""), (name, whole[name])
        assert "ermission denied" in whole[name].stderr, (name, whole[name])


def test_what_is_no_file_is_not_even_opened(folder):
    fifo = folder / "fifo"
    os.mkfifo(fifo, 0o666)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    names = [str(fifo), str(folder / "socket"), "/dev/zero", "/proc/self/environ", "/proc/thread-self/cmdline",
             "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", str(folder)]
    with jobs.start("/usr/bin/python3", "-c", NAMES, "dumpable", folder, *names, ready="ready") as job:
        began = []

        def write_to_it():
            os.close(os.open(fifo, os.O_WRONLY))  # returns when somebody opens it to read
            began.append(True)
        writer = threading.Thread(target=write_to_it, daemon=True)
        writer.start()
        shown = probe("-t", job.pid, "backtrace")
        whole = [probe("-t", job.pid, "backtrace", "--source", name, env={**os.environ, "CANARY": "of-the-tool"})
                 for name in names]
        opened = bool(began)
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
        writer.join(10)
    assert not opened and began, "the pipe was opened"
    assert shown.returncode == 0 and shown.stdout.count("named (") == len(names), shown
    assert all((done.returncode, done.stdout) == (1, "") and "not a regular file" in done.stderr
               for done in whole), whole


def test_a_perf_map_is_read_with_the_rights_of_the_processs_user(folder):
    """The name is fixed, but in a folder of all: a link of that name may lead to any file."""
    code = """
import ctypes, mmap, time
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(bytes.fromhex("%s"))
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print("ready", at, flush=True)
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(at)(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value)
""" % {"x86_64": "554889e5ffd75dc3", "aarch64": "fd7bbfa9fd03009100003fd6fd7bc1a8c0035fd6"}[os.uname().machine]
    with jobs.start("/usr/bin/python3", "-c", code, ready="ready", **AS_USER) as job:
        map_file, at = Path(f"/tmp/perf-{job.pid}.map"), int(job.output.split()[1])
        secret = folder / "secret"
        try:
            secret.write_text(f"{at:x} 1000 SECRET_NAME\n")
            secret.chmod(0o600)
            map_file.symlink_to(secret)
            hidden = probe("-t", job.pid, "backtrace", "--native").stdout
            os.chown(secret, USER, USER)
            shown = probe("-t", job.pid, "backtrace", "--native").stdout
            secret.chmod(0o644)
            os.chown(secret, USER + 1, USER + 1)
            foreign = probe("-t", job.pid, "backtrace", "--native").stdout
        finally:
            map_file.unlink()
    assert "SECRET_NAME" not in hidden and "SECRET_NAME" in shown, (hidden, shown)
    assert "SECRET_NAME" not in foreign, "any user may make a file of that name"


# --- the control socket ---

LISTENS = ("import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen(5)\n"
           "print('ready', flush=True)\nwhile True:\n    c, _ = s.accept()\n"
           "    print('connected', c.recv(100), flush=True)\n")


def become(work):
    """Runs it in a child with that user's ids."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("way", ["a link", "another process's socket", "a pipe", "a secret that is a line"])
def test_the_tool_connects_to_the_process_alone_and_sends_its_secret_alone(way):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, socket.socket(socket.AF_UNIX) as of_root:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "users").mkdir(mode=0o755)
        os.chown(folder / "users", USER, USER)
        of_root.bind(str(folder / "of_root"))
        (folder / "of_root").chmod(0o600)
        of_root.listen(100)
        of_root.setblocking(False)
        with jobs.start("/usr/bin/python3", "-c", "import time\nprint('ready', flush=True)\n"
                                                  "while True: time.sleep(0.1)", ready="ready", **AS_USER) as job, \
                jobs.start("/usr/bin/python3", "-c", LISTENS, folder / "users/other", ready="ready",
                           **AS_USER) as other:
            assert probe("-t", job.pid, "eval", "6 * 7").stdout == "42\n"
            run = next(Path(f"/dev/shm/probing-{USER}").glob(f"*-{job.pid}-*"))

            def change():
                os.unlink(run / ("secret" if "secret" in way else "control"))
                if way == "a link":
                    os.symlink(folder / "of_root", run / "control")
                elif way == "another process's socket":
                    os.rename(folder / "users/other", run / "control")
                elif way == "a pipe":
                    os.mkfifo(run / "control")
                else:
                    (run / "secret").write_text("\r\nFLUSHALL\r\n")
            become(change)
            done = [probe("-t", job.pid, *words) for words in (("eval", "1"),
                                                               ("query", "SELECT count(*) FROM probing.events"),
                                                               ("detach",))]
            with pytest.raises(BlockingIOError):
                of_root.accept()
            jobs.wait_until(lambda: way != "another process's socket" or "connected" in other.output,
                            what="the connection")
            assert "HELLO" not in other.output, other.output
            assert other.output.count("connected b''") == other.output.count("connected"), other.output
            assert done[0].returncode == 1 and done[0].stderr.count("\n") == 1, done[0]
            assert ("secret" if "secret" in way else "socket") in done[0].stderr, done[0].stderr
            jobs.forget(job.pid)


def test_joining_is_tried_less_often_the_longer_it_fails(folder):
    """A process that takes each connection and closes it at once is not asked thousands of times."""
    code = """
import os, socket, sys, time
path = ""
print("ready", flush=True)
while not path:
    time.sleep(0.01)
    path = open(sys.argv[1]).read()
os.unlink(path)
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen(100)
print("bound", flush=True)
while True:
    c, _ = s.accept()
    c.close()
    print("closed", flush=True)
"""
    where = write(folder / "where", "", 0o644)
    where.write_text("")
    with jobs.start("/usr/bin/python3", "-c", code, where, ready="ready", **AS_USER) as job:
        assert probe("-t", job.pid, "inject").returncode == 0
        run = next(Path(f"/dev/shm/probing-{USER}").glob(f"*-{job.pid}-*"))
        where.write_text(str(run / "control"))
        jobs.wait_until(lambda: "bound" in job.output, what="the other socket")
        done = probe("-t", job.pid, "eval", "1")
        assert done.returncode == 1, done
        assert 2 <= job.output.count("closed") < 500, job.output.count("closed")
        jobs.forget(job.pid)


# --- recordings ---

RECORDING = """
import fcntl, os, sys, time
name, of = sys.argv[1:]
folder = f"/dev/shm/probing-{os.getuid()}/{name}.of-{of}"
os.makedirs(folder, 0o700)
about = open(folder + "/about", "w")
about.write(f"recorded_pid={of.split('-')[0]}\\n")
about.flush()
fcntl.lockf(about, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(1000)
"""


def started(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


@pytest.mark.parametrize("user", [0, USER], ids=["root's", "its user's"])
def test_a_recording_of_a_user_ends_no_process_of_root(user):
    """Its name says which process writes it, and whoever makes it gives it any name."""
    sleep = ("/usr/bin/python3", "-c", "import time\nprint('ready', flush=True)\ntime.sleep(1000)")
    as_that_user = {**AS_USER, "user": user, "group": user}
    with jobs.start(*sleep, ready="ready", **as_that_user) as named, \
            jobs.start(*sleep, ready="ready", **AS_USER) as job:
        name = f"{os.stat('/proc/self/ns/pid').st_ino}-{named.pid}-{started(named.pid)}"
        with jobs.start("/usr/bin/python3", "-c", RECORDING, name, f"{job.pid}-{started(job.pid)}", ready="ready",
                        **AS_USER):
            try:
                done = probe("-t", job.pid, "record", "--stop")
                if user:
                    assert done.returncode == 0 and "ended" in done.stdout, done
                else:
                    assert done.returncode == 1 and "nothing records it" in done.stderr and named.alive(), done
            finally:
                shutil.rmtree(next(Path(f"/dev/shm/probing-{USER}").glob(f"{name}.of-*")))
