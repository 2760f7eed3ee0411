"""Ends and starts of the service and of recorders: on kernels without pidfd_open, with SIGCHLD ignored, and right after
a kill."""
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import jobs
import pytest
from jobs import PROGRAM, probe
from serve_kit import NEEDS_SERVE, Service, service

pytestmark = NEEDS_SERVE


@pytest.fixture(scope="module")
def old_kernel(tmp_path_factory):
    """Words that run a command without pidfd_open: as before Linux 5.3, and as in a container that refuses it."""
    out = tmp_path_factory.mktemp("refuse") / "refuse"
    subprocess.run([shutil.which("gcc") or shutil.which("cc"), "-O1", "-D_GNU_SOURCE",
                    Path(__file__).parent / "targets/refuse.c", "-o", out], check=True)
    return {error: [str(out), f"pidfd_open={error}", "--", str(PROGRAM)] for error in ("ENOSYS", "EPERM")}


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def stop(words, env, seconds=8):
    began = time.monotonic()
    done = subprocess.run([*words, "serve", "--stop"], env=env, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < seconds, "it waits for the end and no longer"
    return done


@contextmanager
def started(folder, words, **options):
    """A service that these words start, and its pid."""
    folder.mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    process = subprocess.Popen([*words, "serve"], env=env, stdout=subprocess.PIPE, text=True, **options)
    pid = None
    try:
        s = Service(process, folder, process.stdout.readline())
        pid = int((folder / "probing-serve/lock").read_text())
        yield s, pid
    finally:
        if pid and not is_gone(pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_the_service_ends_without_pidfds(error, old_kernel, tmp_path):
    with started(tmp_path / "r", [str(PROGRAM)]) as (s, pid):
        done = stop(old_kernel[error], s.env)
        assert (done.returncode, done.stderr) == (0, "") and is_gone(pid)
        done = stop(old_kernel[error], s.env)
        assert done.returncode == 1 and "no service of yours runs here" in done.stderr


def test_a_service_that_does_not_end_is_an_error_without_pidfds(old_kernel, tmp_path):
    with started(tmp_path / "r", [str(PROGRAM)]) as (s, pid):
        os.kill(pid, signal.SIGSTOP)
        done = stop(old_kernel["ENOSYS"], s.env, seconds=20)
        assert done.returncode == 1 and f"process {pid} did not exit within 10 s" in done.stderr


def test_a_recorder_ends_without_pidfds(old_kernel):
    with jobs.python() as job:
        done = probe("-t", job.pid, "record", "--background")
        recorder = int(re.search(r"kill (\d+)", done.stdout)[1])
        stopped = subprocess.run([*old_kernel["EPERM"], "-t", str(job.pid), "record", "--stop"], capture_output=True,
                                 text=True, timeout=30)
        assert stopped.returncode == 0 and stopped.stdout.endswith(": ended\n"), stopped.stderr
        assert is_gone(recorder)


def test_a_service_without_pidfds_answers_and_passes_commands_on(old_kernel, tmp_path):
    with jobs.python() as job, started(tmp_path / "r", old_kernel["ENOSYS"]) as (s, pid):
        assert s.json("/api/v1/query", body="SELECT 1 AS a") == [{"a": 1}]
        for words, status in ((["eval", "rate"], 0), (["eval", "1/0"], 1)):
            here, there = probe("-t", job.pid, *words), s.run(*words, target=f"/{job.pid}")
            assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
            assert there.returncode == status
        assert stop([str(PROGRAM)], s.env).returncode == 0 and is_gone(pid)




def ignore_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_with_sigchld_ignored_the_service_has_the_status_of_its_commands(tmp_path):
    with started(tmp_path / "r", [str(PROGRAM)], preexec_fn=ignore_children) as (s, pid):
        assert s.json("/api/v1/query", body="SELECT 1 AS a", timeout=20) == [{"a": 1}]
        assert s.ask("/api/v1/query", body="SELECT nothing", timeout=20)[0] == 422
        there = s.run("query", "SELECT nothing")
        assert there.returncode == 1 and "nothing" in there.stderr
        assert stop([str(PROGRAM)], s.env).returncode == 0


def test_with_sigchld_ignored_commands_have_the_status_of_their_children(tmp_path):
    (tmp_path / "train.py").write_text(jobs.TRAINING)
    word = f"of-{tmp_path.name}"
    run = lambda *words: subprocess.run([PROGRAM, *words], preexec_fn=ignore_children,
                                        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True,
                                        text=True, timeout=60)
    tmp_path.chmod(0o700)
    with jobs.start(sys.executable, tmp_path / "train.py", word,
                    ready="ready") as one, jobs.start(sys.executable, tmp_path / "train.py", word,
                                                      ready="ready") as two:
        done = run("query", "SELECT 1 AS a")  # which starts a worker of its own
        assert done.returncode == 0 and "1" in done.stdout, done.stderr
        both = run("-t", word, "--all", "eval", "1 + 1")
        assert both.returncode == 0 and both.stdout.count("2") >= 2, both.stderr
        bad = run("-t", word, "--all", "eval", f"1 / (__import__('os').getpid() - {two.pid})")
        assert bad.returncode == 1 and one.alive() and two.alive()


@pytest.mark.parametrize("ignored", [True, False])
def test_a_launched_program_has_sigchld_as_its_caller_left_it(ignored):
    done = subprocess.run([PROGRAM, "launch", "--", sys.executable, "-c",
                           "import signal; print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)"],
                          preexec_fn=ignore_children if ignored else None, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{ignored}\n", done.stderr


# --- starts after kills ---

def test_the_next_service_starts_right_after_a_kill(tmp_path):
    """Before the kernel has ended the first, whether somebody has waited for it or not, and while its commands run."""
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    services, asking = [], []
    try:
        for i in range(30):
            process = subprocess.Popen([PROGRAM, "serve"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True)
            services.append(process)
            line = process.stdout.readline()
            assert line, f"start {i}: {process.stderr.read()}"
            if i % 3 == 0:
                s = Service(process, tmp_path / "r", line)
                asking.append(subprocess.Popen([PROGRAM, "-t", s.address, "query",
                                                "SELECT count(*) FROM range(100000000000) a"], env=env,
                                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            process.kill()
    finally:
        for process in services + asking:
            process.kill()
            process.communicate()


def test_a_service_that_does_not_answer_is_said_by_its_pid(tmp_path):
    with started(tmp_path / "r", [str(PROGRAM)]) as (s, pid):
        os.kill(pid, signal.SIGSTOP)
        began = jobs.calm()
        second = subprocess.run([PROGRAM, "serve"], env=s.env, capture_output=True, text=True, timeout=20)
        assert second.returncode == 1
        assert f"does not answer: process {pid}" in second.stderr
        assert jobs.calm() - began < 5
        os.kill(pid, signal.SIGCONT)
        began = jobs.calm()
        second = subprocess.run([PROGRAM, "serve"], env=s.env, capture_output=True, text=True, timeout=20)
        assert f"your service runs already: http://{s.address}" in second.stderr and jobs.calm() - began < 1


def test_of_two_that_look_for_a_killed_service_neither_finds_the_other(tmp_path):
    """The pid that a killed service has left may be another process's by now."""
    with started(tmp_path / "r", [str(PROGRAM)]) as (s, pid):
        os.kill(pid, signal.SIGKILL)
        jobs.wait_until(lambda: is_gone(pid) and len(os.listdir(f"/proc/{pid}/task")) == 1,
                        what="the end of the service, of all its threads")
        with open(tmp_path / "r/probing-serve/lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as the other one has it for a moment
            for words in ("--status", "--stop"):
                done = subprocess.run([PROGRAM, "serve", words], env=s.env, capture_output=True, text=True, timeout=20)
                assert (done.returncode, done.stdout) == (1, ""), done
                assert "no service of yours runs here" in done.stderr, done


def test_of_two_starts_at_once_one_serves(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    both = [subprocess.Popen([PROGRAM, "serve", "--background"], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=20) for process in both]
    try:
        assert sorted(process.returncode for process in both) == [0, 1]
        loser = said[[process.returncode for process in both].index(1)][1]
        winner = said[[process.returncode for process in both].index(0)][0]
        assert "your service runs already" in loser and (winner.split("/?")[0] in loser or "starting" in loser)
    finally:
        assert stop([str(PROGRAM)], env).returncode == 0


# --- the environment of a command from elsewhere ---

def test_a_command_from_elsewhere_has_all_of_the_services_environment(tmp_path):
    many = {f"VARIABLE_{i}": "x" for i in range(200)}
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**many, **os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r"), "PROBING_SQL_WORKER": "/no/such/worker"}
    process = subprocess.Popen([PROGRAM, "serve"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        done = Service(process, tmp_path / "r", process.stdout.readline()).run("query", "SELECT 1")
        assert "/no/such/worker not found" in done.stderr, done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_command_from_elsewhere_ends_though_what_it_left_has_its_output(tmp_path):
    with service(tmp_path / "r") as s:
        began = jobs.calm()
        done = s.run("launch", "--", "sh", "-c", "setsid sleep 8 & sleep 0.3; echo done")
        assert (done.returncode, done.stdout) == (0, "done\n") and jobs.calm() - began < 6
