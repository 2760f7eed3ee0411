"""The page of `probing serve`, in a real browser over a real job: every view, hostile names, a phone, both colour
schemes."""
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse

import jobs
import pytest
from jobs import PROGRAM, probe
from page_kit import AXE, BUILT, VIEWS, browse, browser_only, finish, go, meet, start, wait_for
from serve_kit import Service, service

pytestmark = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")

EVIL = "<img src=x onerror=alert(1)>"
JOB = f'''
import threading, time
EVIL = "{EVIL}"

turns = 0

def wait_for_ever():
    global turns
    own_variable = EVIL + "'; DROP"
    while True:
        turns += 1
        time.sleep(0.05)

def main():
    threading.Thread(target=threading.Event().wait, daemon=True, name=EVIL).start()
    named = {{}}
    exec(compile("def f(g):\\n    g()\\n", EVIL + ".py", "exec"), named)
    code = named["f"].__code__
    named["f"].__code__ = code.replace(co_name=EVIL, **({{"co_qualname": EVIL}} if hasattr(code, "co_qualname") else {{}}))
    print("ready", flush=True)
    named["f"](wait_for_ever)

main()
'''


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with service(tmp_path_factory.mktemp("page") / "r") as s:
        yield s


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    script = tmp_path_factory.mktemp("job") / "page_job.py"
    script.write_text(JOB)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            assert probe("-t", running.pid, "inject").returncode == 0
            yield running
        finally:
            running.kill()


# --- files ---

@pytest.mark.skipif(not BUILT.exists(), reason="the page was not built: Node.js is missing")
def test_the_files_need_no_token_and_say_what_may_run(served):
    html = {"Accept": "text/html", "Accept-Encoding": "gzip"}
    status, headers, body = served.ask("/", token=False, headers=html)
    assert status == 200 and headers["Content-Encoding"] == "gzip" and body[:2] == b"\x1f\x8b"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert served.ask("/", token=False, headers={**html, "If-None-Match": headers["ETag"]})[0] == 304
    assert served.ask("/", token=False, headers={"Accept": "text/html"})[0] == 406
    name = re.search(r"/assets/[\w.-]+\.js", BUILT.read_text())[0]
    status, headers, _ = served.ask(name, token=False, headers=html)
    assert status == 200
    assert "immutable" in headers["Cache-Control"]
    assert headers["Content-Type"].startswith("text/javascript")


def test_what_is_no_file_of_the_page_is_refused(served):
    for path in ("/assets/", "/assets/../token", "/assets/..%2ftoken", "/assets/nothing.js"):
        assert served.ask(path, token=False)[0] == 404
    assert served.ask("/api/v1/service", token=False)[0] == 401
    assert served.json("/api/v1/service")["read_only"] is False


def test_programs_get_the_list_of_what_there_is(served):
    status, headers, body = served.ask("/")
    assert status == 200 and headers["Content-Type"].startswith("text/plain") and b"/api/v1/targets" in body


def test_files_are_read_from_a_folder_for_work_on_them(tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "assets/a.js").write_text("1")
    (tmp_path / "assets/link.js").symlink_to("/etc/hostname")
    monkeypatch.setenv("PROBING_PAGE", str(tmp_path))
    with service(tmp_path / "r") as s:
        assert s.ask("/", token=False, headers={"Accept": "text/html"})[2] == b"mine"
        assert s.ask("/assets/a.js", token=False)[2] == b"1"
        assert s.ask("/assets/link.js", token=False)[0] == 404
        assert s.ask("/assets/../index.html", token=False)[0] == 404


# --- views ---

