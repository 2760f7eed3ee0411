"""What the agent may never do to its program: take its descriptors, hang its forks, crash it by a small stack, or
outlive what it was told.

The program checks itself (its descriptors, its children, its heartbeat) and says what it found."""
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe

EVERY = pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")
X86 = os.uname().machine == "x86_64"
UNSHARE, PIDFD_OPEN, CLOSE_RANGE = (272, 434, 436) if X86 else (97, 434, 436)
EPERM, EINVAL = 1, 22

# A filter that has some system calls return an error, as of an older kernel or a container: its own, or (as a prefix)
# of what is run.
FILTER = """
import ctypes, struct
def refuse(numbers, error):
    code = struct.pack("HBBI", 0x20, 0, 0, 0)
    for left, number in zip(range(len(numbers), 0, -1), numbers):
        code += struct.pack("HBBI", 0x15, left, 0, number)
    code += struct.pack("HBBI", 6, 0, 0, 0x7fff0000) + struct.pack("HBBI", 6, 0, 0, 0x50000 | error)
    buffer = ctypes.create_string_buffer(code)
    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    program = Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""


def inject(job, **options):
    done = probe(job.pid, "inject", **options)
    assert done.returncode == 0, done.stderr
    assert "is probed now" in done.stdout


def ticks(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def run_dirs(pid):
    return [path for root in ("/dev/shm", "/tmp", "/var/tmp") for path in Path(root).glob(f"probing-*/*-{pid}-*")]


def agent_threads(job):
    return sorted(name for name in job.threads() if name.startswith("probing"))


OWN_FILES = """
import os, signal, time
{refuse}
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
os.closerange(3, 4096)
own = [os.open("/dev/null", os.O_RDWR) for _ in range(600)]
print("opened", flush=True)
signal.sigwait([signal.SIGUSR1])
def lost():
    missing = []
    for fd in own:
        try: os.fstat(fd)
        except OSError: missing.append(fd)
    return missing
