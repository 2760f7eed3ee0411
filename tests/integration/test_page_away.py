"""A page that is left open: the service goes away and comes back, processes end and others start. It says so and goes
on by itself."""
import subprocess
import sys

import pytest
from jobs import PROGRAM, probe
from page_kit import browser_only, finish, go, meet, start
from serve_kit import service

pytestmark = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")

JOB = """
import time
def wait_for_ever():
    while True:
        time.sleep(0.05)
print("ready", flush=True)
wait_for_ever()
"""


def running(folder, name):
    (folder / name).write_text(JOB)
    process = subprocess.Popen([sys.executable, str(folder / name)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@browser_only
@pytest.mark.timeout(150)
def test_a_page_left_open_outlives_its_service_and_its_process(tmp_path):
    with running(tmp_path, "left_open.py") as job:
        try:
            assert probe("-t", job.pid, "inject").returncode == 0
            with service(tmp_path / "r") as first:
                browser = start(first, tmp_path, ["open", f"#/now?target={job.pid}"],
                                ["find", "main td:has-text('left_open.py')"], ["meet", "seen"],
                                ["see", "No answer from the service"], ["text", ".note.bad"],
                                ["find", "main td:has-text('left_open.py')"], ["open", f"#/activity?target={job.pid}"],
                                ["see", "No answer from the service"], ["meet", "away"],
                                # The view was never fetched while the service was away: the page opens anew by itself.
                                ["find", "[role=treeitem]:has-text('wait_for_ever')"], ["gone", ".note.bad"],
                                ["meet", "back"],
                                ["see", f"Process {job.pid} has ended"], ["click", ".note.odd a"],
                                ["see", "It has ended, and its stacks were not recorded"],
                                ["evaluate", "location.hash"], ["open", "#/now?find=later.py"], ["meet", "new"],
                                ["see", "later.py"])
                try:
                    meet(browser, tmp_path, "seen")
                    first.process.kill()
                    first.process.wait()
                    go(tmp_path, "seen")
                    meet(browser, tmp_path, "away")
                    with service(tmp_path / "r", first.address) as second:
                        assert second.token == first.token
                        go(tmp_path, "away")
                        meet(browser, tmp_path, "back")
                        job.kill()
                        job.wait()
                        go(tmp_path, "back")
                        meet(browser, tmp_path, "new")
                        with running(tmp_path, "later.py") as later:
                            go(tmp_path, "new")
                            try:
                                # What a browser itself says: that connections were refused, and that a question about
                                # what has just ended was.
                                found = finish(browser, ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING",
                                                         "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "status of 422"))
                            finally:
                                later.kill()
                finally:
                    if browser.poll() is None:
                        browser.kill()
                        browser.communicate()
        finally:
            job.kill()
    assert "What you see is of" in found[4] and "Trying again" in found[4]
    assert found[-4].startswith(f"#/activity?target={job.pid}%40")
