"""What a target must not notice of being sampled: its waits are as long as asked and end without EINTR, it keeps its
CPU, it gets its signals. The targets measure that themselves."""
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import jobs
import pytest
from interpreters import INTERPRETERS, interpreter_id
from jobs import probe, wait_until

SOURCE = Path(__file__).parent / "targets/target_waits.c"
LONGER_US = 10000
# The argument: how long it sleeps after each 20 ms.
LOOP = """
import sys, time
pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0
print("ready", flush=True)
rest = time.monotonic() + 0.02
while True:
    for i in range(2000): pass
    if pause and time.monotonic() > rest: time.sleep(pause); rest = time.monotonic() + 0.02
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="real-time priority is root's")


@pytest.fixture(scope="module")
def waits(tmp_path_factory):
    out = tmp_path_factory.mktemp("waits") / "target_waits"
    subprocess.run([shutil.which("gcc") or shutil.which("cc"), "-O1", "-g", "-D_GNU_SOURCE", "-pthread", SOURCE, "-o",
                    out], check=True)
    return out


def sample(pid, out, *options, seconds=3):
    return probe("-t", pid, "flamegraph", "-o", out, "--duration", seconds, *options)


def rows_of(text):
    """{name: [waits, errors, early, worst_us, errno]}"""
    rows = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in text.splitlines() if line != "ready"}
    assert len(rows) == 14, text
    return rows


@pytest.fixture(scope="module")
def alone(waits):
    """The same by a target that is not sampled: the kernel rounds the timeouts of sockets up to its ticks, of up to 10
    ms."""
    with jobs.start(waits, 2, ready="ready") as job:
        assert job.process.wait(20) == 0
        return rows_of(job.output)


def check_waits(run, alone):
    """An error is one too many. What the clock says is asked three times: a machine that takes its processors away for
    a while makes waits longer, and those of sockets, which count ticks, shorter."""
    for _ in range(3):
        rows = rows_of(run())
        errors = {name: row for name, row in rows.items() if row[0] < 10 or row[1]}
        assert not errors, f"waits, errors, early, worst us, errno: {errors}"
        wrong = {name: row for name, row in rows.items() if row[2] or row[3] > alone[name][3] + LONGER_US}
        if not wrong:
            return
    assert not wrong, f"waits, errors, early, worst us, errno: {wrong}; alone: {alone}"


@pytest.mark.parametrize("rate", [100, 1000])
def test_waits_are_as_long_as_asked_while_it_is_sampled(waits, alone, rate, tmp_path):
    def run():
        with jobs.start(waits, 6, ready="ready") as job:
            done = sample(job.pid, tmp_path / "a.folded", "--native", "--rate", rate, seconds=5)
            assert done.returncode == 0, done.stderr
            assert job.process.wait(20) == 0
            return job.output

    check_waits(run, alone)
    assert "wait_often" in (tmp_path / "a.folded").read_text()


def test_waits_are_as_long_as_asked_beside_backtraces(waits, alone):
    def run():
        with jobs.start(waits, 5, ready="ready") as job:
            end, turns = time.monotonic() + 4.5, 0
            while time.monotonic() < end:
                done = probe("-t", job.pid, "backtrace", "--native")
                assert done.returncode == 0, done.stderr
                turns += 1
            assert job.process.wait(20) == 0
            assert turns > 3
            return job.output

    check_waits(run, alone)


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_no_wait_of_python_ends_with_eintr(interpreter, tmp_path):
    """By ctypes, which does not try again after EINTR as Python's own functions do."""
    code = ("import ctypes, time\nlibc = ctypes.CDLL(None, use_errno=True)\nfd = libc.epoll_create1(0)\n"
            "buf = ctypes.create_string_buffer(64)\n"
            "print('ready', flush=True)\nend = time.monotonic() + 2.5; bad = 0\nwhile time.monotonic() < end:\n"
            "    for i in range(5000): pass\n    if libc.epoll_wait(fd, buf, 1, 1) < 0: bad += 1\n"
            "print('bad', bad, flush=True)\n")
    with jobs.python(code, interpreter) as job:
        assert sample(job.pid, tmp_path / "a.folded", "--native", "--rate", 1000, seconds=2).returncode == 0
        assert job.process.wait(20) == 0
        assert "bad 0" in job.output


def kernel_seconds_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[12]) / os.sysconf("SC_CLK_TCK")