print("parent", lost(), flush=True)
child = os.fork()
if child == 0:
    print("child", lost(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("end", flush=True)
time.sleep(60)
"""


def close_all_and_open_own(job):
    """Has the program close every descriptor and open its own; says how many ticks of CPU time it took in the second
    after."""
    job.process.send_signal(signal.SIGUSR1)
    jobs.wait_until(lambda: "opened" in job.output)
    time.sleep(0.3)
    before = ticks(job.pid)
    time.sleep(1)
    spent = ticks(job.pid) - before
    return spent


def compare_own_files(job):
    job.process.send_signal(signal.SIGUSR1)
    jobs.wait_until(lambda: "end" in job.output)
    assert "parent []" in job.output and "child []" in job.output, job.output


@EVERY
def test_a_program_that_closes_everything_keeps_its_own_files_and_the_agent(interpreter):
    with jobs.python("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
                     + OWN_FILES.format(refuse=""),
                     interpreter=interpreter) as job:
        inject(job)
        assert close_all_and_open_own(job) < 20, "ticks of CPU time in a second of waiting"
        assert "already" in probe(job.pid, "inject").stdout, "its descriptors are not in the program's table"
        assert probe(job.pid, "detach").returncode == 0
        compare_own_files(job)


def test_where_the_table_is_shared_the_agent_ends_quietly_when_it_is_closed(tmp_path):
    """Neither of the two calls that give a thread its own table: descriptors are known by what they are."""
    refuse = FILTER + (f"refuse([{UNSHARE}, {CLOSE_RANGE}], {EPERM})\nsignal.pthread_sigmask(signal.SIG_BLOCK, "
                       f"[signal.SIGUSR1])\n")
    with jobs.python(OWN_FILES.format(refuse=refuse)) as job:
        inject(job)
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n"
        numbers = [int(fd) for fd in os.listdir(f"/proc/{job.pid}/fd")]
        assert any("socket" in link for link in job.fds()), "the table is shared, else this tests nothing"
        assert all(fd < 3 or fd >= 10 for fd in numbers), numbers
        directory = run_dirs(job.pid)
        assert close_all_and_open_own(job) < 20
        jobs.wait_until(lambda: not agent_threads(job), what="the end of the agent")
        assert directory, "what is left is what was recorded"
        assert sorted(path.name for path in directory[0].iterdir()) == ["about", "arena",
                                                                        "config"], "what is left is what was recorded"
        compare_own_files(job)
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n", "and it can be injected again"


def test_where_the_table_is_shared_a_child_inherits_nothing():
    code = FILTER + f"""
import os, time
refuse([{UNSHARE}, {CLOSE_RANGE}], {EPERM})
before = sorted(os.listdir("/proc/self/fd"))
print("ready", flush=True)
while not os.path.exists(__file__ + ".go"): time.sleep(0.01)
child = os.fork()
if child == 0:
    print("same", sorted(os.listdir("/proc/self/fd")) == before, flush=True)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(60)
"""
    with jobs.python(code) as job:
        inject(job)
        go = Path(job.script + ".go")
        go.touch()
        jobs.wait_until(lambda: "same" in job.output)
        go.unlink()
        assert "same True" in job.output


@EVERY
def test_no_descriptor_lands_on_stdio(interpreter):
    # Not one long sleep: Python 3.6 has no GIL before its main thread runs Python code again.
    code = "import os, time\nprint('ready', flush=True)\nos.close(0); os.close(2)\nwhile True: time.sleep(0.05)\n"
    with jobs.python(code, interpreter=interpreter) as job:
        time.sleep(0.2)
        inject(job)
        probe(job.pid, "eval", "1")
        assert not {"0", "2"} & set(os.listdir(f"/proc/{job.pid}/fd"))


LAST = """
import os, resource, time
{refuse}
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True: held.append(os.open("/dev/null", 0))
except OSError: pass
for _ in range(9): os.close(held.pop())
print("ready", flush=True)
while not os.path.exists(__file__ + ".go"): time.sleep(0.01)
n = 0
try:
    while True: os.open("/dev/null", 0); n += 1
except OSError: pass
print("left", n, flush=True)
time.sleep(60)
"""


def count_left(job):
    go = Path(job.script + ".go")
    go.touch()
    jobs.wait_until(lambda: "left" in job.output)
    go.unlink()
    return int(re.search(r"left (\d+)", job.output).group(1))


@EVERY
def test_the_last_descriptors_stay_the_program_s(interpreter):
    with jobs.python(LAST.format(refuse=""), interpreter=interpreter) as job:
        inject(job)
        assert probe(job.pid, "eval", "n if 'n' in globals() else 6 * 7").stdout == "42\n"
        assert count_left(job) == 9


def test_where_the_table_is_shared_few_descriptors_are_a_reason_to_refuse():
    with jobs.python(LAST.format(refuse=FILTER + f"refuse([{UNSHARE}, {CLOSE_RANGE}], {EPERM})")) as job:
        done = probe(job.pid, "inject")
        assert done.returncode == 1, done.stderr
        assert "almost out of file descriptors" in done.stderr, done.stderr
        assert "limit (RLIMIT_NOFILE) is 64" in done.stderr, done.stderr
        jobs.wait_until(lambda: not agent_threads(job))
        assert count_left(job) == 9
        told = re.search(r"prlimit --pid PID --nofile=\d+:", done.stderr).group(0)
        subprocess.run(told.replace("PID", str(job.pid)).split(), check=True)
        inject(job)  # what it told to do helps


TLS = '__attribute__((tls_model("initial-exec"))) __thread char big[%d * 1024]; char *touch(void) { return big; }\n'


@pytest.fixture(scope="module", params=[220, 4096], ids=lambda kb: f"{kb} KB")
def tls_library(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    (folder / "tls.c").write_text(TLS % request.param)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "tls.so", folder / "tls.c"], check=True)
    return folder / "tls.so"


@EVERY
def test_a_program_with_much_static_tls_survives(interpreter, tls_library):
    with jobs.python(interpreter=interpreter, env={"LD_PRELOAD": str(tls_library)}) as job:
        inject(job)
        assert probe(job.pid, "eval", "sum(range(10))").stdout == "45\n"
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive()


@pytest.mark.parametrize("kb", [220, 4096])
def test_a_musl_program_with_much_static_tls_survives(kb, tmp_path):
    (tmp_path / "sleeper.c").write_text("#include <stdio.h>\n#include <unistd.h>\n" + TLS % kb +
                                        'int main(void) { *touch() = 1; puts("ready"); fflush(stdout); for (;;) '
                                        'sleep(1); }\n')
    subprocess.run(["musl-gcc", "-O1", "-o", tmp_path / "sleeper", tmp_path / "sleeper.c"], check=True)
    with jobs.start(tmp_path / "sleeper", ready="ready") as job:
        inject(job)
        assert "memory_usage" in probe(job.pid, "tables").stdout
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive()


FORKS = """
import os, sys, time
print("ready", flush=True)
n, slowest = 0, 0
while True:
    begun = time.monotonic()
    child = os.fork()
    if child == 0: os._exit(0)
    slowest = max(slowest, time.monotonic() - begun)
    os.waitpid(child, 0)
    n += 1
    with open(__file__ + ".beat", "w") as beat: beat.write("%d %f" % (n, slowest))
    time.sleep(0.002)
"""


def beats(job):
    for _ in range(100):
        with suppress(ValueError, FileNotFoundError):
            n, slowest = Path(job.script + ".beat").read_text().split()
            return int(n), float(slowest)
        time.sleep(0.005)
    raise AssertionError("no heartbeat")


@EVERY
def test_a_program_that_forks_does_not_hang_when_the_reader_of_an_eval_goes_away(interpreter):
    rnd = random.Random(3)
    with jobs.python(FORKS, interpreter=interpreter) as job:
        try:
            for n in range(12):
                tool = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", "for i in range(10**7): print(i)"],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                tool.stdout.read(rnd.choice([10, 3000, 70000]))
                if n % 3 == 0:
                    tool.stdout.close()
                elif n % 3 == 1:
                    tool.kill()
                else:
                    tool.send_signal(signal.SIGSTOP)
                    time.sleep(0.1)
                    tool.kill()
                with suppress(subprocess.TimeoutExpired):
                    tool.wait(5)
                tool.kill()
                tool.wait()
                before, _ = beats(job)
                jobs.wait_until(lambda: beats(job)[0] > before, 20, f"a fork after round {n}")
            assert probe(job.pid, "eval", "6 * 7").stdout == "42\n"
        finally:
            Path(job.script + ".beat").unlink()


@EVERY
def test_tools_killed_at_any_moment_leave_an_agent_that_answers(interpreter):
    rnd = random.Random(5)
    with jobs.python(interpreter=interpreter) as job:
        for _ in range(60):
            tool = subprocess.Popen([str(jobs.PROGRAM), str(job.pid),
                                     *rnd.choice([["inject"], ["eval", "1+1"], ["detach"]])],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rnd.choice([rnd.uniform(0, 0.006), rnd.uniform(0, 0.03)]))
            if rnd.random() < 0.3:
                tool.send_signal(signal.SIGSTOP)
                time.sleep(rnd.uniform(0, 0.02))
            tool.kill()
            tool.wait()
        assert job.alive()
        assert probe(job.pid, "eval", "print(6*7)").stdout == "42\n"


def frame(kind, payload=b"", number=1):
    return b"PBC1" + struct.pack("<HHII", kind, 0, number, len(payload)) + payload


def field(tag, data):
    return struct.pack("<HHI", tag, 0, len(data)) + data


def greeted_client(directory):
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(directory / "control"))
    client.settimeout(15)
    client.sendall(frame(1, field(1, (directory / "secret").read_bytes())))
    assert client.recv(4096)[4:6] == b"\x41\x00"
    return client


def test_a_peer_that_dribbles_or_does_not_read_is_closed_and_holds_nobody():
    with jobs.python() as job:
        inject(job)
        [directory] = run_dirs(job.pid)
        slow, deaf = greeted_client(directory), greeted_client(directory)
        begun, wanted = jobs.calm(), frame(3, field(3, b"x" * 1000))
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            deaf.setblocking(False)
            for _ in range(200000):
                deaf.sendall(frame(6))
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n"
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for byte in wanted:
                slow.sendall(bytes([byte]))
                assert jobs.calm() - begun < 14, "a frame may take ten seconds"
                time.sleep(0.1)
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n"


DAEMON = """
import os, time
print("ready", flush=True)
while not os.path.exists(__file__ + ".go"): time.sleep(0.01)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 4096)
        with open(__file__ + ".pid.new", "w") as pid: pid.write(str(os.getpid()))
        os.rename(__file__ + ".pid.new", __file__ + ".pid")
        time.sleep(60)
    os._exit(0)
os._exit(0)
"""


def test_a_program_that_becomes_a_daemon_is_another_process_without_agent():
    with jobs.python(DAEMON) as job:
        inject(job)
        assert probe(job.pid, "eval", "6 * 7").stdout == "42\n"
        go, told = Path(job.script + ".go"), Path(job.script + ".pid")
        go.touch()
        jobs.wait_until(told.exists)
        pid = int(told.read_text())
        try:
            go.unlink()
            told.unlink()
            threads = os.listdir(f"/proc/{pid}/task")
            before = ticks(pid)
            time.sleep(0.5)
            assert len(threads) == 1 and ticks(pid) - before < 5 and not run_dirs(pid)
            assert probe(pid, "eval", "6 * 7").stdout == "42\n", "it can be injected anew"
            assert not os.listdir(f"/proc/{pid}/fd")
        finally:
            os.kill(pid, signal.SIGKILL)
            jobs.wait_until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())
            jobs.forget(pid)


def test_exec_ends_the_agent_and_leaves_the_new_program_alone():
    code = ("import os, time\nprint('ready', flush=True)\n"
            "while not os.path.exists(__file__ + '.go'): time.sleep(0.01)\nos.execvp('sleep', ['sleep', '60'])\n")
    with jobs.python(code) as job:
        fds = job.fds()
        inject(job)
        running = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", "import time; time.sleep(30)"],
                                   stderr=subprocess.DEVNULL)
        time.sleep(0.3)
        go = Path(job.script + ".go")
        go.touch()
        jobs.wait_until(lambda: job.threads() == ["sleep"])
        go.unlink()
        assert running.wait(10) == 1
        time.sleep(0.2)
        before = ticks(job.pid)
        time.sleep(0.5)
        assert ticks(job.pid) - before < 5 and job.fds() == fds


def test_detach_while_clients_code_and_forks_go_on():
    with jobs.python(FORKS) as job:
        try:
            for n in range(8):
                tools = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", code], stdout=subprocess.DEVNULL,
                                          stderr=subprocess.PIPE)
                         for code in ("for i in range(10**7): print(i)", "import time; time.sleep(0.2)", "1")]
                time.sleep(0.05 * n)
                assert probe(job.pid, "detach").returncode in (0, 1)
                for tool in tools:
                    tool.kill()
                    tool.communicate()
                before, _ = beats(job)
                jobs.wait_until(lambda: beats(job)[0] > before, 20, "a fork")
            jobs.wait_until(lambda: "probing-eval" not in job.threads())
            probe(job.pid, "detach")
            jobs.wait_until(lambda: not agent_threads(job), what="the end of its threads")
        finally:
            Path(job.script + ".beat").unlink()


NOWHERE = ("mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp && mount -t tmpfs -o ro none "
           "/dev/shm && exec ")


def old_kernel():
    """In a child before exec: no pidfds of threads, as before Linux 6.9."""
    scope = {}
    exec(FILTER, scope)
    scope["refuse"]([PIDFD_OPEN], EINVAL)


@ROOT_ONLY
@pytest.mark.parametrize("network", [(), ("--net",)], ids=["same network", "other network"])
def test_on_an_older_kernel_the_agent_is_reached_without_a_path(network, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FILTER + f"import time\nrefuse([{PIDFD_OPEN}], {EINVAL})\nloss = 1.5\nprint('ready', "
                               f"flush=True)\ntime.sleep(60)\n")
    mounts = NOWHERE.replace("mount -t tmpfs -o ro none /tmp", "mount --bind -o ro /tmp /tmp && mount -o "
                                                               "remount,bind,ro /tmp")
    with jobs.start("unshare", "--mount", *network, "sh", "-c", mounts + f"{os.path.realpath(sys.executable)} {script}",
                    ready="ready") as job:
        inject(job, preexec_fn=old_kernel)
        assert probe(job.pid, "eval", "loss", preexec_fn=old_kernel).stdout == "1.5\n"
        assert "memory_usage" in probe(job.pid, "tables", preexec_fn=old_kernel).stdout
        assert probe(job.pid, "eval", "loss").stdout == "1.5\n", "a tool on a newer kernel takes the door"
        assert probe(job.pid, "detach", preexec_fn=old_kernel).returncode == 0
        assert job.alive()


@ROOT_ONLY
def test_in_a_pid_namespace_the_agent_is_reached_through_its_door():
    code = "import time; loss = 1.5; print('ready', flush=True); time.sleep(60)"
    inner = NOWHERE + f"{os.path.realpath(sys.executable)} -c \"{code}\""
    with jobs.start("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inner,
                    ready="ready") as job:
        [child] = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        done = probe(child, "inject")
        assert done.returncode == 0, done.stderr
        assert probe(child, "eval", "loss").stdout == "1.5\n"
        assert "memory_usage" in probe(child, "tables").stdout
        assert probe(child, "detach").returncode == 0


def test_user_code_finds_the_files_of_the_program(tmp_path):
    """Code runs in threads that have the program's descriptors, not the agent's."""
    code = f"import os, time\nown = open({str(tmp_path / 'own')!r}, 'w')\nprint('ready', flush=True)\ntime.sleep(60)\n"
    with jobs.python(code) as job:
        assert probe(job.pid, "eval", "own.write('x'); own.flush(); os.fstat(own.fileno()).st_size").stdout == "1\n"
        assert probe(job.pid, "eval", f"mine = open({str(tmp_path / 'mine')!r}, 'w'); "
                                      f"mine.fileno() > 2").stdout == "True\n"
        assert str(tmp_path / "mine") in job.fds()
        assert probe(job.pid, "eval", "mine.close(); os.waitpid(os.fork() or os._exit(0), 0)[1]").stdout == "0\n"


BOOKS = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int counted;
static void count(void) { char name[16] = ""; prctl(PR_GET_NAME, name); counted += strcmp(name, "probing") == 0; }
int close(int fd) { count(); return (int)syscall(SYS_close, fd); }
int socket(int a, int b, int c) { count(); return (int)syscall(SYS_socket, a, b, c); }
ssize_t send(int fd, const void *p, size_t n, int flags) { count(); return syscall(SYS_sendto, fd, p, n, flags, 0, 0); }
"""


def test_a_library_that_keeps_books_of_descriptors_sees_none_of_the_agent_s(tmp_path):
    """User-space networking and I/O tracers replace close() and others, and know descriptors by their numbers: ours are
    of another table."""
    (tmp_path / "books.c").write_text(BOOKS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "books.so", tmp_path / "books.c"], check=True)
    with jobs.python(env={"LD_PRELOAD": str(tmp_path / "books.so")}) as job:
        inject(job)
        for _ in range(3):
            seen = probe(job.pid, "eval",
                         f"import ctypes; ctypes.c_int.in_dll(ctypes.CDLL({str(tmp_path / 'books.so')!r}), "
                         f"'counted').value").stdout
            assert seen == "0\n"


