"""The agent in its target: small, quiet, gone without a trace, and never in the way of fork, exec or exit."""
import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest
from agent_kit import connect, field, frame, run_dir
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another uid, or mounts")


def inject(job, **options):
    done = probe(job.pid, "inject", **options)
    assert done.returncode == 0, done.stderr
    assert "is probed now" in done.stdout
    return done


def own_kb(pid, without="probing-.*/arena|memfd:arena"):
    """Memory that a process has for itself, without the tables: all that it wrote to, and our code whole. Not the share
    that it has of libraries, which grows when others that use them end."""
    total, key = 0, ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            key = "none" if re.search(without, line) else "Rss:" if "probing" in line else "Anonymous:"
        elif line.startswith(key):
            total += int(line.split()[1])
    return total


def signals_of(pid):
    """Masks and handlers, but for signals 32 and 33, which glibc keeps for itself and catches once there is a second
    thread."""
    masks = re.findall(r"^(Sig(?:Pnd|Blk|Ign|Cgt)):\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return {name: int(mask, 16) & ~(3 << 31) for name, mask in masks}


def rows_of(pid, table="memory_usage"):
    import json
    tables = json.loads(probe(pid, "tables", "--format", "json").stdout)
    return next(row["rows"] for row in tables if row["table"] == table)


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_it_is_small_quiet_and_leaves_nothing(interpreter):
    with jobs.python(interpreter=interpreter) as job:
        signals = signals_of(job.pid)
        threads, fds, maps = job.threads(), job.fds(), Path(f"/proc/{job.pid}/maps").read_text()
        before = own_kb(job.pid)
        inject(job)
        time.sleep(1.2)
        grown = own_kb(job.pid) - before
        assert grown < 2048, f"{grown} kB"
        assert sorted(job.threads()) == sorted([*threads, "probing", "probing-start", "probing-wake"])
        assert job.fds() == fds, "none of its descriptors is in the program's table"
        directory = run_dir(job.pid)
        assert directory and stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert sorted(path.name for path in directory.iterdir()) == ["about", "arena", "config", "control", "secret"]
        assert probe(job.pid, "eval", "1").stdout == "1\n"
        assert signals_of(job.pid) == signals

        assert probe(job.pid, "detach").returncode == 0
        jobs.wait_until(lambda: job.threads() == threads, what="the end of its threads")
        assert job.fds() == fds
        kept = sorted(path.name for path in directory.iterdir())
        assert kept == ["about", "arena", "config"], "its tables stay readable, and nobody can connect"
        left = [line.split() for line in Path(f"/proc/{job.pid}/maps").read_text().splitlines() if "probing" in line]
        size = sum(int(a, 16) - int(b, 16) for b, a in (line[0].split("-") for line in left))
        assert 0 < size < 1024 * 1024, "only the code stays mapped, half of it the Python part"
        assert "arena" not in Path(f"/proc/{job.pid}/maps").read_text()

        inject(job)
        again = [line.split()[0] for line in Path(f"/proc/{job.pid}/maps").read_text().splitlines()
                 if "probing" in line and "arena" not in line]
        assert again == [line[0] for line in left], "the code that was there is used again"
        assert probe(job.pid, "eval", "2").stdout == "2\n"
        assert job.alive()


LOADED = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_size_t), ("name", ctypes.c_char_p)]
names = []
keep = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(keep(lambda info, size, arg: names.append(info.contents.name.decode()) or 0), None)
print("\\n".join(names))
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_the_loader_lists_no_path_that_somebody_would_open(interpreter):
    with jobs.python(interpreter=interpreter) as job:
        inject(job)
        listed = probe(job.pid, "eval", LOADED).stdout.split()
        assert "libprobing.so" in listed
        assert not [name for name in listed if name.startswith("/proc")]


@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")
def test_a_debugger_can_still_attach():
    with jobs.python() as job:
        inject(job)
        done = subprocess.run(["gdb", "--nx", "--batch", "-ex", "info sharedlibrary", "-p", str(job.pid)], timeout=60,
                              check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True)
        assert "libprobing.so" in done.stdout


def test_a_process_without_python_is_a_target_like_any_other():
    with jobs.start("sleep", "60") as job:
        time.sleep(0.1)
        inject(job)
        assert rows_of(job.pid) >= 1
        done = probe(job.pid, "eval", "1")
        assert done.returncode == 1 and "there is no Python in this process" in done.stderr
        assert probe(job.pid, "detach").returncode == 0
        assert job.alive()


