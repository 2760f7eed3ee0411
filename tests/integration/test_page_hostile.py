"""Names that a process chose to do harm, in every view of the page: they are shown as text, and nothing scrolls
sideways."""
import subprocess
import sys

import jobs
import pytest
from jobs import PROGRAM, probe
from page_kit import AXE, VIEWS, browse, browser_only, wait_for
from serve_kit import service

pytestmark = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")

EVIL = "<img src=x onerror=alert(1)>'; DROP"
JOB = f"""
import sys, threading, time
sys.path.insert(0, {str(jobs.TOP / "python")!r})
import probing, torch
EVIL = {EVIL!r}
LONG = EVIL + "\u202egnp.exe\u2066" + "n" * 10000

def rename(function, **named):
    # Names need not be what the grammar of Python allows.
    named.update(dict(co_qualname=named["co_name"]) if hasattr(function.__code__, "co_qualname") else dict())
    function.__code__ = function.__code__.replace(**named)
    return function

def train(value):
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        kept.append(bytearray(1 << 18))
        del kept[:-40]
        time.sleep(0.02)

kept = []
layer = type(LONG, (torch.nn.Linear,), dict())(8, 8)
model = torch.nn.Sequential()
model.add_module(LONG.replace(".", ""), layer)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
named = dict(time=time)
exec(compile("def wait(g, value):\\n    g(value)\\n", LONG + ".py", "exec"), named)
rename(named["wait"], co_name=LONG, co_varnames=("g", EVIL))
rename(train, co_name=EVIL)
threading.Thread(target=threading.Event().wait, daemon=True, name=LONG).start()
torch.set_num_threads(1)
print("ready", flush=True)
named["wait"](train, LONG)
"""


@pytest.fixture(scope="module")
def job(needs_torch, tmp_path_factory):
    script = tmp_path_factory.mktemp("job") / "hostile_job.py"
    script.write_text(JOB)
    with subprocess.Popen([sys.executable, str(script), EVIL, "\u202e", "w" * 10000], stdout=subprocess.PIPE,
                          text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            for words in (["inject"], ["config", "probing.torch.profiling=on"],
                          ["config", "probing.memory.sampling=on"],
                          ["eval", "import __main__, probing\n"
                                   "for i in range(3): probing.log(step=i, loss=0.5 * i if i < 2 else float('nan'), "
                                   "note=__main__.LONG)"]):
                done = probe("-t", running.pid, *words)
                assert done.returncode == 0, done.stderr
            wait_for(lambda: jobs.rows("-t", running.pid, "SELECT count(*) AS n FROM python.torch_step")[0]["n"] > 3)
            yield running
        finally:
            running.kill()


@browser_only
@pytest.mark.timeout(180)
def test_hostile_names_are_text_in_every_view(job, tmp_path):
    at = f"target={job.pid}"
    # What each view is opened on, and where a name must be found in it.
    opened = {"now": (f"#/now?{at}", EVIL), "activity": (f"#/activity?{at}&idle=1", EVIL),
              "flame": (f"#/flame?{at}&seconds=1&idle=1", EVIL.partition("'")[0]),
              "sql": (f"#/sql?{at}&q=SELECT%20*%20FROM%20training_logs", EVIL),
              "torch": (f"#/torch?{at}", EVIL), "memory": (f"#/memory?{at}", EVIL),
              "training": (f"#/training?{at}", "The first bad step is 2: loss is nan"),
              "inspect": (f"#/inspect?{at}&tab=frame&depth=1", EVIL), "prompt": (f"#/prompt?{at}", "Code runs"),
              "debug": (f"#/debug?{at}", "There is none"), "runs": ("#/runs", EVIL),
              "settings": (f"#/settings?{at}", "probing.retention_days")}
    assert tuple(opened) == VIEWS
    more = {"variables over ranks": (f"#/inspect?{at}&tab=ranks&name=value", EVIL),
            "modules": (f"#/inspect?{at}&tab=modules", EVIL), "choose": ("#/activity", EVIL)}
    every = [("wide", 1280, "light"), ("phone", 390, "dark")]
    steps = [step for _, width, scheme in every for at_view, text in [*opened.values(), *more.values()]
             for step in (["size", width, 800], ["scheme", scheme], ["open", at_view],
                          ["find", f"main:has-text({text!r})" if "'" not in text else f'main:has-text("{text}")'],
                          ["count", "img"], ["outside"], ["text", "main"], ["axe", "main"])]
    with service(tmp_path / "r") as served:
        found = browse(served, tmp_path, *steps, ["open", f"#/activity?{at}&idle=1"],
                       ["click", f'[role=treeitem]:has-text("{EVIL}")'], ["see", "Waits for"], ["text", "aside"],
                       ["count", "img"], ["outside"], axe=str(AXE))
    names = [f"{view} {size}" for size, *_ in every for view in [*opened, *more]]
    shown = {name: found[8 * i:8 * i + 8] for i, name in enumerate(names)}
    assert {name: of[4] for name, of in shown.items() if of[4]} == {}
    assert {name: of[5] for name, of in shown.items() if of[5]} == {}
    assert {name: of[7] for name, of in shown.items() if of[7]} == {}
    # Marks that turn the direction of the text around them are shown by their number.
    assert not [name for name, of in shown.items() if "\u202e" in of[6] or "\u2066" in of[6]]
    assert "\\u202e" in shown["sql wide"][6] and "\\u202e" in shown["activity wide"][6]
    assert EVIL in found[-3] and found[-2:] == [0, []]