@browser_only
@pytest.mark.timeout(150)
def test_it_opens_on_the_process_that_it_was_started_for(job, tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    with jobs.python() as other:
        said = probe(job.pid, "inject", "-a", "127.0.0.1:0", env=env).stdout
        try:
            s = Service(None, tmp_path / "r", said.splitlines()[1])
            _, where, shown = browse(s, tmp_path, ["see", "wait_for_ever"], ["evaluate", "location.hash"],
                                     ["text", "main"])
            assert f"target={job.pid}" in where and "page_job.py" in shown and str(other.pid) not in shown
        finally:
            assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0


@browser_only
@pytest.mark.timeout(150)
def test_now_has_a_line_for_the_job(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/now?target={job.pid}"], ["see", "wait_for_ever"],
                   ["text", "main .verdict"],
                   ["text", "table"], ["text", ".foot code"],
                   ["evaluate", "location.search + document.cookie"], ["press", "j"], ["press", "Enter"],
                   ["find", "[role=treeitem]"], ["evaluate", "location.hash"])
    assert "sleeping" in found[2]
    assert f"pid {job.pid}" in found[3] and found[4] == f"probing -t {job.pid} now"
    assert found[5] == ""  # the token is neither in the address nor to be had by a script
    assert found[-1].startswith(f"#/activity?target={job.pid}")


@browser_only
@pytest.mark.timeout(150)
def test_activity_shows_hostile_names_as_text(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/activity?target={job.pid}&idle=1"], ["find", "[role=treeitem]"],
                   ["text", "[role=tree]"], ["click", "[role=treeitem]:has-text('wait_for_ever')"],
                   ["find", "aside td:text-is('own_variable')"], ["text", "aside"], ["count", "img"],
                   ["click", "[role=switch]:has-text('Native')"], ["find", ".fn.nat"], ["text", ".foot code"])
    assert EVIL in found[2] and f"{EVIL}.py:2" in found[2]
    assert f"{EVIL}\\'; DROP" in found[5]
    assert found[6] == 0
    assert found[-1] == f"probing -t {job.pid} backtrace --native"


@browser_only
@pytest.mark.timeout(150)
def test_sql_answers_completes_and_says_what_is_wrong(served, job, tmp_path):
    sql = urllib.parse.quote(f"SELECT '{EVIL}' AS x, range AS n FROM range(100000)")
    found = browse(served, tmp_path, ["open", f"#/sql?target={job.pid}&q={sql}"], ["see", "100,000 rows"],
                   ["text", "[role=table]"], ["count", "[role=table] [role=row]"], ["count", "img"],
                   ["evaluate", "document.querySelector('.rows').scrollTo(0, 1e9)"], ["see", "99999"],
                   ["click", ".seg button:has-text('Chart')"], ["find", "canvas"],
                   ["see", "memory_usage"], ["click", ".edit"], ["press", "Control+a"],
                   ["type", "SELECT rss FROM memory_u"], ["find", ".cm-tooltip-autocomplete"], ["type", "sage"],
                   ["press", "Control+Enter"], ["find", "pre.bad"], ["text", "pre.bad"], may_fail=True)
    assert EVIL in found[2] and found[3] < 100 and found[4] == 0
    assert "\"rss\" not found" in found[-1]


@browser_only
@pytest.mark.timeout(150)
def test_flame_zooms_and_searches(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/flame?target={job.pid}&seconds=1&idle=1"], ["find", ".stage canvas"],
                   ["see", "samples"], ["text", "aside"], ["click", "aside tr:has-text('wait_for_ever')"],
                   ["see", "fit the search"], ["press", "ArrowDown"], ["press", "ArrowDown"], ["press", "Enter"],
                   ["see", "zoom out"], ["press", "Escape"], ["press", "Escape"], ["count", "img"],
                   ["evaluate", "location.hash"])
    assert "wait_for_ever (page_job.py)" in found[3] and EVIL in found[3]
    assert found[-2] == 0 and "find=" not in found[-1]


@browser_only
@pytest.mark.timeout(150)
def test_memory_settings_prompt_and_runs_show_what_the_service_says(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/memory?target={job.pid}"], ["see", "Mappings"],
                   ["see", "Resident memory"], ["text", "main h1"],
                   ["press", "g"], ["press", ","], ["find", "input[aria-label='probing.retention_days']"],
                   ["click", "input[aria-label='probing.retention_days']"], ["press", "Control+a"], ["type", "3"],
                   ["press", "Enter"],
                   ["see", "command"], ["press", "Escape"], ["press", "g"], ["press", "p"], ["find", "textarea"],
                   ["click", "textarea"], ["type", "6 * 7, EVIL"], ["press", "Control+Enter"],
                   ["see", "(42,"], ["text", "[role=log]"], ["press", "Escape"], ["press", "g"], ["press", "r"],
                   ["see", "process"], ["text", "table"], ["count", "img"])
    assert found[3].startswith("It takes ")
    assert EVIL in found[-7] and f"{job.pid}@" in found[-2] and found[-1] == 0
    assert "retention_days" in probe("-t", job.pid, "config").stdout
    [row] = [row for row in json.loads(probe("-t", job.pid, "config", "--json").stdout)
             if row["name"] == "probing.retention_days"]
    assert row["value"] == "3"


@browser_only
@pytest.mark.timeout(150)
def test_inspect_shows_variables_and_objects_as_text(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/inspect?target={job.pid}&tab=frame"], ["see", "own_variable"],
                   ["text", "table"], ["click", "a:text-is('own_variable')"], ["see", "builtins.str"], ["text", "main"],
                   ["evaluate", "location.hash"], ["click", ".seg button:has-text('Over ranks')"],
                   ["click", "a:text-is('own_variable')"], ["see", "own_variable was read from one process"],
                   ["text", "table"], ["count", "img"],
                   ["click", ".seg button:has-text('Tensors')"], ["see", "no tensors of torch"],
                   ["open", f"#/inspect?target={job.pid}&x=exec('EVIL%3D1')"], ["see", "Inspect runs it"])
    assert f"{EVIL}\\'; DROP" in found[2] and EVIL in found[5] and EVIL in found[10] and found[11] == 0
    assert probe("-t", job.pid, "eval", "EVIL").stdout.strip() == repr(EVIL), "a link alone runs nothing"
    assert "x=own_variable%40wait_for_ever" in found[6]


@browser_only
@pytest.mark.timeout(150)
def test_debug_sets_a_log_point_and_serves_a_debugger(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/debug?target={job.pid}"], ["see", "There is none"], ["press", "/"],
                   ["type", "page_job.py:11"], ["press", "Tab"], ["press", "Tab"], ["type", "own={own_variable}"],
                   ["press", "Enter"],
                   ["see", f"own={EVIL}"], ["count", "img"], ["text", "table"], ["click", "button:has-text('Remove')"],
                   ["see", "There is none"],
                   ["click", "button:has-text('Serve a debugger')"], ["see", '"type": "debugpy"'], ["text", "pre.text"],
                   ["click", "button:has-text('Stop listening')"], ["see", "Serve a debugger"])
    assert found[9] == 0 and "page_job.py:11" in found[10]
    [configuration] = json.loads(found[-3])["configurations"]
    assert configuration["connect"]["host"] == "127.0.0.1" and configuration["connect"]["port"] > 1023


PHASES = """
import sys, time
def early():
    sys.stdin.readline()
def late():
    print("late", flush=True)
    time.sleep(1000)
print("ready", flush=True)
early()
late()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that was recorded and has ended: its id."""
    script = tmp_path_factory.mktemp("ended") / "phases_job.py"
    script.write_text(PHASES)
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as running:
        assert running.stdout.readline() == "ready\n"
        assert probe("-t", running.pid, "inject").returncode == 0
        assert probe("-t", running.pid, "record", "--background").returncode == 0
        wait_for(lambda: "early" in probe("-t", running.pid, "query", "SELECT function FROM python.stacks").stdout)
        time.sleep(1.5)  # some of each
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.stdout.readline() == "late\n"
        wait_for(lambda: "late" in probe("-t", running.pid, "query", "SELECT function FROM python.stacks").stdout)
        running.kill()
    return wait_for(lambda: next((row["id"] for row in json.loads(probe("list", "--dead", "--json").stdout)
                                  if row["pid"] == running.pid and row["state"] == "dead"), None))


@browser_only
@pytest.mark.timeout(150)
def test_a_run_that_has_ended_opens_with_its_stacks_and_goes_back(served, ended, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/activity?target={ended}"],
                   ["find", "[role=treeitem]:has-text('late')"], ["click", "input[type=range]"], ["press", "Home"],
                   ["find", "[role=treeitem]:has-text('early')"],
                   ["press", "End"], ["find", "[role=treeitem]:has-text('late')"], ["text", ".foot code"],
                   ["click", "a:has-text('Flame graph of the 10 s before')"], ["find", ".stage canvas"],
                   ["see", "early (phases_job.py)"],
                   ["drag", ".time svg", 0.02, 0.1], ["find", "aside tr:has-text('early'):has-text('100.0')"],
                   ["evaluate", "location.hash"],
                   ["press", "x"], ["click", ".seg button:has-text('Drag sets B')"], ["drag", ".time svg", 0.95, 0.999],
                   ["see", "B against A"], ["text", "aside"], ["text", ".note.odd"],
                   may_fail=True)  # a drag across a moment without a sample, on its way, is refused
    assert f"-t {ended} query" in found[7] and "a=" in found[-7]
    assert re.search(r"late \(phases_job.py\)\s+0.0\s+100.0\s+\+100.0", found[-2])
    assert "late" in found[-2]
    assert "instead of" in found[-1]


@browser_only
@pytest.mark.timeout(150)
def test_a_run_that_has_ended_opens_in_every_view(served, ended, tmp_path):
    says = {"now": "No process that runs fits", "activity": "phases_job.py", "flame": "As SQL", "sql": "rows",
            "torch": "It has ended, and left none", "memory": "At its end it took",
            "training": "The run left no training_logs",
            "inspect": "It has ended: it has no objects", "prompt": "It has ended: no code can run in it",
            "debug": "It has ended: nothing can be set", "runs": ended, "settings": "It has ended: nothing can be set"}
    assert tuple(says) == VIEWS
    found = browse(served, tmp_path, *[step for view, text in says.items()
                                       for step in (["open", f"#/{view}?target={ended}"],
                                                    ["find", f"main:has-text('{text}')"], ["find", ".foot"],
                                                    ["text", ".cost"])])
    assert all("none, it has ended" in cost for cost in found[3::4])


@browser_only
@pytest.mark.timeout(150)
def test_flame_goes_on_live_and_compares_two_processes(served, job, tmp_path):
    with jobs.python() as other:
        found = browse(served, tmp_path, ["open", f"#/flame?target={job.pid}&seconds=1&live=1&idle=1"],
                       ["see", "of the last 2 rounds"], ["click", "[role=switch]:has-text('Live')"],
                       ["choose", "select[aria-label='Compare with']", str(other.pid)], ["see", "B against A"],
                       ["text", "aside"], ["click", ".seg button:has-text('Off CPU')"], ["see", "B against A"],
                       ["count", "img"])
    assert re.search(r"train \([^)]*\)\s+0.0\s+\d+", found[5]) and found[-1] == 0


@browser_only
@pytest.mark.timeout(150)
def test_detach_asks_before_it_takes_anything_away(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/settings?target={job.pid}"], ["click", "button:has-text('Detach')"],
                   ["text", "[role=alertdialog]"], ["press", "Enter"], ["count", "[role=alertdialog]"])
    assert "What it recorded is gone" in found[2] and found[4] == 0  # Cancel has the focus
    [row] = [row for row in json.loads(probe("list", "--json").stdout) if row["pid"] == job.pid]
    assert row["state"] == "probed"


@browser_only
@pytest.mark.timeout(150)
def test_a_process_is_paused_and_goes_on(served, job, tmp_path):
    def turns():
        return int(probe("-t", job.pid, "eval", "turns").stdout)
    browser = start(served, tmp_path, ["open", f"#/activity?target={job.pid}"],
                    ["click", "main button:has-text('Pause')"], ["text", "[role=alertdialog]"],
                    ["click", "[role=alertdialog] button:has-text('Pause')"], ["see", "is paused"],
                    ["text", ".bar .mid"],
                    ["meet", "paused"], ["click", "button:has-text('Go on')"],
                    ["find", "main button:has-text('Pause')"], ["meet", "on"])
    meet(browser, tmp_path, "paused")
    stood = turns()
    time.sleep(0.5)
    assert turns() == stood
    go(tmp_path, "paused")
    meet(browser, tmp_path, "on")
    wait_for(lambda: turns() > stood)
    go(tmp_path, "on")
    found = finish(browser)
    assert "what waits for it waits too" in found[2] and re.search(r"nc 127\.0\.0\.1 \d+$", found[5])


@browser_only
@pytest.mark.timeout(150)
def test_what_is_missing_says_how_to_get_it(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/torch?target={job.pid}"], ["see", "No torch rows"],
                   ["text", ".blank"], ["open", f"#/training?target={job.pid}"], ["see", "Nothing is tracked"],
                   ["text", ".blank"],
                   ["open", "#/activity"], ["see", "Choose a process"], ["press", "?"], ["find", "[role=dialog]"])
    assert f"probing -t {job.pid} config probing.torch.profiling=on" in found[2]
    assert f"probing -t {job.pid} track loss@train lr" in found[5]


@browser_only
@pytest.mark.timeout(150)
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_keeps_the_rules_of_accessibility_and_scrolls_nowhere_sideways(served, job, tmp_path, width):
    """PAGE_PICTURES=FOLDER keeps what it looked like, for a person to look at."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in web")
    steps = [step for view in VIEWS for step in (["open", f"#/{view}?target={job.pid}&seconds=1"], ["find", ".foot"],
                                                 ["axe", *["main"] * (view != "now")], ["wide"],
                                                 ["picture", f"{view}-light-{width}"],
                                                 ["scheme", "dark"], ["axe", *["main"] * (view != "now")],
                                                 ["picture", f"{view}-dark-{width}"], ["scheme", "light"])]
    found = browse(served, tmp_path, *steps, width=width, height=780,
                   pictures=os.environ.get("PAGE_PICTURES"), axe=str(AXE))
    for light_or_dark in (2, 6):
        assert {view: broken for view, broken in zip(VIEWS, found[light_or_dark::9], strict=True) if broken} == {}
    assert {view: n for view, n in zip(VIEWS, found[3::9], strict=True) if n > 0} == {}


@browser_only
@pytest.mark.timeout(150)
def test_every_view_is_reached_and_left_by_keys_alone(served, job, tmp_path):
    keys = {"now": "n", "activity": "a", "flame": "f", "sql": "s", "torch": "t", "memory": "m", "training": "l",
            "inspect": "i", "prompt": "p", "debug": "d", "runs": "r", "settings": ","}
    assert tuple(keys) == VIEWS
    steps = [step for key in keys.values() for step in (["press", "g"], ["press", key], ["find", ".foot"],
                                                        ["evaluate", "location.hash"], ["press", "Escape"])]
    found = browse(served, tmp_path, ["open", f"#/now?target={job.pid}&seconds=1"], *steps, ["press", "g"],
                   ["press", "a"], ["find", "[role=treeitem]"], ["press", "j"], ["press", "j"],
                   ["evaluate", "location.hash"],
                   ["press", "t"], ["find", ".picker .pop a:focus"], ["press", "Enter"], ["gone", ".picker .pop"],
                   ["evaluate", "location.hash"])
    assert [re.match(r"#/(\w+)\?target=(\d+)", at).groups()
            for at in found[4:-11:5]] == [(view, str(job.pid)) for view in VIEWS]
    assert "frame=" in found[-6] and "target=" not in found[-1]


@browser_only
@pytest.mark.timeout(150)
def test_every_view_leads_to_the_query_behind_it(served, job, tmp_path):
    views = [view for view in VIEWS if view != "sql"]
    found = browse(served, tmp_path, *[step for view in views
                                       for step in (["open", f"#/{view}?target={job.pid}&seconds=1"],
                                                    ["find", "main a[href^='#/sql?']"], ["press", "q"],
                                                    ["find", ".sql [role=status] b"],
                                                    ["gone", ".sql .bar button:text-is('Stop'):not([disabled])"],
                                                    ["text", ".sql [role=status] b"], ["evaluate", "location.hash"])])
    assert {view: said for view, said in zip(views, found[5::7], strict=True)
            if not re.match(r"[\d,]+ rows?$", said)} == {}
    assert {view: at for view, at in zip(views, found[6::7], strict=True) if not at.startswith("#/sql?")} == {}


@browser_only
@pytest.mark.timeout(150)
def test_a_view_is_saved_as_one_file_that_needs_nothing_else(served, job, tmp_path):
    found = browse(served, tmp_path, ["open", f"#/activity?target={job.pid}&idle=1"],
                   ["find", "[role=treeitem]:has-text('wait_for_ever')"], ["saved", "S"],
                   ["open", f"#/flame?target={job.pid}&seconds=1&idle=1"], ["find", ".stage canvas"],
                   ["see", "wait_for_ever"], ["saved", "S"])
    for text in (found[2], found[-1]):
        assert "wait_for_ever" in text and "<script" not in text and EVIL not in text and "&lt;img src=x" in text
        assert not re.search(r"(src|href)=\"(?!data:)", text)
        assert "default-src 'none'" in text
        assert f"probing -t {job.pid}" in text
    assert "data:image/png;base64," in found[-1]