def test_a_row_a_second_whatever_python_does():
    hold = "import ctypes\nprint('ready', flush=True)\nctypes.PyDLL(None).sleep(30)"
    with jobs.python(hold) as job:
        inject(job)
        first, begun = rows_of(job.pid), time.monotonic()
        time.sleep(3)
        grown, passed = rows_of(job.pid) - first, time.monotonic() - begun
        assert passed - 1.1 <= grown <= passed + 1.1


def test_a_forked_child_is_not_probed_until_asked_and_works():
    code = """
import os, time
print("ready", flush=True)
time.sleep(1)
child = os.fork()
if child == 0:
    print("child", os.getpid(), flush=True)
    time.sleep(60)
print("forked", flush=True)
time.sleep(60)
"""
    with jobs.python(code) as job:
        inject(job)
        arena = str(run_dir(job.pid) / "arena")
        jobs.wait_until(lambda: "child" in job.output and "forked" in job.output)
        child = int(re.search(r"child (\d+)", job.output).group(1))
        try:
            assert os.listdir(f"/proc/{child}/task") == [str(child)]
            links = [os.readlink(fd) for fd in Path(f"/proc/{child}/fd").iterdir()]
            assert not [link for link in links if "probing-0" in link or "socket" in link or "event" in link], links
            rows = rows_of(job.pid)
            inject(jobs.Job(type("P", (), {"pid": child}), ""))
            assert probe(child, "eval", "import os; os.getpid()").stdout == f"{child}\n"
            assert probe(job.pid, "eval", "import os; os.getpid()").stdout == f"{job.pid}\n"
            assert run_dir(child) != run_dir(job.pid) and os.path.exists(arena)
            assert rows_of(job.pid) >= rows
        finally:
            os.kill(child, signal.SIGKILL)


def test_exec_starts_anew(tmp_path):
    go = tmp_path / "go"
    code = (f"import os, sys, time\nprint('ready', flush=True)\nwhile not os.path.exists({str(go)!r}):\n    "
            f"time.sleep(0.02)\n"
            "os.execv(sys.executable, [sys.executable, '-c', 'import time; print(\"second\", flush=True); "
            "time.sleep(60)'])")
    with jobs.python(code) as job:
        inject(job)
        first = run_dir(job.pid)
        go.touch()
        jobs.wait_until(lambda: "second" in job.output)
        inject(job)
        assert probe(job.pid, "eval", "import sys; sys.argv").stdout == "['-c']\n"
        second = first.with_name(first.name + ".1")
        assert first.exists() and second.exists(), "the first program's run is a dead run now"
        assert "dead" in probe("list", "--dead").stdout
        assert probe(job.pid, "detach").returncode == 0
        assert not (second / "control").exists()


def test_rows_of_before_a_detach_are_read_by_the_pid_until_a_new_agent_begins():
    with jobs.python() as job:
        inject(job)
        jobs.wait_until(lambda: rows_of(job.pid) >= 2, what="two rows")
        assert probe(job.pid, "detach").returncode == 0
        count = lambda: probe(job.pid, "query", "--format", "csv", "SELECT count(*) FROM memory_usage")
        first = count()
        assert int(first.stdout.split()[1]) >= 2
        assert "not probed any more" in first.stderr
        assert "ended run" not in first.stderr
        listed = next(line.split() for line in probe("list").stdout.splitlines() if line.split()[0] == str(job.pid))
        assert listed[1] == "python" and "probing" not in job.threads(), "reading brings no agent back"
        assert rows_of(job.pid) == int(first.stdout.split()[1]) and "probing" not in job.threads()
        assert len(list(run_dir(job.pid).parent.glob(f"*-{job.pid}-*"))) == 1
        inject(job)
        assert int(count().stdout.split()[1]) < 2 and count().stderr == ""
        assert len(list(run_dir(job.pid).parent.glob(f"*-{job.pid}-*"))) == 1, "the former run made room"
        assert probe(job.pid, "detach").returncode == 0
        job.process.kill()
        job.process.wait()
        assert int(count().stdout.split()[1]) >= 1, "also when the process has ended"


def test_a_dead_run_still_answers():
    with jobs.python() as job:
        inject(job)
        time.sleep(1.2)
        job.process.kill()
        job.process.wait()
        listed = [line.split() for line in probe("list", "--dead").stdout.splitlines()
                  if line.split()[0] == str(job.pid)]
        assert listed and listed[0][1] == "dead"
        done = probe(job.pid, "tables", "--format", "csv")
        assert done.returncode == 0 and f"pid {job.pid},memory_usage,2," in done.stdout
        done = probe(job.pid, "eval", "1")
        assert done.returncode == 1 and "has ended" in done.stderr


