"""Sampling with fewer means: without root's rights, on kernels that lack a call or a file, through the agent. It works
on by the next best way, and the summary and doctor say which one and why. The refusals are the kernel's own
(targets/refuse.c)."""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from interpreters import INTERPRETERS
from jobs import probe
from profile_kit import read_folded

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up rights")
# As an ordinary user: the rights of one who owns the process, and no capability.
ORDINARY = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
POOR = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
CODE = """
import threading, time
def busy():
    while True: sum(range(1000))
def sleepy():
    while True: time.sleep(0.02)
threading.Thread(target=sleepy, daemon=True).start()
print("ready", flush=True)
busy()
"""


@pytest.fixture(scope="module")
def refuse(tmp_path_factory):
    out = tmp_path_factory.mktemp("refuse") / "refuse"
    source = Path(__file__).parent / "targets/refuse.c"
    subprocess.run([shutil.which("gcc") or shutil.which("cc"), "-O1", "-D_GNU_SOURCE", source, "-o", out], check=True)
    return out


def run(prefix, *words):
    done = subprocess.run([*map(str, prefix), str(jobs.PROGRAM), *map(str, words)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=60)
    return done


def flamegraph(prefix, pid, out, *options, duration=1):
    done = run(prefix, "-t", pid, "flamegraph", "-o", out, "--duration", duration, *options)
    assert done.returncode == 0, done.stderr
    counts = {}
    for stack, n in read_folded(Path(out).read_text()):
        for name in {name for name, _ in stack}:
            counts[name] = counts.get(name, 0) + n
    return done.stdout, counts


def doctor(prefix, pid):
    return {row["check"]: row for row in json.loads(run(prefix, "-t", pid, "doctor", "--format", "json").stdout)}


def as_ordinary(code):
    return jobs.start(*ORDINARY, INTERPRETERS[-1], "-c", code, ready="ready")


def test_an_ordinary_user_is_told_why_threads_are_stopped(tmp_path):
    with as_ordinary(CODE) as job:
        said, counts = flamegraph(ORDINARY, job.pid, tmp_path / "a.folded")
        row = doctor(ORDINARY, job.pid)["samples"]
    assert "interrupts (BPF) were not possible: permission denied" in said and "CAP_BPF" in said, said
    assert "interrupted" not in said and re.search(r"stopped \d", said), said
    assert counts["busy"] > 10 and counts["sleepy"] > 40, counts
    assert "ptrace" in row["found"] and "CAP_BPF" in row["remedy"], row


@pytest.mark.parametrize("rule, said_of_it, check, found", [
    ("openat2=ENOSYS", "no openat2", "kernel", "no openat2"),
    ("openat2=EPERM", "no openat2", "kernel", "no openat2"),
    ("file:/schedstat=ENOENT", "no schedstat", "kernel", "no schedstat"),
    ("bpf=ENOSYS", "this kernel has no bpf", "samples", "ptrace"),
    ("ptrace=EPERM", None, "ptrace", "seccomp filter forbids ptrace"),
], ids=["openat2", "openat2-filter", "schedstat", "bpf", "ptrace"])
def test_what_a_kernel_lacks_is_done_without_and_said(rule, said_of_it, check, found, refuse, tmp_path):
    with jobs.python(CODE) as job:
        said, counts = flamegraph([refuse, rule, "--"], job.pid, tmp_path / "a.folded", duration=1.5)
        row = doctor([refuse, rule, "--"], job.pid)[check]
        sound = doctor([], job.pid)
    # others may have most of the CPU
    assert counts.get("busy", 0) > 10 and counts.get("sleepy", 0) > 40, (said, counts)
    assert not said_of_it or said_of_it in said, said
    assert found in row["found"], row
    assert sound["kernel"]["state"] == "ok" and "BPF" in sound["samples"]["found"], sound


HASHES = """
import hashlib, threading, time
def hashes():
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)  # without the GIL, and without a wait
def sleepy():
    while True: time.sleep(0.02)
threading.Thread(target=sleepy, daemon=True).start()
threading.Timer(0.2, print, ["ready"], {"flush": True}).start()
hashes()
"""


def test_a_thread_that_runs_and_cannot_be_read_is_not_called_idle(refuse, tmp_path):
    with jobs.python(HASHES) as job:
        said, _ = flamegraph([refuse, "ptrace=EPERM", "bpf=ENOSYS", "--"], job.pid, tmp_path / "a.folded", "--native")
    assert "never ran" not in said and re.search(r"[1-9]\d* refused", said), said


def test_where_threads_may_not_be_stopped_their_cpu_is_taken(refuse, tmp_path):
    with jobs.python(HASHES) as job:
        said, counts = flamegraph([refuse, "ptrace=EPERM", "bpf=ENOSYS", "--"], job.pid, tmp_path / "a.folded",
                                  duration=1.5)
    assert "could not be stopped" in said and "never ran" not in said and counts.get("hashes", 0) > 10, (said, counts)


def test_locked_memory_is_raised_where_maps_count_as_such(refuse, tmp_path):
    """As before Linux 5.11, where a shell's 64 KB are too few."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if 0 <= hard < 1 << 20:
        pytest.skip("the limit of locked memory cannot be raised here")
    small = ["prlimit", "--memlock=65536:"]
    with jobs.python(CODE) as job:
        raised, _ = flamegraph([*small, refuse, "memlock", "--"], job.pid, tmp_path / "a.folded")
        kept, counts = flamegraph(["prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-sys_resource",
                                   refuse, "memlock", "--"],
                                  job.pid, tmp_path / "b.folded")
    assert "interrupted" in raised and "not possible" not in raised, raised
    assert "RLIMIT_MEMLOCK" in kept and "64 KB" in kept and counts["busy"] > 10, kept


def test_without_schedstat_stacks_are_as_true(refuse, tmp_path):
    import profile_kit
    tree = profile_kit.Tree()
    with jobs.python(tree.source) as job:
        done = run([refuse, "file:/schedstat=ENOENT", "bpf=EPERM", "--"], "-t", job.pid, "flamegraph", "-o",
                   tmp_path / "a.folded", "--lines", "--rate", 1000, "--duration", 2)
        assert done.returncode == 0, done.stderr
    total, impossible, cut, examples = profile_kit.check_tree(tree, read_folded((tmp_path / "a.folded").read_text()))
    assert total > 500 and impossible == 0 and cut == 0, (total, impossible, cut, examples, done.stdout)


def test_an_ordinary_user_gets_true_stacks(tmp_path):
    import profile_kit
    tree = profile_kit.Tree()
    with as_ordinary(tree.source) as job, jobs.start(sys.executable, "-c", "while True: pass"), \
            jobs.start(sys.executable, "-c", "while True: pass"):  # it often waits for a CPU
        done = run(ORDINARY, "-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--lines", "--rate", 1000,
                   "--duration", 3)
        assert done.returncode == 0, done.stderr
    total, impossible, cut, examples = profile_kit.check_tree(tree, read_folded((tmp_path / "a.folded").read_text()))
    assert total > 500 and impossible == 0 and cut == 0, (total, impossible, cut, examples, done.stdout)
    assert "preempted" in done.stdout, done.stdout


def test_through_the_agent_where_the_right_to_trace_is_missing(tmp_path):
    with jobs.python(CODE) as job:
        refused = run(POOR, "-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--duration", 1)
        assert refused.returncode != 0 and "may not be read" in refused.stderr, refused.stderr
        assert probe(job.pid, "inject").returncode == 0
        said, counts = flamegraph(POOR, job.pid, tmp_path / "a.folded", duration=2)
        row = doctor(POOR, job.pid)["samples"]
        top = run(POOR, "-t", job.pid, "top", "--count", 1, "--interval", 1)
        backtrace = run(POOR, "-t", job.pid, "backtrace")
    assert "read through the agent" in said and counts["sleepy"] > 100, (said, counts)
    assert "agent" in row["found"] and row["state"] == "warning", row
    assert top.returncode == 0, top.stdout + top.stderr
    assert "sleepy" in top.stdout, top.stdout + top.stderr
    assert "read through the agent" in top.stdout, top.stdout + top.stderr
    assert backtrace.returncode == 0 and "sleepy" in backtrace.stdout


def test_the_path_of_a_sample_can_be_seen(tmp_path):
    with jobs.python(CODE) as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--duration", 0.3,
                     env={**os.environ, "PROBING_TRACE_SAMPLES": "1"})
    lines = [line for line in done.stderr.splitlines() if line.startswith("tick ")]
    assert len(lines) > 20
    assert all(re.fullmatch(r"tick \d+ thread \d+ (new|moving|settled|held-up):( [a-z-]+\([a-z-]+\))+ = "
                            r"[a-z-]+, \d+ us", line) for line in lines), lines[:3]
    assert any("asleep(yes) read(yes) prove(yes) describe(yes) count(yes) = taken" in line for line in lines), lines[:3]
    assert all("count(yes)" not in line or re.search(r"look-again\(yes\)|interrupt\(yes\)|prove\(yes\)", line)
               for line in lines)
