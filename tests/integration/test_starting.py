"""Starting with a program: PROBING=..., the .pth file, `probing launch`, children. On every interpreter that can be
had."""
import json
import os
import re
import socket
import subprocess
import urllib.request
from pathlib import Path

import interpreters
import jobs
import pytest
import roots
from starting_kit import site, site_of_tests

PYTHON = [pytest.param(path, id=interpreters.interpreter_id(path)) for path in interpreters.INTERPRETERS]
NEWEST = interpreters.INTERPRETERS[-1]
# Whether this process and its children have an agent: its thread is there.
# A thread of the agent may end meanwhile.
THERE = """import os
def there():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open("/proc/self/task/" + task + "/comm").read().strip())
        except OSError:
            pass
    return "probing" in names
"""


def run(*command, env=None, status=0, stderr="", **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=60,
                          env={**{k: v for k, v in os.environ.items() if k not in ("PROBING", "PROBE")}, **(env or {})},
                          **options)
    assert done.returncode == status, done.stderr
    assert re.fullmatch(stderr, done.stderr), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("python", PYTHON)
def test_values(python, tmp_path):
    program, init = site(tmp_path, python), tmp_path / "begin.py"
    init.write_text("import sys; sys.begun = __name__\n")
    code = (THERE + "import subprocess, sys; print(there(), getattr(sys, 'begun', None), 'PROBING' in os.environ, "
                    "flush=True)\n"
            "if len(sys.argv) == 1: subprocess.check_call([sys.executable, __file__, 'child'])\n")
    script = tmp_path / "train.py"
    script.write_text(code)

    def values(**env):
        return [line for line in zip(*[iter(run(program, script, env=env))] * 3)]

    off, on = ("False", "None", "False"), ("True", "None", "False")
    assert values() == [off, off]
    assert values(PROBING="0") == [("False", "None", "True")] * 2
    assert values(PROBING="1") == [on, off]
    assert values(PROBE="1") == [on, off]
    assert values(PROBING="2") == [("True", "None", "True")] * 2
    assert values(PROBING="regex:train[.]py child$") == [("False", "None", "True"), ("True", "None", "True")]
    assert values(PROBING=f"init:{init}") == [("True", "__probing__", "False"), off]
    assert values(PROBING=str(init)) == [("True", "__probing__", "False"), off]
    assert values(PROBING=f"2,init:{init}") == [("True", "__probing__", "True")] * 2


def test_an_error_of_ours_is_a_line_in_a_file_and_none_of_the_program(tmp_path):
    program, bad = site(tmp_path, NEWEST), tmp_path / "bad.py"
    bad.write_text("1 / 0\n")
    for value, said in [("nonsense", r"probing: PROBING=nonsense is not understood .*: off\n"),
                        (str(bad), r"probing: .*bad.py: ZeroDivisionError: .*\n"),
                        ("init:/nowhere.py", r"probing: /nowhere.py: FileNotFoundError: .*\n")]:
        log = tmp_path / "log"
        assert run(program, "-c", "print('ran')", env={"PROBING": value, "PROBING_LOG": str(log)}) == ["ran"]
        assert re.fullmatch(said.replace("probing: ", "probing: process [0-9]+: ", 1), log.read_text())
        log.unlink()
        assert run(program, "-c", "import probing; print(len(probing.messages()), flush=True)",
                   env={"PROBING": value, "PROBING_LOG": "/proc/nowhere"}) == ["1"]
    for env in ({"PROBING_LIBRARY": "/dev/null"}, {"PROBING_DIR": "/proc/nowhere"}):
        assert run(program, "-c", "print('ran')", env={"PROBING": "1", **env}) == ["ran"]


CHILDREN = THERE + """
import multiprocessing, os, subprocess, sys
def child(queue):
    import probing
    probing.table("children", {"pid": int}).append(os.getpid())
    queue.put((there(), probing.is_enabled()))
if __name__ == "__main__":
    import probing
    for how in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(how)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(how, *queue.get(timeout=30))
        process.join()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if there() else 1)
    print("os.fork", os.waitpid(pid, 0)[1])
    print("subprocess", subprocess.check_output([sys.executable, "-c", %r]).decode().strip())
    print("here", there(), probing.is_enabled())
""" % (THERE + "print(there())")


@pytest.mark.parametrize("python", [each for each in PYTHON if interpreters.version_of(each.values[0]) >= (3, 7)][::2])
def test_children(python, tmp_path):
    program, script = site(tmp_path, python), tmp_path / "train.py"
    script.write_text(CHILDREN)
    out = run(program, "-W", "ignore", script, env={"PROBING": "2"})
    assert out == "fork True True spawn True True forkserver True True os.fork 0 subprocess True here True True".split()
    out = run(program, "-W", "ignore", script, env={"PROBING": "1"})
    # With 1 a child has none; what records there (import probing and a table) starts one, as anywhere.
    assert out[-6:] == "256 subprocess False here True True".split()[-6:] or out[-5:] == (
        "256 subprocess False here True True").split()[-5:]