def idle_seconds(cpu):
    words = next(line.split() for line in open("/proc/stat") if line.startswith(f"cpu{cpu} "))
    return (int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK")


def taken_of_cpu(job, cpu, tool):
    """The share of the time of a CPU that a job there has not and no other program uses: the tool's, that of the kernel
    for the job, and while the job is stopped (or sleeps)."""
    began, before, idle = time.monotonic(), kernel_seconds_of(job.pid), idle_seconds(cpu)
    used = cpu_seconds_of(tool)
    taken = used + kernel_seconds_of(job.pid) - before + idle_seconds(cpu) - idle
    return taken / (time.monotonic() - began)


def cpu_seconds_of(words):
    """Runs a tool; what it used of its CPU."""
    with tempfile.TemporaryFile("w+") as errors:
        tool = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(tool.pid, 0)
        tool.returncode = os.WEXITSTATUS(status)
        errors.seek(0)
        text = errors.read()
    # Where twenty others want that CPU, no thread stops in time.
    assert status == 0 or "all were refused" in text, text
    return used.ru_utime + used.ru_stime


@root_only
@pytest.mark.parametrize("command, pause", [([], 0), (["nice", "-n", "19"], 0), (["chrt", "-f", "5"], 0.002)],
                         ids=["plain", "nice", "fifo"])
def test_a_job_on_one_cpu_keeps_it(command, pause, tmp_path):
    cpu = str(min(os.sched_getaffinity(0)))
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    sampler = ["taskset", "-c", cpu, str(jobs.PROGRAM), "-t", "{pid}", "flamegraph", "-o", str(tmp_path / "a.folded"),
               "--native", "--rate", "1000", "--duration", "2"]
    with jobs.start("taskset", "-c", cpu, *command, INTERPRETERS[-1], script, pause, ready="ready") as job:
        usual = taken_of_cpu(job, cpu, ["sleep", "1"])
        taken = taken_of_cpu(job, cpu, [word.format(pid=job.pid) for word in sampler])
    assert taken < usual + 0.2, (taken, usual)


@root_only
@pytest.mark.parametrize("command", [["flamegraph", "--native", "-o", "{out}"], ["record", "--native"],
                                     ["flamegraph", "--native", "--rate", "5000", "-o", "{out}"]],
                         ids=["flamegraph", "record", "beyond"])
def test_the_first_second_of_the_only_cpu_is_the_jobs_too(command, tmp_path):
    """Counted on the tool's own CPU clock: what it reads at first is part of its share."""
    cpu, words = str(min(os.sched_getaffinity(0))), [word.format(out=tmp_path / "a.folded") for word in command]
    rate = [] if "--rate" in words else ["--rate", "1000"]
    with jobs.start("taskset", "-c", cpu, INTERPRETERS[-1], "-c", "print('ready', flush=True)\n"
                                                                  "while True: sum(range(1000))", ready="ready") as job:
        tool = subprocess.Popen(["taskset", "-c", cpu, str(jobs.PROGRAM), "-t", str(job.pid), *words, *rate,
                                 "--duration", "1"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={**os.environ, "PROBING_DIR": str(tmp_path)})
        _, status, used = os.wait4(tool.pid, 0)
        tool.returncode = status
    assert status == 0 and used.ru_utime + used.ru_stime < 0.13, used


@root_only
@jobs.three_tries
def test_a_thread_without_cpu_holds_up_no_other(waits, tmp_path):
    """A thread that runs only when its CPU is idle, on a CPU that never is."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("two CPUs are needed")
    hog = ["taskset", "-c", str(cpus[0]), "python3", "-c", "while True: pass"]
    # The other thread goes before what else runs there: one that gets its CPU too late cannot be read in time either.
    starve = ["nice", "-n", "-15", waits, "starve", cpus[0], cpus[1]]
    with jobs.start(*hog), jobs.start(*hog), jobs.start(*starve, ready="ready") as job:
        done = sample(job.pid, tmp_path / "a.folded", "--native", "--rate", 50, seconds=3)
        jobs.in_time("all were refused" not in done.stderr, done.stderr)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "a.folded").read_text()
    works = sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "have_cpu" in line)
    refused = int(re.search(r"(\d+) refused", done.stdout)[1])
    # 150 of each are usual; held up by the other there would be a few looks only.
    assert refused > 10 and works + refused > 60, done.stdout + text
    jobs.in_time(works > 10, done.stdout + text)


def test_a_thread_that_cannot_be_stopped_holds_up_no_other(waits, tmp_path):
    """One that waits for the child of a vfork: no signal and no tracer wakes it."""
    with jobs.start(waits, "vfork", ready="ready") as job:
        wait_until(lambda: any(Path(f"/proc/{job.pid}/task/{t}/stat").read_text().rsplit(")", 1)[1].split()[0] == "D"
                               for t in os.listdir(f"/proc/{job.pid}/task")), what="a thread in vfork")
        done = sample(job.pid, tmp_path / "a.folded", "--native", "--idle", "--rate", 100, seconds=2)
        assert done.returncode == 0, done.stderr
        assert job.process.wait(60) == 0
        child, took = map(int, job.output.split()[1:])
    assert child == 1 and took < 15000, job.output  # it went on when its child did, after four seconds
    text = (tmp_path / "a.folded").read_text()
    count = {name: sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if name in line)
             for name in ("work_beside_vfork", "[waiting in vfork]")}
    # 200 of each are usual. The one that works is refused where a busy machine lets it stop too late; held up it would
    # have next to none.
    assert count["[waiting in vfork]"] > 20 and count["work_beside_vfork"] > 10, done.stdout + text


@pytest.mark.parametrize("how", ["wait", "handle"])
def test_signals_come_all_and_in_time(how, waits, tmp_path):
    """A busy machine makes signals late too: a target that is not sampled shows how late."""
    sent, late, usual = 30000, [], 0

    def send(sampled):
        with jobs.start(waits, how, ready="ready") as job, jobs.start(waits, "send", job.pid, sent) as sender:
            if sampled:
                done = sample(job.pid, tmp_path / "a.folded", "--native", "--rate", 1000, seconds=2)
                assert done.returncode == 0, done.stderr
            assert sender.process.wait(30) == 0 and job.process.wait(30) == 0
            came, behind = map(int, job.output.split()[1:])
            assert came == sent
            return behind

    for _ in range(3):
        late.append(send(True))
        if late[-1] < sent // 200 + 2 * usual:
            return
        usual = max(usual, send(False))
    assert min(late) < sent // 200 + 2 * usual, f"late: {late}, without a sampler {usual}"
