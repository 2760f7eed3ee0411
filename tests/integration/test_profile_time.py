"""The time of a profile: none of it is lost, in no format, and its clock is right."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import jobs
import profile_formats
import pytest
from jobs import probe
from profile_kit import read_folded

BUSY = """
import threading, time
def idle():
    while True: time.sleep(0.002)
threading.Thread(target=idle, daemon=True, name="idler").start()
print("ready", flush=True)
while True:
    for _ in range(10000): pass
"""


def test_a_tick_that_was_missed_keeps_its_weight(tmp_path):
    with jobs.python(BUSY) as job:
        sampler = subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "flamegraph", "-o",
                                    str(tmp_path / "a.folded"), "--duration", "3",
                                    "--rate", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   universal_newlines=True)
        time.sleep(1)
        sampler.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        sampler.send_signal(signal.SIGCONT)
        out, err = sampler.communicate(timeout=20)
    assert sampler.returncode == 0, err
    assert " late" in out
    seconds = float(out.split(" in ")[1].split()[0])
    counts = {}
    for stack, n in read_folded((tmp_path / "a.folded").read_text()):
        counts[stack[0][0]] = counts.get(stack[0][0], 0) + n
    # Two threads, each seen all of that time: 120 ticks of each came too late.
    assert sum(counts.values()) > 0.9 * 2 * 100 * seconds, (counts, out)
    assert sum(counts.values()) < 1.1 * 2 * 100 * seconds, (counts, out)


BOTH = """
import time
def rest():
    time.sleep(0.01)
def spin():
    t = time.monotonic()
    while time.monotonic() - t < 0.01: pass
print("ready", flush=True)
while True:
    spin()
    rest()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A recording of the CPU time of two ranks: (folder, when it began and ended by UTC and by the monotonic clock,
    rate, pids)."""
    folder = tmp_path_factory.mktemp("runs")
    os.environ["PROBING_DIR"] = str(folder)
    try:
        mark = f"two-ranks-{os.getpid()}"  # by which they, and no others, are found
        with jobs.python(BOTH, flags=("-X", mark), env={"RANK": "3", "WORLD_SIZE": "8"}) as one, \
                jobs.python(BOTH, flags=("-X", mark), env={"RANK": "5", "WORLD_SIZE": "8"}) as two:
            utc, mono = time.time(), time.monotonic()
            recorder = subprocess.Popen([str(jobs.PROGRAM), "-t", mark, "--all", "record", "--cpu", "--duration", "2.5",
                                         "--rate", "250"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
            time.sleep(1)
            recorder.send_signal(signal.SIGSTOP)  # ticks are missed
            time.sleep(0.5)
            recorder.send_signal(signal.SIGCONT)
            out, err = recorder.communicate(timeout=30)
            assert recorder.returncode == 0, err
            yield out.split(":")[0], (utc, time.time()), (mono, time.monotonic()), 250, (one.pid, two.pid)
    finally:
        del os.environ["PROBING_DIR"]


@pytest.fixture(scope="module")
def written(recording, tmp_path_factory):
    """The same recording in every format: (folder, what was said)."""
    folder = tmp_path_factory.mktemp("written")
    for ending in profile_formats.ENDINGS:
        done = probe("flamegraph", "--from", recording[0], "-o", folder / f"a.{ending}")
        assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_all_formats_hold_the_same_number_of_samples(recording, written):
    said = int(re.search(r": (\d+) samples", written[1])[1])
    assert said > 100
    assert {ending: profile_formats.samples(written[0] / f"a.{ending}", recording[3])
            for ending in profile_formats.ENDINGS} == \
           {ending: said for ending in profile_formats.ENDINGS}


def test_a_recording_gives_its_clock_and_its_ranks_back(recording, written):
    assert "CPU time" in written[1]
    assert profile_formats.pprof(written[0] / "a.pb.gz")[3] == ["samples", "cpu"]
    folded = (written[0] / "a.folded").read_text()
    assert {line.split(";")[0] for line in folded.splitlines()} == {"rank 3", "rank 5"}
    assert "of 2 processes" in (written[0] / "a.svg").read_text()
    # Found by any of its processes, not only by the first.
    for pid in recording[4]:
        done = probe("flamegraph", "--from", pid, "-o", written[0] / "b.folded",
                     env={**os.environ, "PROBING_DIR": str(Path(recording[0]).parent.parent)})
        assert done.returncode == 0, done.stderr


def test_perfetto_gets_the_clocks_of_the_machine(recording, written):
    _, (utc0, utc1), (mono0, mono1), _, _ = recording
    clocks, primary, samples = profile_formats.perfetto(written[0] / "a.perfetto")
    real, monotonic, boot = (clocks[number] / 1e9 for number in (1, 3, 6))
    assert primary == 1
    assert mono0 - 0.01 < monotonic < mono1 and utc0 - 0.01 < real < utc1
    # All three at one instant.
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert abs((real - monotonic) - (time.time() - now)) < 0.01
    assert abs((boot - monotonic) - (time.clock_gettime(time.CLOCK_BOOTTIME) - now)) < 0.01
    assert all(clock == 3 and mono0 - 0.01 < us / 1e6 < mono1 for clock, us, _ in samples)


def test_speedscope_shows_threads_beside_each_other(tmp_path):
    code = ("import threading, time\ndef late():\n    end = time.monotonic() + 60\n"
            "    while time.monotonic() < end: pass\n"
            "print('ready', flush=True)\ntime.sleep(1.5)\n"
            "threading.Thread(target=late, name='latecomer', daemon=True).start()\ntime.sleep(60)\n")
    with jobs.python(code) as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.json", "--duration", 3, "--idle")
    assert done.returncode == 0, done.stderr
    threads = {thread["name"]: thread for thread in json.loads((tmp_path / "a.json").read_text())["profiles"]}
    main = next(thread for name, thread in threads.items() if "MainThread" in name)
    late = next(thread for name, thread in threads.items() if "latecomer" in name)
    assert abs(main["endValue"] - late["endValue"]) < 300
    assert late["samples"][0] == [] and late["weights"][0] > 700  # it began when the other was half through