def test_ways_to_run_a_program(tmp_path):
    program = site(tmp_path, NEWEST)
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(THERE + "print(there())")
    (package / "__main__.py").write_text(THERE + "print(there())")
    env = {"PROBING": "1"}
    assert run(program, "-m", "pkg.train", env=env, cwd=tmp_path) == ["True"]
    assert run(program, package, env=env) == ["True"]
    assert run(program, "-I", package / "train.py", env=env) == ["True"]
    assert run(program, "-E", "-s", package / "train.py", env=env) == ["True"]
    # no site-packages: no .pth files. inject does it
    assert run(program, "-S", package / "train.py", env=env) == ["False"]
    subprocess.run([NEWEST, "-m", "zipapp", package, "-o", tmp_path / "train.pyz"], check=True)
    assert run(program, tmp_path / "train.pyz", env=env) == ["True"]


def test_pytest(tmp_path):
    (tmp_path / "test_there.py").write_text(THERE + "def test_there():\n    assert there() and 'PROBING' not in "
                                                    "os.environ\n")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_there.py"]
    out = run(site_of_tests(tmp_path), *words, env={"PROBING": "1"})
    assert out[-4:-1] == ["1", "passed", "in"], out


def test_torchrun(tmp_path, needs_torch):
    """The workers have agents of their own, each of which knows its rank."""
    script = tmp_path / "train.py"
    script.write_text("import sys, time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)\n")
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
             "127.0.0.1:0", script]
    with jobs.start(site_of_tests(tmp_path), *words, env={"PROBING": "2"}) as job:
        # The children of this process alone: another test's workers have another script.
        workers = lambda: [int(pid) for pid in subprocess.run(["pgrep", "-P", str(job.pid), "-f", str(script)],
                                                              stdout=subprocess.PIPE).stdout.split()]
        try:
            jobs.wait_until(lambda: job.output.count("ready") == 2 or not job.alive(), 120, "the workers")
            assert job.alive(), job.output
            found = [run_of(pid) for pid in [job.pid, *workers()]]
            assert [each.get("RANK") for each in found] == [None, *sorted(each["RANK"] for each in found[1:])], found
            assert len(found) == 3, found
            assert {each["RANK"] for each in found[1:]} == {"0", "1"}
        finally:
            for pid in workers():
                os.kill(pid, 9)


def run_of(pid):
    """The environment of a process that has an agent; fails where there is none."""
    tasks = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    assert "probing" in tasks, tasks
    return dict(word.split("=", 1) for word in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in word)


@pytest.mark.parametrize("python", PYTHON)
def test_launch_needs_nothing_installed(python, tmp_path):
    script, own = tmp_path / "train.py", tmp_path / "own"
    script.write_text(THERE + "import sys, probing\nprint(there(), getattr(sys, 'own', None), "
                              "os.environ.get('PYTHONPATH'), 'PROBING' in os.environ, *sys.argv[1:])\n"
                      "print(any(path.endswith('launch') for path in sys.path), sys.modules['sitecustomize'].__file__ "
                      "if 'sitecustomize' in sys.modules else None)\n"
                      "sys.exit(3)")
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = 'own'\n")
    out = run(jobs.PROGRAM, "launch", "--", python, script, "--lr", "0.1", env={"PYTHONPATH": str(own)}, status=3)
    assert out == ["True", "own", str(own), "False", "--lr", "0.1", "False", str(own / "sitecustomize.py")]
    code = THERE + "import subprocess, sys; print(there()); subprocess.check_call([sys.executable, '-c', %r])" % (
        THERE + "print(there())")
    assert run(jobs.PROGRAM, "launch", "--children", "--", python, "-c", code) == ["True", "True"]
    assert run(jobs.PROGRAM, "launch", "--", python, "-c", code) == ["True", "False"]


def test_launch_of_what_is_not_there():
    run(jobs.PROGRAM, "launch", "--", "/nowhere/python", status=1, stderr="probing: launch: cannot run "
                                                                          "/nowhere/python: No such file "
                                                                          "or directory\n")
    run(jobs.PROGRAM, "launch", status=2, stderr="(?s).*COMMAND.*")


def one_agent(job):
    """A thread of the agent's is called as the one that made it until it has a name of its own."""
    jobs.wait_until(lambda: job.threads().count("probing") == 1, what="one agent")


