"""catch in programs that fault on purpose, die in hard places, or have no Python: they behave as without catch."""
import os
import re
import signal
import subprocess
import time

import jobs
import pytest
from jobs import probe
from stack_kit import TARGETS
from catch_kit import handled, let_fail, rows


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "target_faults"
    subprocess.run(["cc", "-std=gnu17", "-O1", "-g", "-D_GNU_SOURCE", "-w", TARGETS / "target_faults.c", "-o", path],
                   check=True)
    return path


def start(binary, how):
    return jobs.start(binary, how, ready="ready")


def catch(job, *words):
    done = probe("-t", job.pid, "catch", *words)
    assert done.returncode == 0, done.stderr
    return done


DEATHS = [("crash", signal.SIGSEGV, "crash_here"), ("malloc", signal.SIGABRT, "die_in_malloc"),
          ("overflow-stack", signal.SIGSEGV, "overflow")]


@pytest.mark.parametrize("how, number, function", DEATHS, ids=[case[0] for case in DEATHS])
def test_a_program_without_python(binary, how, number, function):
    """Also where it dies in malloc, with the lock of the heap held, and of a full stack."""
    with start(binary, how) as job:
        assert "there is no Python in it" in catch(job).stderr
        let_fail(job)
        assert job.process.wait(20) == -number
        assert rows(job, "SELECT kind, type FROM python.exceptions") == [["signal", number.name]]
        found = rows(job, "SELECT function FROM python.crash_frames WHERE failed ORDER BY depth")
        assert function in [row[0] for row in found], found
        assert "SIG" not in job.output


def test_a_full_stack_without_another(binary):
    """The kernel can call no handler then: it dies as it would have died."""
    with start(binary, "overflow") as job:
        catch(job)
        let_fail(job)
        assert job.process.wait(20) == -signal.SIGSEGV


@jobs.three_tries
@pytest.mark.parametrize("how", ["mend", "jump", "later-jump"])
def test_a_program_that_lives_on_faults(binary, how):
    """Held for one scene at most, and never again: 20,000 faults at the speed of an unprobed program."""
    times = []
    for caught in (False, True):
        with start(binary, how) as job:
            if caught:
                catch(job)
            let_fail(job)
            jobs.wait_until(lambda: "done" in job.output, 20, "the faults")
            count, took = re.search(r"handled (\d+) within ([\d.]+) s", job.output).groups()
            assert count == "20001"
            times.append(float(took))
            if caught and how == "mend":
                jobs.wait_until(lambda: rows(job, "SELECT kind, type FROM python.exceptions ORDER BY timestamp") == [
                    ["signal", "SIGSEGV"], ["survived", "SIGSEGV"]], 20, "the row that tells it")
                assert "SIGSEGV is not caught: the program's own handler" in catch(job).stderr
            if caught:
                assert probe("-t", job.pid, "detach").returncode == 0
            let_fail(job)
            assert job.process.wait(10) == 0
    jobs.in_time(times[1] < 2 * times[0] + 0.1, f"{times}")


def test_a_handler_that_is_set_later_and_gives_on(binary):
    with start(binary, "later") as job:
        catch(job)
        let_fail(job)
        assert job.process.wait(20) == -signal.SIGSEGV
        assert job.output == "ready\nlater handler\n"
        assert rows(job, "SELECT kind, type FROM python.exceptions") == [["signal", "SIGSEGV"]]


def test_a_child_of_vfork_and_exec(binary):
    """The child dies at once, and the parent's handlers are given back though the child wrote into its memory."""
    with start(binary, "vfork") as job:
        probe("-t", job.pid, "inject")
        before = handled(job)
        catch(job)
        let_fail(job)
        jobs.wait_until(lambda: "done" in job.output, what="the child")
        assert job.output == "ready\nthe child died of 11\ndone\n"
        assert probe("-t", job.pid, "detach").returncode == 0
        assert handled(job) == before
        let_fail(job)
        assert job.process.wait(10) == 0
    with start(binary, "exec") as job:
        catch(job)
        let_fail(job)
        jobs.wait_until(lambda: job.output.count("ready") == 2, what="the new program")
        assert not handled(job) & (1 << signal.SIGSEGV - 1)
        let_fail(job)
        assert job.process.wait(10) == -signal.SIGSEGV


def keeper_of(job):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"catch" in words and str(job.pid).encode() in words:
            found.append(int(pid))
    assert len(found) == 1, found
    return found[0]


def test_the_keeper_hangs_or_is_killed(binary):
    with start(binary, "crash") as job:
        catch(job)
        keeper = keeper_of(job)
        os.kill(keeper, signal.SIGSTOP)
        began = time.monotonic()
        let_fail(job)
        assert job.process.wait(20) == -signal.SIGSEGV
        assert time.monotonic() - began > 1.9  # it was waited for, two seconds
        os.kill(keeper, signal.SIGCONT)
        jobs.wait_until(lambda: not os.path.exists(f"/proc/{keeper}"), what="the keeper's end")
    with start(binary, "crash") as job:
        probe("-t", job.pid, "inject")
        before = handled(job)
        catch(job)
        assert handled(job) != before
        os.kill(keeper_of(job), signal.SIGKILL)
        jobs.wait_until(lambda: handled(job) == before, what="the handlers")
        let_fail(job)
        assert job.process.wait(20) == -signal.SIGSEGV