def test_out_of_memory_is_a_sentence_until_there_is_some_again():
    code = """
import mmap, resource, time
resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))
print("ready", flush=True)
time.sleep(0.7)
held = []
try:
    while True: held.append(mmap.mmap(-1, 1 << 20))
except (OSError, ValueError, MemoryError): pass
print("full", flush=True)
time.sleep(2)
for _ in range(8): held.pop().close()
print("room", flush=True)
time.sleep(60)
"""
    with jobs.python(code) as job:
        inject(job)
        jobs.wait_until(lambda: "full" in job.output)
        done = probe(job.pid, "eval", "1")
        assert "room" in job.output or (done.returncode == 1 and done.stderr.count("\n") == 1), done.stderr
        jobs.wait_until(lambda: "room" in job.output)
        assert probe(job.pid, "eval", "1").stdout == "1\n" and job.alive()


LOOKS = """
import os, time
seen, until = set(), time.monotonic() + 60
print("ready", flush=True)
while not os.access(os.environ["END"], os.F_OK) and time.monotonic() < until:
    for fd in range(3, 64):
        try: seen.add(os.readlink("/proc/self/fd/%d" % fd))
        except OSError: pass
print("seen", sorted(seen), flush=True)
"""


@EVERY
def test_what_probing_imports_for_itself_is_no_descriptor_of_the_program(tmp_path, interpreter):
    with jobs.python(LOOKS, interpreter, env={"END": str(tmp_path / "end")}) as job:
        inject(job)
        raised = probe(job.pid, "eval", "def f(): raise KeyError('here')\nf()")
        assert "KeyError: 'here'" in raised.stderr and raised.returncode == 1
        assert probe(job.pid, "eval", "import probing; str(probing.__name__)").stdout == "'probing'\n"
        assert probe(job.pid, "eval", "'traceback' in __import__('sys').modules").stdout == "True\n"
        (tmp_path / "end").touch()
        jobs.wait_until(lambda: "seen" in job.output)
        assert "seen []" in job.output


IMPORTS_IN_CHILDREN = """
import os, signal, time
until = time.monotonic() + 60
print("ready", flush=True)
while time.monotonic() < until and not os.access(os.environ["END"], os.F_OK):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        import json, linecache, threading, traceback
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status: break
print("ended", status, flush=True)
"""


@EVERY
def test_a_child_of_fork_does_not_wait_for_a_module_that_an_eval_was_importing(tmp_path, interpreter):
    with jobs.python(IMPORTS_IN_CHILDREN, interpreter, flags=["-W", "ignore"],
                     env={"END": str(tmp_path / "end")}) as job:
        assert probe(job.pid, "eval", "def f(): raise KeyError('here')\nf()").returncode == 1
        assert probe(job.pid, "eval", "import json, html, string\njson.dumps(1)").stdout == "'1'\n"
        (tmp_path / "end").touch()
        jobs.wait_until(lambda: "ended" in job.output, 20)
        assert "ended 0" in job.output, "a child was ended by its alarm"