def test_there_is_one_agent_whatever_came_first(tmp_path):
    """Started by the program and injected, in both orders: one agent, one run, and Python code finds it."""
    program = site(tmp_path, NEWEST)
    wait = "import sys, time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)\n"
    runs = lambda pid: [path for root in ("/dev/shm", "/tmp", "/var/tmp")
                        for path in Path(root).glob(f"probing-*/*-{pid}-*")]
    with jobs.python("import probing\nprobing.start()\n" + wait, interpreter=program) as job:
        assert jobs.probe("-t", job.pid, "inject").returncode == 0
        assert len(runs(job.pid)) == 1
        one_agent(job)
    with jobs.python(wait, interpreter=program) as job:
        assert jobs.probe("-t", job.pid, "inject").returncode == 0
        code = "import probing; probing.table('late', {'a': int}).append(5); print(probing.is_enabled())"
        assert jobs.probe("-t", job.pid, "eval", code).stdout == "True\n"
        assert jobs.probe("-t", job.pid, "query", "--format", "csv", "SELECT a FROM late").stdout == "a\n5\n"
        assert len(runs(job.pid)) == 1
        one_agent(job)


def check_late(pid):
    code = ("import probing; probing.table('late', {'a': int}).append(5); probing.log(loss=0.5)\n"
            "with probing.span('late'): pass")
    done = jobs.probe("-t", pid, "eval", code)
    assert (done.stdout, done.stderr) == ("", "")
    assert jobs.probe("-t", pid, "query", "--format", "csv", "SELECT a, (SELECT loss FROM training_logs) AS "
                                                             "loss FROM late").stdout == "a,loss\n5,0.5\n"
    assert jobs.probe("-t", pid, "query", "--format", "csv", "SELECT name, duration_ms > 0 AS ended FROM "
                                                             "python.trace_event").stdout == "name,ended\nlate,true\n"


@pytest.mark.parametrize("python", PYTHON)
def test_late_code_finds_the_package_where_it_is_not_installed(python):
    with jobs.python(interpreter=python) as job:
        check_late(job.pid)


BOTH = """
import threading, time
def work(n):
    return n + 1
def waits():
    threading.Event().wait()
def train():
    i = 0
    while True:
        i = work(i)
        time.sleep(0.002)
threading.Thread(target=waits, name="waits", daemon=True).start()
print("ready", flush=True)
train()
"""
SAYS = """import probing
steps = probing.table("steps", {"i": int, "text": str})
steps.append(1, "one"); steps.append(2, None)
probing.log(epoch=1, loss=0.25)
probing.step(7)
with probing.span("outer", phase="train", batch=3):
    with probing.span("inner"):
        probing.event("note", path="a.pt")
with probing.trace("epochs"): pass
probing.register("live", function=lambda: [{"k": 5}])
"""


def everything(job):
    """What is found of a process in which the same was done."""
    def ask(sql):
        done = jobs.probe("-t", job.pid, "query", "--format", "json", sql)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    assert jobs.probe("-t", job.pid, "eval", SAYS).stderr == ""
    done = jobs.probe("-t", job.pid, "trace", "work", "--args", "--duration", "20s")
    assert done.returncode == 0, done.stderr
    jobs.wait_until(lambda: ask("SELECT count(*) AS n FROM python.trace_event WHERE record_type = 'call' AND "
                                "ended IS NOT NULL")[0]["n"] > 2, 20, "calls")
    assert jobs.probe("-t", job.pid, "trace", "--stop").returncode == 0
    done = jobs.probe("-t", job.pid, "watch", "i@train", "--duration", "20s")
    assert done.returncode == 0, done.stderr
    jobs.wait_until(lambda: ask("SELECT count(*) AS n FROM python.variables")[0]["n"] > 2, 20, "changes")
    assert jobs.probe("-t", job.pid, "watch", "--stop").returncode == 0
    jobs.wait_until(lambda: ask("SELECT count(*) AS n FROM memory_usage")[0]["n"] > 0, 20, "memory")
    around = "(SELECT p.name FROM python.trace_event p WHERE p.span_id = t.parent_id)"
    return {
        "columns": ask("SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns "
                       "ORDER BY ALL"),
        "tables": ask("SELECT name FROM probing.tables ORDER BY 1"),
        "said": ask(f"SELECT record_type, name, phase, step, attributes, {around} AS parent, ended IS NULL AS is_open "
                    f"FROM python.trace_event t "
                    "WHERE record_type <> 'call' ORDER BY t.timestamp, name"),
        "calls": ask("SELECT DISTINCT name, location, json_extract(arguments, '$.n') IS NOT NULL AS has FROM "
                     "python.trace_event WHERE record_type = 'call'"),
        "changes": ask("SELECT DISTINCT name, function FROM python.variables"),
        "rows": ask("SELECT i, text, (SELECT k FROM live) AS k, (SELECT loss FROM training_logs) AS loss, (SELECT "
                    "count(*) FROM epochs) AS n FROM steps ORDER BY i"),
        "stacks": ask("SELECT DISTINCT func, file FROM python.backtrace WHERE func IN ('train', 'waits') ORDER BY 1"),
        "probes": [line.split()[2:4] for line in jobs.probe("-t", job.pid, "probes").stdout.splitlines()],
        "settings": jobs.probe("-t", job.pid, "config").stdout,
    }


