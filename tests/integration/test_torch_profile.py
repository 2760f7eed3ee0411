"""torch profile: torch's profiler for a few whole steps of a job that runs, which notices nothing else of it."""
import json
import signal
import subprocess
import sys

import jobs
import pytest
from jobs import PROGRAM, probe

LOOP = """
import sys, threading, time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""
GOES_ON = LOOP + "print('ready', flush=True)\ntrain(10 ** 9)\n"
# Two steps after it was told to, it ends; its exit status is that of its last lines.
ENDS = LOOP + """
import os
print('ready', flush=True)
while not os.path.exists(sys.argv[1]): train(1)
while not torch.autograd.profiler._is_profiler_enabled: train(1)
train(2)
print('over', flush=True)
"""
# It profiles itself while it is profiled, then stands still meanwhile, then has a profile with a schedule, then sleeps.
ITS_OWN = LOOP + """
import os
def until(is_so):
    while not is_so(): train(1)
enabled = lambda: torch.autograd.profiler._is_profiler_enabled
print('ready', flush=True)
until(enabled)
with torch.profiler.profile() as first: train(3)
print(sum(event.count for event in first.key_averages() if event.key == 'aten::addmm'), flush=True)
until(lambda: not enabled()); until(enabled)
time.sleep(3)
until(lambda: not enabled())
def scheduled():
    mine = torch.profiler.profile(schedule=torch.profiler.schedule(wait=100000, warmup=1, active=1))
    until(lambda: os.path.exists(GO))
scheduled()
import gc; gc.collect()
time.sleep(1000)
"""


@pytest.fixture(scope="module", autouse=True)
def torch():
    if subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("torch is not installed")


def turn_on(pid):
    assert probe(pid, "config", "probing.torch.profiling=on").returncode == 0
    jobs.wait_until(lambda: "of the steps" in probe(pid, "probes").stdout, 30, "the probe")


def enabled(job):
    return probe(job.pid, "eval", "torch.autograd.profiler._is_profiler_enabled, '<locals>' in "
                                  "repr(torch.autograd.profiler.profile._prepare_trace)").stdout


def test_a_few_whole_steps_are_captured_and_leave_nothing(tmp_path):
    with jobs.python(GOES_ON, ready_seconds=90) as job:
        done = probe(job.pid, "torch", "profile", "-o", tmp_path / "trace.json")
        assert done.returncode == 1 and "probing.torch.profiling=on" in done.stderr
        turn_on(job.pid)
        for number in (1, 2):
            done = probe(job.pid, "torch", "profile", "--steps", "3", "-o", tmp_path / "trace.json")
            assert done.returncode == 0, done.stderr
            events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
            assert sum(event.get("name") == "aten::addmm" for event in events) == 6
            assert sum(event.get("name", "").startswith("Optimizer.step") for event in events) == 3
        rows = probe(job.pid, "query", "--format", "csv", "SELECT capture_id, steps, calls, self_us > 0 AND self_us <= "
                                                          "wall_us FROM python.profile_hotspot"
                     " WHERE bucket_name = 'aten::addmm' AND bucket_kind = 'cpu_op' ORDER BY 1").stdout.splitlines()
        assert rows[1:] == ["1,3,6,true", "2,3,6,true"]
        assert enabled(job) == "(False, False)\n" and job.output == "ready\n"
        # A tool that is killed in the middle: the steps end it.
        tool = subprocess.Popen([PROGRAM, "-t", str(job.pid), "torch", "profile", "--steps", "60", "-o",
                                 tmp_path / "none.json"])
        jobs.wait_until(lambda: enabled(job) == "(True, True)\n", 30, "the profiler")
        tool.send_signal(signal.SIGKILL)
        tool.wait()
        jobs.wait_until(lambda: enabled(job) == "(False, False)\n", 60, "its end")
        # Detached in the middle: the next step ends it.
        tool = subprocess.Popen([PROGRAM, "-t", str(job.pid), "torch", "profile", "--steps", "100", "-o",
                                 tmp_path / "none.json"], stderr=subprocess.DEVNULL)
        jobs.wait_until(lambda: enabled(job) == "(True, True)\n", 30, "the profiler")
        assert probe(job.pid, "detach").returncode == 0
        tool.wait()
        jobs.wait_until(lambda: enabled(job) == "(False, False)\n", 30, "its end")
        assert job.output == "ready\n" and job.alive()


def test_a_program_that_ends_meanwhile_ends_as_it_would(tmp_path):
    with jobs.python(ENDS.replace("sys.argv[1]", repr(str(tmp_path / "go"))), ready_seconds=90) as job:
        turn_on(job.pid)
        (tmp_path / "go").touch()
        done = probe(job.pid, "torch", "profile", "--steps", "100", "-o", tmp_path / "trace.json")
        assert done.returncode == 1, done.stderr
        assert "the program ends" in done.stderr or "the process ended" in done.stderr, done.stderr
        assert job.process.wait(30) == 0 and job.output == "ready\nover\n"


def test_what_the_program_does_with_the_profiler_goes_first(tmp_path):
    trace = tmp_path / "trace.json"

    def profile(*words):
        done = probe(job.pid, "torch", "profile", "--steps", "100", *words, "-o", trace)
        assert done.returncode == 1 and not trace.exists() and job.alive()
        return done.stderr

    with jobs.python(ITS_OWN.replace("GO", repr(str(tmp_path / "go"))), ready_seconds=90) as job:
        turn_on(job.pid)
        assert "the program began a profile of its own" in profile()
        jobs.wait_until(lambda: "6" in job.output.splitlines(), 30, "its own profile")
        assert "took longer" in profile("--within", "2s")
        jobs.wait_until(lambda: "scheduled" in probe(job.pid, "backtrace").stdout, 30, "the profile with a schedule")
        assert "the program has a torch.profiler.profile with a schedule of its own" in profile()
        (tmp_path / "go").touch()
        jobs.wait_until(lambda: "until" not in probe(job.pid, "backtrace").stdout, 30, "the sleep")
        assert "no step ended within 1 s" in profile("--within", "1s")
        # torch tells of a program's own
        assert [line for line in job.output.splitlines() if not line.startswith("USDT:")] == ["ready", "6"]
