"""What the page says of a job is what `probing diagnose` found: its sentence, its mark, and the way to the stack."""
import json
import re
import signal
import subprocess
import sys
import urllib.parse
from contextlib import contextmanager

import pytest
from jobs import PROGRAM, probe
from page_kit import browse, browser_only, finish, go, meet, start
from serve_kit import NEEDS_SERVE, service

pytestmark = [NEEDS_SERVE, browser_only]

DEADLOCK = """
import threading, time
first, second = threading.Lock(), threading.Lock()
both = threading.Barrier(2)

def save_checkpoint():
    with first:
        both.wait()
        with second:
            pass

def train():
    with second:
        both.wait()
        print("ready", flush=True)
        with first:
            pass

threading.Thread(target=save_checkpoint, name="ckpt-writer").start()
train()
"""
STEPS = """
import time
def train_step():
    print("ready", flush=True)
    while True: time.sleep(0.01)
train_step()
"""


@contextmanager
def running(folder, name, text):
    (folder / name).write_text(text)
    with subprocess.Popen([sys.executable, str(folder / name)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(400)
def test_every_view_opens_with_what_diagnose_found(tmp_path):
    with running(tmp_path, "locked.py", DEADLOCK) as job, service(tmp_path / "r") as served:
        said = json.loads(probe("-t", job.pid, "diagnose", "--json").stdout)["jobs"][0]
        found = browse(served, tmp_path, ["open", f"#/now?target={job.pid}"], ["find", ".verdict .mark.odd"],
                       ["text", "main h1"], ["text", ".evidence"], ["text", ".side .job[aria-current]"],
                       ["text", "tr.odd"],
                       ["open", f"#/memory?target={job.pid}"], ["find", ".note.finding"], ["text", ".note.finding"],
                       ["click", ".note.finding a"], ["find", "[role=treeitem][aria-selected=true]"],
                       ["text", "aside"], ["text", ".note.finding"],
                       patience=150000, within=350)
    assert said["findings"][0]["kind"] == "deadlock"
    assert found[2] == said["verdict"] and found[12].startswith(said["verdict"])
    assert all(e["place"] in found[3] for e in said["findings"][0]["evidence"])
    assert re.search(r"stuck", found[4]) and str(job.pid) in found[5]
    assert found[8].startswith(said["verdict"])
    assert re.search(r"save_checkpoint|train", found[11])


@pytest.mark.timeout(400)
def test_a_finding_comes_and_goes_and_a_healthy_job_has_none(tmp_path):
    with running(tmp_path, "steps.py", STEPS) as job, service(tmp_path / "r") as served:
        browser = start(served, tmp_path, ["open", f"#/now?target={job.pid}"], ["see", "No problem found in steps.py"],
                        ["text", "main h1"], ["text", "main .verdict p"], ["count", ".note.odd, tr.odd, .mark.odd"],
                        ["meet", "healthy"],
                        ["find", ".verdict .mark.odd"], ["text", "main h1"], ["meet", "stopped"],
                        ["see", "No problem found in steps.py"], ["text", "main h1"], patience=150000)
        try:
            meet(browser, tmp_path, "healthy", 150)
            job.send_signal(signal.SIGSTOP)
            go(tmp_path, "healthy")
            meet(browser, tmp_path, "stopped", 150)
            job.send_signal(signal.SIGCONT)
            go(tmp_path, "stopped")
            found = finish(browser, within=300)
        finally:
            if browser.poll() is None:
                browser.kill()
                browser.communicate()
    assert found[2] == found[10] == "No problem found in steps.py."
    assert "train_step" in found[3] and "1 of 1 process answered" in found[3]
    assert found[4] == 0
    assert "stopped" in found[7]


@pytest.mark.timeout(120)
def test_a_thread_that_steps_has_not_slept_since_it_was_first_seen(tmp_path):
    """It is at the same line at each look, and must not be told to have been there since the first."""
    with running(tmp_path, "steps.py", STEPS) as job:
        now = subprocess.Popen([PROGRAM, "-t", str(job.pid), "now", "--watch", "--interval=500ms", "--format=tsv"],
                               stdout=subprocess.PIPE, text=True)
        try:
            rows = (line.split("\t") for line in now.stdout if line.startswith(f"{job.pid}\t"))
            slept = [float(row[3].replace("\\N", "0")) for row, _ in zip(rows, range(8))]
        finally:
            now.kill()
            now.communicate()
    # Eight looks are 3.5 s at least. A busy machine may keep it from running for a while, not at every look.
    assert min(slept[4:]) < 1.5, slept


@pytest.mark.timeout(60)
def test_a_diagnosis_is_asked_for_one_job(tmp_path):
    with running(tmp_path, "steps.py", STEPS) as job, running(tmp_path, "other.py", STEPS), \
            service(tmp_path / "r") as served:
        answer = served.json("/api/v1/diagnosis?" + urllib.parse.urlencode({"target": job.pid}))
    assert [[r["pid"] for r in j["ranks"]] for j in answer["jobs"]] == [[job.pid]]
