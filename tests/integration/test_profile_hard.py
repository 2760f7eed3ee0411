"""Sampling what is hard to sample: very many threads, very deep stacks, processes that fork, exec, end or are stopped
meanwhile."""
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path

import jobs
import profile_kit
import pytest
from jobs import probe, wait_until
from profile_kit import read_folded

THREADS = """
import threading
def wait_here(event): event.wait()
def spin():
    while True: pass
event = threading.Event()
threading.stack_size(64 << 10)
for _ in range(999): threading.Thread(target=wait_here, args=(event,), daemon=True).start()
print("ready", flush=True)
spin()
"""
DEEP = """
import sys, threading
sys.setrecursionlimit(20000)
threading.stack_size(512 << 20)
def down(n):
    if n: return down(n - 1)
    print("ready", flush=True)
    while True: pass
threading.Thread(target=down, args=(9990,)).start()
"""
# A process that is a new program every 50 ms, under the same number.
EXECS = """
import os, sys, time
def work():
    end = time.monotonic() + 0.05
    while time.monotonic() < end: pass
print("ready", flush=True)
work()
os.execv(sys.executable, [sys.executable, *sys.argv])
"""
FORKS = """
import os, time
def child():
    end = time.monotonic() + 0.03
    while time.monotonic() < end: pass
print("ready", flush=True)
while True:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def flamegraph(pid, out, *options, duration=1):
    done = probe("-t", pid, "flamegraph", "-o", out, "--duration", duration, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples_with(path, function):
    return sum(n for stack, n in read_folded(Path(path).read_text(), strict=False)
               if function in (name for name, _ in stack))


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


# As a shell starts it, which allows fewer open files than there are threads, and may allow no more.
@pytest.mark.parametrize("hard", [resource.getrlimit(resource.RLIMIT_NOFILE)[1], 256, 16], ids=["soft", "hard", "few"])
def test_a_thousand_threads(tmp_path, hard):
    with jobs.python(THREADS) as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--idle", "--duration", 2,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard)))
        assert done.returncode == 0 and "ended meanwhile" not in done.stdout, (done.stdout, done.stderr)
        said = done.stdout
        threads = len(os.listdir(f"/proc/{job.pid}/task"))
    assert threads == 1000 and "of 1000 threads" in said, said
    # Each was there all the time: as many samples of the one that runs as of each that waits.
    spins, waits = samples_with(tmp_path / "a.folded", "spin"), samples_with(tmp_path / "a.folded", "wait_here")
    assert spins > 20 and 500 < waits / spins < 1500, (spins, waits)


def test_without_descriptors_that_is_the_reason(tmp_path):
    """Not that the process has ended."""
    with jobs.python() as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--idle", "--duration", 0.3,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5)))
        assert job.alive()
    assert done.returncode == 1, done
    assert "oo many open files" in done.stderr, done
    assert "ulimit -n" in done.stderr, done
    assert "ended" not in done.stderr, done
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_beside_its_name_and_through_no_link(tmp_path):
    """Links at the names that the tool would write to first lead to a file of somebody else."""
    (tmp_path / "other").write_text("precious")
    out = tmp_path / "a.folded"
    with jobs.python() as job:
        for number in range(job.pid, job.pid + 3000):
            os.symlink(tmp_path / "other", f"{out}.{number}.part")
        flamegraph(job.pid, out, "--idle", duration=0.3)
        os.symlink("/dev/null", tmp_path / "null.folded")
        flamegraph(job.pid, tmp_path / "null.folded", "--idle", duration=0.3)
    assert (tmp_path / "other").read_text() == "precious" and read_folded(out.read_text())
    assert os.readlink(tmp_path / "null.folded") == "/dev/null"
    assert not list(tmp_path.glob("*-*.part"))


def test_ten_thousand_frames(tmp_path):
    with jobs.python(DEEP) as job:
        said = flamegraph(job.pid, tmp_path / "a.folded", "--rate", 50, duration=2)
    depths = {len(stack) for stack, _ in read_folded((tmp_path / "a.folded").read_text()) if stack[-1][0] == "down"}
    assert depths and all(depth > 9990 for depth in depths), depths
    assert "0 truncated" in said


def test_a_program_that_is_another_every_moment(tmp_path):
    with jobs.python(EXECS) as job:
        flamegraph(job.pid, tmp_path / "a.folded", "--rate", 500, duration=3)
        assert job.alive() and state(job.pid) in "RSD"
    assert samples_with(tmp_path / "a.folded", "work") > 0


@pytest.mark.parametrize("options", [[], ["--subprocesses"]], ids=["parent", "children"])
def test_a_process_that_forks_all_the_time(options, tmp_path):
    with jobs.python(FORKS) as job:
        flamegraph(job.pid, tmp_path / "a.folded", "--rate", 500, *options, duration=2)
        assert job.alive() and state(job.pid) in "RSD"
    assert samples_with(tmp_path / "a.folded", "<module>") > 20
    assert bool(options) == bool(samples_with(tmp_path / "a.folded", "child"))


def test_all_ranks_have_a_level_each(tmp_path):
    code = "print('ready', flush=True)\ndef rank():\n    while True: pass\nrank()\n"
    script = tmp_path / "ranked_job.py"
    script.write_text(code)
    with jobs.start(sys.executable, script,
                    ready="ready") as one, jobs.start(sys.executable, script, ready="ready") as two:
        done = probe("-t", "ranked_job", "--all", "flamegraph", "-o", tmp_path / "a.folded", "--duration", 1)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "a.folded").read_text()
    assert str(one.pid) in text and str(two.pid) in text and text.count("rank (") >= 2, text


@pytest.mark.parametrize("version, interpreter, root", [it for it in profile_kit.everywhere() if it[2]])
def test_versions_that_only_a_container_has(version, interpreter, root, tmp_path):
    code = "def inner():\n    while True: pass\ndef outer():\n    inner()\nprint('ready', flush=True)\nouter()\n"
    with profile_kit.started(code, interpreter, root, tmp_path) as job:
        flamegraph(job.pid, tmp_path / "a.folded", "--rate", 500)
    stacks = read_folded((tmp_path / "a.folded").read_text())
    assert sum(n for stack, n in stacks if [name for name, _ in stack] == ["<module>", "outer", "inner"]) > 20, stacks


def test_a_process_that_is_stopped_and_goes_on_meanwhile(tmp_path):
    with jobs.python("def spin():\n    while True: pass\nprint('ready', flush=True)\nspin()\n") as job:
        sampler = jobs.subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "flamegraph", "-o",
                                         str(tmp_path / "a.folded"),
                                         "--rate", "500", "--duration", "3"], stdout=jobs.subprocess.PIPE,
                                        universal_newlines=True)
        for _ in range(3):
            time.sleep(0.3)
            os.kill(job.pid, signal.SIGSTOP)
            wait_until(lambda: state(job.pid) == "T")
            time.sleep(0.2)
            assert state(job.pid) == "T"
            os.kill(job.pid, signal.SIGCONT)
            wait_until(lambda: state(job.pid) != "T")
        said, _ = sampler.communicate(timeout=30)
    assert sampler.returncode == 0
    assert re.search(r"\[stopped by a signal\]", (tmp_path / "a.folded").read_text()), said