def test_the_description_says_which_part_of_which_job(tmp_path):
    launchers = [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "run-7", "ROLE_NAME": "trainer",
          "SLURM_JOB_ID": "99"},
         {"rank": "3", "local_rank": "1", "world_size": "8", "job": "run-7", "role": "trainer",
          "launcher": "torchrun"}),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "99", "SLURMD_NODENAME": "n042"},
         {"rank": "5", "world_size": "16", "job": "99", "node": "n042", "launcher": "slurm"}),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
         {"rank": "2", "world_size": "4", "launcher": "openmpi"}),
        ({"JOB_COMPLETION_INDEX": "6", "POD_NAME": "train-6"}, {"rank": "6", "node": "train-6",
                                                                "launcher": "kubernetes"}),
    ]
    for env, wanted in launchers:
        with jobs.python(env=env) as job:
            inject(job)
            about = dict(line.split("=", 1) for line in (run_dir(job.pid) / "about").read_text().splitlines())
            assert {key: about.get(key) for key in wanted} == wanted
            assert about["pid"] == about["host_pid"] == str(job.pid) and job.script in about["command"]
            assert about["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_client_that_misbehaves_is_closed_and_nothing_else():
    with jobs.python() as job:
        inject(job)
        directory = run_dir(job.pid)
        secret = (directory / "secret").read_bytes()
        hello = frame(1, field(1, secret))
        good = connect(directory)
        good.sendall(hello)
        assert good.recv(4096)[4:6] == b"\x41\x00"

        bad = [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 64, frame(2), frame(1, field(1, b"0" * 32)), frame(1),
               hello + frame(2, magic=b"PBC2"),
               frame(1, b"\xff" * 40), b"PBC1" + struct.pack("<HHII", 1, 0, 1, 1 << 30), hello + frame(3, b"\1"),
               os.urandom(4096)]
        for words in bad:
            client = connect(directory)
            client.sendall(words)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        good.sendall(frame(2, number=7))
        answer = good.recv(4096)
        assert answer[4:6] == b"\x41\x00" and struct.unpack("<I", answer[8:12]) == (7,)
        good.sendall(frame(999, number=8))
        assert b"does not know the request" in good.recv(4096)

        crowd = [connect(directory) for _ in range(40)]
        assert sum(not client.recv(1) for client in crowd[24:]) == 16, "beyond the limit a client is closed at once"
        assert probe(job.pid, "detach", timeout=20).returncode in (0, 1)
        for client in crowd:
            client.close()
        assert job.alive() and probe(job.pid, "eval", "1").stdout == "1\n"


@ROOT_ONLY
def test_another_user_gets_no_answer():
    with jobs.python() as job:
        inject(job)
        directory = run_dir(job.pid)
        os.chmod(directory.parent, 0o755)
        os.chmod(directory, 0o755)
        os.chmod(directory / "control", 0o777)
        code = (f"import socket; c = socket.socket(socket.AF_UNIX); c.connect({str(directory / 'control')!r}); "
                f"c.settimeout(5); print(c.recv(10))")
        done = subprocess.run(["/usr/bin/python3", "-c", code], user=65534, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True)
        assert "b''" in done.stdout or "Reset" in done.stdout, done.stdout
        os.chmod(directory, 0o700)
        os.chmod(directory.parent, 0o700)


NOWHERE = ("mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp && mount -t tmpfs -o ro none "
           "/dev/shm && exec ")


@ROOT_ONLY
def test_where_no_path_is_writable_the_agent_is_reached_through_its_door():
    code = "import time; loss = 1.5; print('ready', flush=True); time.sleep(60)"
    with jobs.start("unshare", "--mount", "sh", "-c", NOWHERE + f"{os.path.realpath(sys.executable)} -c \"{code}\"",
                    ready="ready") as job:
        inject(job)
        assert probe(job.pid, "eval", "loss").stdout == "1.5\n"
        assert rows_of(job.pid) >= 1
        assert "already" in probe(job.pid, "inject").stdout
        assert probe(job.pid, "detach").returncode == 0
        again = probe(job.pid, "eval", "loss + 1")
        assert again.stdout == "2.5\n", again.stderr
        assert job.alive()


@ROOT_ONLY
def test_shared_memory_is_left_alone_where_it_is_scarce():
    code = "import time; print('ready', flush=True); time.sleep(60)"
    small = "mount -t tmpfs -o size=64m none /dev/shm && exec "
    with jobs.start("unshare", "--mount", "sh", "-c", small + f"{os.path.realpath(sys.executable)} -c \"{code}\"",
                    ready="ready") as job:
        inject(job)
        assert not os.listdir(f"/proc/{job.pid}/root/dev/shm")
        assert rows_of(job.pid) >= 1


@ROOT_ONLY
def test_tables_do_without_room_in_their_directory_and_nothing_is_left(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", full], check=True)
    try:
        with jobs.python() as job:
            threads, fds = job.threads(), job.fds()
            env = {**os.environ, "PROBING_DIR": str(full)}
            assert probe(job.pid, "inject", env=env).returncode == 0
            with contextlib.suppress(OSError), open(full / "big", "wb") as big:
                for _ in range(128):
                    big.write(bytes(1024))
                    big.flush()
            time.sleep(2.5)
            done = probe(job.pid, "query", "SELECT count(*) >= 2 FROM memory_usage", env=env)
            assert done.returncode == 0 and "true" in done.stdout
            (full / "big").unlink()
            assert probe(job.pid, "detach", env=env).returncode == 0
            jobs.wait_until(lambda: job.threads() == threads, what="the end of its thread")
            assert job.fds() == fds and not list(full.rglob("control")) and not list(full.rglob("secret"))
            inject(job)
    finally:
        subprocess.run(["umount", full], check=True)


def test_another_s_directory_in_tmp_is_not_used(tmp_path):
    trap = tmp_path / f"probing-{os.geteuid()}"
    trap.symlink_to("/nonexistent")
    with jobs.python() as job:
        done = probe(job.pid, "inject", env={**os.environ, "PROBING_DIR": str(tmp_path)})
        assert done.returncode == 1 and "no run directory can be made" in done.stderr
        trap.unlink()
        trap.mkdir(mode=0o755)
        done = probe(job.pid, "inject", env={**os.environ, "PROBING_DIR": str(tmp_path)})
        assert done.returncode == 1 and "no run directory can be made" in done.stderr


def test_detach_while_code_runs_harms_nothing():
    """The code outlives the agent's tables, sockets and Python part; neither it nor the program notices."""
    for interpreter in INTERPRETERS:
        with jobs.python(interpreter=interpreter) as job:
            running = subprocess.Popen([str(jobs.PROGRAM), str(
                job.pid), "eval", "import time; time.sleep(1.2); print('late')"],
                                       stderr=subprocess.DEVNULL)
            time.sleep(0.5)
            assert probe(job.pid, "detach").returncode == 0
            assert running.wait() == 1
            jobs.wait_until(lambda: "probing-eval" not in job.threads(), what="the end of its code")
            assert job.alive(), f"{interpreter}: {job.output}"
            assert probe(job.pid, "eval", "sys.stdout is sys.__stdout__").stdout == "True\n"
            assert "late" not in job.output, "what nobody listens to any more is not the program's output"


def test_code_that_ends_after_detach_writes_into_no_file_of_the_program(tmp_path):
    """The number of a descriptor that detach closed is the program's next file."""
    code = f"""
import ctypes, os, time
print("ready", flush=True)
time.sleep(0.3)
ctypes.PyDLL(None).sleep(3)
files = [os.open({str(tmp_path)!r} + "/%d" % i, os.O_RDWR | os.O_CREAT) for i in range(30)]
time.sleep(60)
"""
    with jobs.python(code) as job:
        probe(job.pid, "inject")
        time.sleep(0.5)
        waiting = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", "1"], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        assert probe(job.pid, "detach").returncode == 0
        waiting.wait()
        jobs.wait_until(lambda: len(list(tmp_path.iterdir())) == 30)
        time.sleep(0.3)
        assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}
        assert job.alive()


def test_fork_at_any_moment_of_inject_and_detach():
    code = """
import os, sys
print("ready", flush=True)
bad = children = 0
while not os.path.exists(sys.argv[0] + ".stop"):
    pid = os.fork()
    if pid == 0:
        links = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
        os._exit(any("eventfd" in l or "eventpoll" in l or "socket" in l or "arena" in l for l in links))
    children += 1
    bad += os.waitpid(pid, 0)[1] != 0
print("children", children, "bad", bad, flush=True)
"""
    with jobs.python(code) as job:
        for _ in range(40):
            assert probe(job.pid, "inject").returncode == 0
            assert probe(job.pid, "detach").returncode == 0
        Path(job.script + ".stop").touch()
        jobs.wait_until(lambda: "children" in job.output)
        Path(job.script + ".stop").unlink()
        children, bad = re.search(r"children (\d+) bad (\d+)", job.output).groups()
        assert int(children) > 100 and int(bad) == 0, job.output


def test_inject_and_detach_over_and_over_and_at_once():
    with jobs.python() as job:
        for n in range(60):
            assert "is probed now" in probe(job.pid, "inject").stdout, n
            assert probe(job.pid, "detach").returncode == 0, n
        for _ in range(15):
            both = [subprocess.Popen([str(jobs.PROGRAM), str(job.pid), command], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE)
                    for command in ("inject", "detach", "detach", "inject")]
            assert [(p.communicate()[1], p.returncode) for p in both] == [(b"", 0)] * 4
        probe(job.pid, "detach")
        jobs.wait_until(lambda: "probing" not in job.threads())
        assert job.alive() and probe(job.pid, "eval", "1").stdout == "1\n"


def test_a_lost_run_directory_does_not_lose_the_agent():
    """A clean-up removed it, or the program itself changed its files: the agent is still reachable."""
    with jobs.python() as job:
        inject(job)
        directory = run_dir(job.pid)
        assert probe(job.pid, "eval", f"open({str(directory / 'about')!r}).close()").returncode == 0
        assert "already" in probe(job.pid, "inject").stdout, "opening and closing the file took the lock"
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        assert "already" in probe(job.pid, "inject").stdout
        assert probe(job.pid, "eval", "rate").stdout == "0.1\n"
        assert rows_of(job.pid) >= 1
        assert f"{job.pid}  probed" in probe("list").stdout
        assert "not probed any more" in probe(job.pid, "detach").stdout


def test_where_the_run_directory_is_the_tool_s_affair_alone(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with jobs.python() as job:
        there = {**os.environ, "PROBING_DIR": str(tmp_path / "link")}
        inject(job, env=there)
        assert probe(job.pid, "eval", "1", env=there).stdout == "1\n"
        assert probe(job.pid, "eval", "1").stdout == "1\n", "without PROBING_DIR the door leads in"
        assert probe(job.pid, "detach").returncode == 0
    done = probe(job.pid, "inject", env={**os.environ, "PROBING_DIR": "/" + "x" * 200})
    assert done.returncode == 1


@pytest.mark.alone
def test_out_of_descriptors_the_agent_waits_quietly():
    code = """
import os, resource, time
print("ready", flush=True)
time.sleep(0.5)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.dup(0))
except OSError: pass
print("full", flush=True)
start = time.process_time()
time.sleep(2)
print("used", time.process_time() - start, flush=True)
for fd in held: os.close(fd)
time.sleep(60)
"""
    with jobs.python(code) as job:
        inject(job)
        directory = run_dir(job.pid)
        jobs.wait_until(lambda: "full" in job.output)
        client = connect(directory)
        jobs.wait_until(lambda: "used" in job.output)
        assert float(re.search(r"used ([\d.e-]+)", job.output).group(1)) < 0.3, job.output
        client.close()
        assert probe(job.pid, "eval", "2").stdout == "2\n"


def test_the_resident_thread_does_not_wait_for_the_loader(tmp_path):
    """A library whose constructor takes its time holds the loader's lock; control answers all the same."""
    (tmp_path / "slow.c").write_text("#include <unistd.h>\n__attribute__((constructor)) static void slow(void) { "
                                     "sleep(4); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c"], check=True)
    code = f"""
import ctypes, threading, time
print("ready", flush=True)
time.sleep(0.5)
threading.Thread(target=ctypes.CDLL, args=({str(tmp_path / 'slow.so')!r},)).start()
time.sleep(60)
"""
    with jobs.python(code) as job:
        inject(job)
        time.sleep(0.8)
        code = subprocess.Popen([str(jobs.PROGRAM), str(job.pid), "eval", "1"], stdout=subprocess.PIPE)
        begun = jobs.calm()
        assert probe(job.pid, "config").returncode == 0
        assert jobs.calm() - begun < 2.8, "it waited for the loader"
        assert code.communicate(timeout=20)[0] == b"1\n"


def test_the_bound_is_a_setting():
    with jobs.python(env={"PROBING_MAX_MEMORY": "32MB"}) as job:
        assert "32MB" in probe(job.pid, "config").stdout and "environment" in probe(job.pid, "config").stdout
        done = probe(job.pid, "config", "probing.max_memory=1GB")
        assert done.returncode == 0 and "1GB" in done.stdout
        for wrong in ("probing.max_memory=1", "probing.max_memory=lots", "probing.max_memry=1GB"):
            done = probe(job.pid, "config", wrong)
            assert done.returncode == 2 and "probing.max_memory" in done.stderr
