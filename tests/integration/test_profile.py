"""flamegraph: every format, every choice, and targets that end, stop, or whose sampler is killed."""
import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import jobs
import page_kit
import pytest
from jobs import probe, wait_until
from profile_formats import fields, packed
from profile_kit import read_folded

MIXED = """
import threading, time
def spin():
    t = time.monotonic()
    while time.monotonic() - t < 0.01: pass
def rest():
    time.sleep(0.01)
def idle():
    threading.Event().wait()
threading.Thread(target=idle, daemon=True, name="idler \\u00e9").start()
print("ready", flush=True)
while True:
    spin()
    rest()
"""
# A counter that only a running program moves.
COUNTING = """
import mmap, sys
with open({file!r}, "r+b") as f:
    shared = memoryview(mmap.mmap(f.fileno(), 8)).cast("q")
print("ready", flush=True)
while True:
    shared[0] += 1
"""


def flamegraph(pid, out, *options, duration=1):
    done = probe("-t", pid, "flamegraph", "-o", out, "--duration", duration, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def functions(path):
    return {name for stack, _ in read_folded(Path(path).read_text()) for name, _ in stack}


@pytest.fixture(scope="module")
def mixed():
    with jobs.python(MIXED) as job:
        yield job


def test_svg_is_whole_and_says_what_it_is_of(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    root = ET.fromstring(text)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("spin (train-") for title in titles)
    assert any(title.startswith("[waiting in ") for title in titles)
    for part in ("samples at 100 Hz", "refused", "truncated", "prefers-color-scheme: dark", "id=\"search\"",
                 Path(mixed.script).name):
        assert part in text, part
    assert "http" not in text.replace("http://www.w3.org/", ""), "it must not fetch anything"
    assert "hottest: " in said and "refused" in said and "--idle shows" in said


def test_html_has_the_hottest_functions(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and "Hottest functions" in text and "<svg" in text
    assert text.index('<td class="c">rest</td>') and text.index('<td class="c">spin</td>')


LINES = """
import time
def work(n):
    if n:
        return work(n - 1)
    end = time.monotonic() + 0.02
    while time.monotonic() < end: pass  # <b>&"
    time.sleep(0.02)
named = compile("def rest():\\n    end = time.monotonic() + 0.02\\n    while time.monotonic() < end: pass\\n",
                "<script>alert(1)</script>", "exec")
exec(named)
print("ready", flush=True)
while True:
    work(3)
    rest()
"""


def heat(path):
    """{line: [self, waiting, total]} of the first file with a text, and the page."""
    page = ET.fromstring(re.sub("<!DOCTYPE html>|<meta[^>]*>", "", path.read_text()))
    table = page.find(".//table[@class='source']")
    shares = {}
    for row in table.findall("tr"):
        cells = [cell.text or "" for cell in row.findall("td")]
        if len(cells) == 5:
            shares[int(cells[3])] = [*(float(cell.rstrip("%") or 0) for cell in cells[:3]), cells[4]]
    return shares, path.read_text()


def test_a_heat_map_has_the_share_of_each_line_beside_its_text(tmp_path):
    with jobs.python(LINES) as job:
        flamegraph(job.pid, tmp_path / "a.lines.html", "--rate", 500, duration=2)
        code = Path(job.script).read_text().splitlines()
    shares, page = heat(tmp_path / "a.lines.html")
    assert [text for *_, text in shares.values()] == [code[number - 1] for number in shares]
    by_text = {text.strip(): share for *share, text in shares.values()}
    assert by_text["time.sleep(0.02)"][0] > 15
    assert by_text["time.sleep(0.02)"][0] == pytest.approx(by_text["time.sleep(0.02)"][1], abs=1)
    busy = by_text['while time.monotonic() < end: pass  # <b>&"']
    assert busy[0] > 10 and busy[1] < 5
    # A recursion counts once for each stack; the caller is the innermost only until the call has its frame.
    assert by_text["return work(n - 1)"][0] < 2
    assert 30 < by_text["return work(n - 1)"][2] <= by_text["work(3)"][2] + 0.2 < 100
    assert abs(sum(share[0] for share in by_text.values()) + rest_of(page) - 100) < 2
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "The text of this file could not be read." in page


def rest_of(page):
    """The share of the lines of the file without a text."""
    return sum(float(share) for share in re.findall(
        r'<td class="n">([\d.]+)%</td>', page[page.index("could not be read"):].split("</table>")[0]))


def test_a_heat_map_of_a_process_that_ended_has_its_text(tmp_path):
    with jobs.python("import time\nprint('ready', flush=True)\nend = time.monotonic() + 1\n"
                     "while time.monotonic() < end: pass\n") as job:
        flamegraph(job.pid, tmp_path / "a.lines.html", duration=30)
    shares, _ = heat(tmp_path / "a.lines.html")
    assert shares[4][3] == "while time.monotonic() < end: pass" and shares[4][0] > 50


def test_speedscope_json_is_consistent(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "a.json", "--idle")
    profile = json.loads((tmp_path / "a.json").read_text())
    names = [frame["name"] for frame in profile["shared"]["frames"]]
    assert profile["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {"spin", "rest", "idle"} <= set(names)
    assert any("idler \u00e9" in thread["name"] for thread in profile["profiles"])
    for thread in profile["profiles"]:
        assert len(thread["samples"]) == len(thread["weights"])
        assert all(0 <= i < len(names) for stack in thread["samples"] for i in stack)
        assert abs(sum(thread["weights"]) - thread["endValue"]) < 1 and thread["endValue"] > 700


def test_pprof_holds_every_sample(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.pb.gz")
    message = fields(gzip.decompress((tmp_path / "a.pb.gz").read_bytes()))
    strings = [value.decode() for number, value in message if number == 6]
    assert strings[0] == "" and {"spin", "rest", "samples", "wall", "nanoseconds"} <= set(strings)
    locations = {dict(fields(value))[1] for number, value in message if number == 4}
    total = 0
    for number, value in message:
        if number == 2:
            parts = fields(value)
            assert packed(parts[0][1]) and set(packed(parts[0][1])) <= locations
            total += packed(parts[1][1])[0]
    assert f" {total} samples" in said


def test_go_reads_the_pprof_file(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "a.pb.gz")
    try:
        done = subprocess.run(["go", "tool", "pprof", "-raw", str(tmp_path / "a.pb.gz")], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True,
                              env={**os.environ, "HOME": str(tmp_path)})
    except FileNotFoundError:
        pytest.skip("go is not installed (Debian: golang-go)")
    assert done.returncode == 0, done.stderr
    assert "samples/count wall/nanoseconds" in done.stdout
    assert "spin" in done.stdout
    assert "PeriodType: wall nanoseconds" in done.stdout


def test_speedscope_reads_what_we_write(mixed, tmp_path):
    page = Path(__file__).resolve().parent.parent.parent / "build/speedscope/release/index.html"
    chromium = next((p for p in ("/usr/bin/chromium", "/usr/bin/google-chrome") if os.access(p, os.X_OK)), None)
    if not page.exists() or not chromium:
        pytest.skip("chromium is not installed" if page.exists() else "speedscope is not there: scripts/setup.sh test")
    import base64
    for name in ("a.json", "a.folded"):
        flamegraph(mixed.pid, tmp_path / name)
        load = tmp_path / f"{name}.js"
        load.write_text(f"speedscope.loadFileFromBase64({name!r}, "
                        f"{base64.b64encode((tmp_path / name).read_bytes()).decode()!r})")
        done = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                               "--no-first-run", "--disable-sync",
                               "--disable-background-networking", "--disable-component-update",
                               f"--user-data-dir={tmp_path}/chromium",
                               "--virtual-time-budget=8000", "--dump-dom", f"{page.as_uri()}#localProfilePath={load}"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=60)
        assert "Left Heavy" in done.stdout and "Something went wrong" not in done.stdout, name


def firefox_profiler(home, *command):
    """What the Firefox Profiler's own command line answers about the file that it has loaded."""
    program = Path(__file__).resolve().parent.parent.parent / "build/firefoxprofiler/dist/profiler-cli.js"
    done = subprocess.run([page_kit.find_node(), str(program), *command],
                          env={**os.environ, "PROFILER_CLI_SESSION_DIR": home}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_firefox_profiler_reads_what_we_write(mixed, tmp_path):
    if not page_kit.find_node():
        pytest.skip("Node.js is missing")
    flamegraph(mixed.pid, tmp_path / "a.gecko.json", "--idle", "--rate", 200)
    flamegraph(mixed.pid, tmp_path / "a.folded", "--idle")
    written = json.loads((tmp_path / "a.gecko.json").read_text())
    found = {}
    with tempfile.TemporaryDirectory() as home:  # a short path: a socket is in it
        try:
            firefox_profiler(home, "load", str(tmp_path / "a.gecko.json"))
            for thread in json.loads(firefox_profiler(home, "thread", "list", "--json"))["threads"]:
                firefox_profiler(home, "thread", "select", thread["threadHandle"])
                answer = json.loads(firefox_profiler(home, "thread", "functions", "--include-idle", "--json"))
                found[thread["name"]] = {f["name"]: (f["selfSamples"], f["totalSamples"]) for f in answer["functions"]}
        finally:
            firefox_profiler(home, "stop", "--all")
    assert set(found) == {"MainThread", "idler \u00e9"}
    for thread in written["threads"]:
        functions, all_samples = found[thread["name"]], sum(thread["samples"]["weight"])
        assert all_samples > 50
        assert sum(own for own, _ in functions.values()) == all_samples
    main = found["MainThread"]
    assert main["<module>"][1] == max(total for _, total in main.values())
    assert abs(main["spin"][1] - main["rest"][1]) < 0.5 * main["<module>"][1]
    assert found["idler \u00e9"]["idle"][1] > 50 and "spin" not in found["idler \u00e9"]


def test_perfetto_has_a_call_stack_for_every_sample(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.perfetto")
    samples, known = 0, set()
    for number, packet in fields((tmp_path / "a.perfetto").read_bytes()):
        assert number == 1
        for field, value in fields(packet):
            if field == 12:
                known |= {dict(fields(stack))[1] for kind, stack in fields(value) if kind == 7}
            if field == 54:
                used = [iid for kind, iid in fields(value) if kind == 1]
                assert set(used) <= known
                samples += len(used)
    assert f" {samples} samples" in said


@pytest.mark.alone
def test_cpu_leaves_out_what_waits(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "wall.folded", "--rate", 500)
    flamegraph(mixed.pid, tmp_path / "cpu.folded", "--rate", 500, "--cpu")

    def share(path, name):
        stacks = read_folded(path.read_text())
        return sum(n for stack, n in stacks if stack[-1][0] == name) / sum(n for _, n in stacks)
    assert 0.3 < share(tmp_path / "wall.folded", "rest") < 0.8
    assert share(tmp_path / "cpu.folded", "rest") < 0.15
    assert share(tmp_path / "cpu.folded", "spin") > 0.8


def test_gil_shows_only_who_holds_it(tmp_path, mixed):
    flamegraph(mixed.pid, tmp_path / "gil.folded", "--gil", "--rate", 500)
    stacks = read_folded((tmp_path / "gil.folded").read_text())
    assert sum(n for stack, n in stacks if stack[-1][0] == "spin") > 0.8 * sum(n for _, n in stacks)


def test_idle_threads_and_thread_levels(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "a.folded")
    flamegraph(mixed.pid, tmp_path / "b.folded", "--idle", "--threads")
    assert "idle" not in functions(tmp_path / "a.folded")
    assert "idle" in functions(tmp_path / "b.folded")
    assert f"MainThread ({mixed.pid});" in (tmp_path / "b.folded").read_text()


def test_lines_are_those_that_run(mixed, tmp_path):
    flamegraph(mixed.pid, tmp_path / "a.folded", "--lines")
    lines = {(name, line) for stack, _ in read_folded((tmp_path / "a.folded").read_text()) for name, line in stack}
    assert ("rest", 7) in lines and ("<module>", 13) in lines and ("<module>", 14) in lines


def test_native_frames_stand_among_python_frames(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.folded", "--native")
    stacks = [[name for name, _ in stack] for stack, _ in read_folded((tmp_path / "a.folded").read_text())]
    slept = [stack for stack in stacks if "rest" in stack
             and any("nanosleep" in name or "select" in name for name in stack)]
    assert slept, said
    assert all(stack.index("rest") < len(stack) - 1 for stack in slept)


def test_the_interpreters_own_frames_are_folded_unless_asked_for(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.folded", "--native")
    assert not any(name.startswith(("_PyEval_", "pymain_", "Py_RunMain")) for name in functions(tmp_path / "a.folded"))
    assert {"spin", "rest", "<module>"} <= functions(tmp_path / "a.folded") and "--interpreter shows" in said
    flamegraph(mixed.pid, tmp_path / "b.folded", "--native", "--interpreter")
    assert any(name.startswith("pymain_") or name == "Py_RunMain" for name in functions(tmp_path / "b.folded"))


def test_no_stop_traces_nothing(mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.folded", "--no-stop", "--rate", 200)
    assert "stopped" not in said and "refused" in said


def test_ctrl_c_ends_early_and_writes(mixed, tmp_path):
    process = subprocess.Popen([str(jobs.PROGRAM), "-t", str(mixed.pid), "flamegraph", "-o", str(tmp_path / "a.folded"),
                                "--duration", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    time.sleep(1 * jobs.SLOW)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10 * jobs.SLOW)
    assert process.returncode == 0, err
    assert "spin" in functions(tmp_path / "a.folded") and "hottest" in out


def test_an_output_that_names_no_format_is_refused_at_once(mixed):
    done = probe("-t", mixed.pid, "flamegraph", "-o", "x.docx", timeout=5)
    assert done.returncode == 2 and ".svg" in done.stderr


def test_a_process_that_ends_meanwhile_leaves_its_profile(tmp_path):
    with jobs.python("import time\nprint('ready', flush=True)\ndef last():\n    time.sleep(1.5)\nlast()\n") as job:
        flamegraph(job.pid, tmp_path / "a.folded", duration=20)
    assert "last" in functions(tmp_path / "a.folded")


def test_a_stopped_process_is_sampled_and_stays_stopped(tmp_path):
    with jobs.python() as job:
        wait_until(lambda: "train (" in probe("-t", job.pid, "backtrace").stdout)  # not still on its way there
        os.kill(job.pid, signal.SIGSTOP)
        flamegraph(job.pid, tmp_path / "a.folded", "--rate", 200)
        assert Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        assert "train" in functions(tmp_path / "a.folded")
        os.kill(job.pid, signal.SIGCONT)
        wait_until(lambda: Path(f"/proc/{job.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T")


@pytest.mark.parametrize("options", [[], ["--native"]], ids=["python", "native"])
def test_a_sampler_that_is_killed_leaves_nothing_stopped(options, tmp_path):
    file = tmp_path / "counter"
    file.write_bytes(bytes(8))
    with jobs.python(COUNTING.format(file=str(file))) as job:
        for i in range(20):
            process = subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "flamegraph", "-o",
                                        str(tmp_path / "x.svg"), "--rate", "20000",
                                        *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.15 + i * 0.007)
            process.kill()
            process.wait()
            before = file.read_bytes()
            wait_until(lambda: file.read_bytes() != before, 5, "progress")
        assert "TracerPid:\t0" in Path(f"/proc/{job.pid}/status").read_text()


def test_signals_reach_a_process_that_is_sampled(tmp_path):
    code = ("import signal, time\nn = 0\ndef tick(*_):\n    global n\n    n += 1\nsignal.signal(signal.SIGALRM, tick)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)\nprint('ready', flush=True)\n"
            "end = time.monotonic() + 4\n"
            "while time.monotonic() < end: pass\nprint('ticks', n, time.process_time(), flush=True)\ntime.sleep(60)\n")
    with jobs.python(code) as job:
        flamegraph(job.pid, tmp_path / "a.folded", "--rate", 1000, duration=3)
        wait_until(lambda: "ticks" in job.output)
        ticks, ran = (float(word) for word in job.output.split()[-2:])
        assert ticks > 0.5 * ran / 0.005  # signals that come while it has no CPU are one


def may_interrupt():
    """Whether this user may run a program in an interrupt: CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN."""
    held = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
    return held >> 21 & 1 or (held >> 38 & 1 and held >> 39 & 1)


@pytest.mark.alone
@pytest.mark.skipif(not may_interrupt(), reason="needs CAP_BPF and CAP_PERFMON")
@pytest.mark.parametrize("options", [[], ["--no-stop"], ["--gil"]])
def test_a_thread_that_runs_is_not_stopped(options, mixed, tmp_path):
    said = flamegraph(mixed.pid, tmp_path / "a.folded", "--rate", 500, *options)
    shares = {name: float(share) for name, share in re.findall(r"(\w+) ([\d.]+)%[,;]", said)}
    assert shares["interrupted"] > 0 and shares.get("stopped", 0) < 3, said


@pytest.mark.alone
@pytest.mark.skipif(not may_interrupt(), reason="needs CAP_BPF and CAP_PERFMON")
def test_a_stack_that_does_not_fit_is_hardly_ever_copied_in_vain(tmp_path):
    """A copy in vain delays the stop after it, so that short functions are missed."""
    code = ("import sys\nsys.setrecursionlimit(4000)\ndef down(n):\n    if n: down(n - 1)\n"
            "    print('ready', flush=True)\n    while True: sum(range(300))\ndown(1500)")
    with jobs.python(code) as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--rate", 500, "--duration", 2,
                     env={**os.environ, "PROBING_TRACE_SAMPLES": "1"})
    tried = re.findall(r" interrupt\((yes|no|paused)\)", done.stderr)
    runs = [(outcome, len(list(run))) for outcome, run in itertools.groupby(tried)]
    assert runs and "yes" not in tried, runs
    # Before its first read a thread is not copied: the first run is as long as that takes.
    assert runs[0][0] == "no" and all(n <= 8 for outcome, n in runs[1:] if outcome == "no"), runs
    assert all(n >= 128 for outcome, n in runs[:-1] if outcome == "paused"), runs


def test_children_are_sampled_on_request(tmp_path):
    code = ("import subprocess, sys, time\nprint('ready', flush=True)\n"
            "subprocess.Popen([sys.executable, '-c', 'def child():\\n    while True: pass\\nchild()'])\n"
            "time.sleep(60)\n")
    with jobs.python(code) as job:
        flamegraph(job.pid, tmp_path / "a.folded", "--subprocesses", duration=3)
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    text = (tmp_path / "a.folded").read_text()
    assert "child (<string>)" in text and f"pid {children[0]};" in text


def test_a_difference_names_what_grew(tmp_path):
    (tmp_path / "a.folded").write_text("main (m.py);work (m.py) 90\nmain (m.py);load (m.py) 10\n")
    (tmp_path / "b.folded").write_text("main (m.py);work (m.py) 50\nmain (m.py);load (m.py) 50\n")
    done = probe("flamegraph", "--diff", tmp_path / "a.folded", tmp_path / "b.folded", "-o", tmp_path / "d.svg")
    assert done.returncode == 0, done.stderr
    assert "+40.0 points  load (m.py): 10.0% before, 50.0% after" in done.stdout
    ET.fromstring((tmp_path / "d.svg").read_text())
    assert "10.00% before, 50.00% after: +40.00 points" in (tmp_path / "d.svg").read_text()
    done = probe("flamegraph", "--diff", tmp_path / "a.folded", tmp_path / "b.folded", "-o", tmp_path / "d.folded")
    assert "main (m.py);load (m.py) 10 50" in (tmp_path / "d.folded").read_text()


@pytest.mark.parametrize("words", [["--diff", "a.folded"], ["--rate", "0"], ["--rate", "x"], ["--duration", "x"],
                                   ["--cpu", "--wall"]])
def test_wrong_calls_are_told(words, mixed):
    target = [] if "--diff" in words else ["-t", mixed.pid]
    done = probe(*target, "flamegraph", *words, timeout=5)
    assert done.returncode == 2 and done.stderr.startswith("probing: flamegraph: ")


def test_a_process_without_python_has_native_stacks_only(tmp_path):
    with jobs.start("/bin/sleep", "60") as job:
        done = probe("-t", job.pid, "flamegraph", "-o", tmp_path / "a.folded", "--duration", "1")
        assert done.returncode == 1 and "--native" in done.stderr
        flamegraph(job.pid, tmp_path / "a.folded", "--native")
        assert "nanosleep" in (tmp_path / "a.folded").read_text()


FEEDS = """
import queue, threading, time
work, done = queue.Queue(), []
def feed():
    while True:
        done.append(work.get())
for _ in range(4):
    threading.Thread(target=feed, daemon=True).start()
def crunch():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        sum(range(2000))
print("ready", flush=True)
while True:
    crunch()
    for _ in range(4):
        work.put(1)
"""


def test_the_hottest_place_is_not_where_threads_wait_for_work(tmp_path):
    with jobs.python(FEEDS) as job:
        said = probe(job.pid, "flamegraph", "--duration", "2s", "-o", tmp_path / "f.svg").stdout
        hottest = next(line for line in said.splitlines() if "hottest: " in line)
        assert hottest.strip().startswith("hottest: crunch"), said


LOOP = """
import asyncio, time
def blocks():
    time.sleep(0.1)
def small():
    time.sleep(0.001)
async def often():
    while True:
        await asyncio.sleep(0.4)
        blocks()
async def others():
    while True:
        await asyncio.get_running_loop().run_in_executor(None, small)
        await asyncio.sleep(0.1)
async def main():
    print("ready", flush=True)
    await asyncio.gather(often(), others(), others())
asyncio.run(main())
"""


def test_the_hottest_place_of_a_loop_is_what_blocks_it(tmp_path):
    with jobs.python(LOOP) as job:
        said = probe(job.pid, "flamegraph", "--duration", "3s", "-o", tmp_path / "f.svg").stdout
        assert "hottest: blocks" in said, said
