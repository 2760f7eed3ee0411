"""The time of a profile: none of it is lost, in no format, and its clock is right."""
import signal
import subprocess
import time
from pathlib import Path

import jobs
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
        sampler = subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "flamegraph", "-o", str(tmp_path / "a.folded"), "--duration", "3",
                                    "--rate", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
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