@pytest.mark.parametrize("python", [PYTHON[0], PYTHON[-1]])
def test_an_agent_that_comes_late_finds_what_one_from_the_start_does(python, tmp_path):
    """The same program started with the agent, and one that it is injected into while it runs."""
    script, program = tmp_path / "train.py", site(tmp_path, python)
    script.write_text(BOTH)
    found = []
    for env in ({"PROBING": "1"}, {}):
        with jobs.start(program, script, ready="ready", env=env) as job:
            if not env:
                assert jobs.probe("-t", job.pid, "inject").returncode == 0
            assert "probing" in job.threads()
            found.append(everything(job))
            assert job.alive() and job.output == "ready\n", job.output
    assert found[0] == found[1]
    assert len(found[0]["columns"]) > 100
    assert [row["name"] for row in found[0]["said"]] == ["outer", "inner", "note", "epochs"]
    assert found[0]["rows"] == [{"i": 1, "text": "one", "k": 5, "loss": 0.25, "n": 1},
                                {"i": 2, "text": None, "k": 5, "loss": 0.25, "n": 1}]
    assert len(found[0]["calls"]) == len(found[0]["changes"]) == 1 and len(found[0]["stacks"]) == 2


@pytest.mark.parametrize("python", roots.INTERPRETERS["sid"])
def test_late_code_finds_the_package_in_a_container(python):
    code = "import time; print('ready', flush=True); [time.sleep(0.05) for _ in range(2000)]"
    with roots.start("sid", python, "-c", code) as target:
        target.wait_for("ready")
        check_late(target.pid)


SEES = """import os, time
open("fds", "w").write(" ".join(sorted(os.listdir("/proc/self/fd"))))
try:
    child = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    child = None
assert child is None, child
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def holders(path):
    """Processes that have the file open."""
    found = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) == str(path):
                found.add(int(fd.parts[2]))
        except OSError:
            pass
    return found


@pytest.mark.parametrize("python", [path for path in interpreters.INTERPRETERS
                                    if interpreters.version_of(path) >= (3, 8)][::3])
def test_a_port_starts_the_service_and_leaves_no_child(python, tmp_path):
    program, script, home = site(tmp_path, python), tmp_path / "sees.py", tmp_path / "home"
    script.write_text(SEES)
    home.mkdir(mode=0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PROBING": "1", "PROBING_PORT": str(port), "XDG_RUNTIME_DIR": str(home),
           "PROBING_PROGRAM": str(jobs.PROGRAM)}
    held = os.open(script, os.O_RDONLY)
    try:
        with jobs.start(program, script, ready="ready", env=env, cwd=tmp_path, pass_fds=(held,)) as job:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
                assert page.status == 200
            assert job.alive() and job.output == "ready\n", job.output
            assert str(held) in (tmp_path / "fds").read_text().split()
            assert holders(script) == {os.getpid(), job.pid}, "nobody outside has a descriptor of the program's"
    finally:
        os.close(held)
        done = subprocess.run([jobs.PROGRAM, "serve", "--stop"], env={**os.environ, **env}, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


HANGS = """import time, torch
net = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def wait_for_ever():
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
for _ in range(30):
    net(torch.ones(4, 8)).sum().backward()
    opt.step()
    time.sleep(0.1)
wait_for_ever()
"""


def test_stacks_of_a_hang_are_kept_of_a_job_that_records_from_its_start(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    env = {"PROBING": "1", "PROBING_TORCH_PROFILING": "on", "PROBING_TORCH_HANG_TIMEOUT": "1",
           "PROBING_PROGRAM": str(jobs.PROGRAM)}
    with jobs.start(site_of_tests(tmp_path), script, ready="ready", ready_seconds=90, env=env) as job:
        sql = "SELECT DISTINCT function FROM python.hang_frames WHERE stepping"
        kept = lambda: {row["function"] for row in json.loads(jobs.probe("-t", job.pid, "query", "--json", sql).stdout
                                                              or "[]")}
        jobs.wait_until(lambda: "wait_for_ever" in kept(), 60, "the stacks of the hang")
        job.process.kill()
        job.process.wait()
        assert "wait_for_ever" in kept(), "they outlive the process"
