"""The command line as people use it: targets in every form, rows in every format, errors that say what to do."""
import contextlib
import csv
import ctypes
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest
from jobs import probe

COMMANDS = [line.split()[0] for line in probe("help").stdout.splitlines() if line.startswith("  ") and line[2] != " "]


@pytest.fixture(scope="module")
def job():
    with jobs.python() as job:
        yield job


def test_there_are_the_commands_there_must_be():
    assert {"inject", "detach", "list", "eval", "execute", "tables", "doctor", "version"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    for words in ([command, "--help"], ["help", command], [command, "-h"]):
        done = probe(*words)
        assert done.returncode == 0 and done.stdout.startswith("usage: probing ") and "example:\n  " in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_has_every_command_in_a_group_and_fits_a_terminal():
    text = probe("help").stdout
    assert max(map(len, text.splitlines())) <= 80
    groups = re.findall(r"^(\w.*):\n((?:  .*\n)+)", text, re.M)
    assert len(groups) >= 4
    assert sorted(COMMANDS) == sorted(set(re.findall(r"-f -a (\w+)", probe("completions", "fish").stdout)))


def test_the_target_in_every_form(job):
    name = os.path.basename(job.script)
    for words in (["-t", job.pid, "eval", "1"], [job.pid, "eval", "1"], ["eval", "-t", job.pid, "1"],
                  ["eval", "1", "--target", job.pid],
                  [f"--target={job.pid}", "eval", "1"], [f"-t{job.pid}", "eval", "1"], ["-t", name, "eval", "1"],
                  [name, "eval", "1"], [job.pid, "--timeout=5", "eval", "--", "1"]):
        done = probe(*words)
        assert (done.stdout, done.stderr) == ("1\n", ""), words


def test_probe_is_the_same_program(job):
    other = jobs.PROGRAM.with_name("probe")
    assert subprocess.run([other, str(job.pid), "eval", "6 * 7"], stdout=subprocess.PIPE).stdout == b"42\n"


def test_several_matches_are_named_and_all_takes_them():
    code = "import time; rank = __import__('os').environ['RANK']; print('ready', flush=True); time.sleep(60)"
    script = f"twins_{os.getpid()}_{time.monotonic_ns()}"
    with jobs.start(sys.executable, "-c", code, script, ready="ready", env={"RANK": "0"}) as a, \
            jobs.start(sys.executable, "-c", code, script, ready="ready", env={"RANK": "1"}) as b:
        done = probe("-t", script, "eval", "rank")
        assert done.returncode == 1
        assert "2 processes match" in done.stderr
        assert str(a.pid) in done.stderr
        assert str(b.pid) in done.stderr
        assert "--all" in done.stderr
        done = probe("-t", script, "--all", "eval", "print(rank); print('again')")
        assert sorted(done.stdout.splitlines()) == ["[rank 0] 0", "[rank 0] again", "[rank 1] 1", "[rank 1] again"]
        done = probe("-t", script, "--all", "eval", "1 / int(rank)")
        assert done.returncode == 1 and "[rank 1] 1.0\n" in done.stdout and "[rank 0] ZeroDivisionError" in done.stderr
        rows = json.loads(probe("-t", script, "--all", "tables", "--format", "json").stdout)
        assert {row["target"] for row in rows} == {"rank 0", "rank 1"}


LAUNCHER = """
import os, subprocess, sys
worker = "import time, os; rank = os.environ['RANK']; print('up', flush=True); time.sleep(60)"
workers = [subprocess.Popen([sys.executable, "-c", worker, sys.argv[1]], env={**os.environ, "RANK": str(r)}, stdout=subprocess.PIPE)
           for r in range(3)]
for w in workers: w.stdout.readline()
print("ready", flush=True)
try:
    workers[0].wait()
finally:
    for w in workers: w.kill()
"""


def test_a_launcher_stands_for_its_workers():
    mark = f"job_{time.monotonic_ns()}"
    with jobs.start(sys.executable, "-c", LAUNCHER, mark, ready="ready") as launcher:
        try:
            for target in (launcher.pid, mark):
                done = probe("-t", target, "--all", "eval", "rank")
                assert sorted(done.stdout.splitlines()) == ["[rank 0] '0'", "[rank 1] '1'", "[rank 2] '2'"], done.stderr
        finally:
            for child in open(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read().split():
                with contextlib.suppress(ProcessLookupError):  # when the first has ended the launcher ends the others
                    os.kill(int(child), 9)


def test_a_forked_worker_is_not_taken_for_the_job():
    code = "import os, time\nmark = 1\nif os.fork() == 0: time.sleep(60)\nprint('ready', flush=True)\ntime.sleep(60)"
    with jobs.python(code) as job:
        done = probe("-t", os.path.basename(job.script), "eval", "os.getpid()")
        assert done.stdout == f"{job.pid}\n", done.stderr
        for child in open(f"/proc/{job.pid}/task/{job.pid}/children").read().split():
            os.kill(int(child), 9)


@pytest.mark.parametrize("words, status, says", [
    (["evla", "1"], 2, "did you mean 'eval'"),
    (["frobnicate"], 2, "no command 'frobnicate'"),
    (["help", "lst"], 2, "did you mean 'list'"),
    (["eval", "1"], 2, "which process?"),
    (["-t", "1"], 2, "which command"),
    (["7", "8"], 2, "no command '8'"),
    (["list", "extra"], 2, "one word too many"),
    (["list", "--nonsense"], 2, "does not take --nonsense"),
    (["-t", "1", "backtrace", "--local"], 2, "did you mean '--locals'?"),
    (["-t", "1", "flamegraph", "--durtaion=5"], 2, "did you mean '--duration'?"),
    (["-t", "1", "eval", "--timeuot", "5", "1"], 2, "did you mean '--timeout'?"),
    (["-t", "1", "query", "-xz", "SELECT 1"], 2, "query does not take -xz"),
    (["query", "-xo"], 2, "--output needs a value"),
    (["list", "--format", "yaml"], 2, "no format 'yaml'"),
    (["list", "--format"], 2, "needs a value"),
    (["list", "-t", "1"], 2, "this command takes no target"),
    (["list", "--all"], 2, "list does not take --all (diagnose, now, backtrace, flamegraph, top,"),
    (["list", "--timeout=3"], 2, "list does not take --timeout (backtrace, "),
    (["-t", "1", "eval", "--json", "1"], 2, "eval does not take --json (diagnose, list, now, backtrace, core, "),
    (["-t", "1", "flamegraph", "--format", "csv"], 2, "flamegraph does not take --format ("),
    (["-t", "1", "flamegraph", "--timeout", "3"], 2, "flamegraph does not take --timeout ("),
    (["list", "--watchdog", "3"], 2, "list does not take --watchdog (record and serve do)"),
    (["config", "--all"], 2, "--all of what?"),
    (["-t", "4194304", "eval", "1"], 1, "there is no process 4194304"),
    (["-t", "99999999999", "eval", "1"], 1, "there is no process"),
    (["-t", "0", "eval", "1"], 1, "there is no process 0"),
    (["-t", "", "eval", "1"], 2, "the target is empty"),
    (["-t", "no such thing", "eval", "1"], 1, "no process has 'no such thing'"),
    (["127.0.0.1:1", "eval", "1"], 1, "no service answers at 127.0.0.1:1"),
    (["list", "--format", "yaml"], 2, "there are table, json, csv and tsv"),
    (["-t", "1", "now", "--interval", "10ms"], 2, "--interval takes a time of at least 100ms"),
    (["-t", "1", "torch", "profile", "--within", "0.5"], 2, "--within takes a time from 1 to 500000 seconds"),
    (["-t", "1", "trace", "--depth", "17", "f"], 2, "--depth takes a whole number from 1 to 16, not '17'"),
    (["-t", "1", "top", "--count", "-1"], 2, "--count takes a whole number from 1 on, not '-1'"),
    (["-t", "1", "top", "--rate", "fast"], 2, "--rate takes a number from 0.01 to 1000000, not 'fast'"),
    (["-t", "1", "top", "--rate", "nan"], 2, "--rate takes a number"),
    (["archive", "--max-size", "much"], 2, "--max-size takes a size such as 500MB or 20GB, not 'much'"),
    (["-t", "1", "pause", "--limit", "0"], 2, "--limit takes a time"),
    (["serve", "--retention", "7"], 2, "--retention goes with --archive"),
    (["-t", "1", "eval", "--timeout", "soon", "1"], 2, "takes a time"),
    (["completions", "tcsh"], 2, "bash, zsh and fish"),
    (["-t", "1", "inject", "--all=yes"], 2, "takes no value"),
])
def test_an_error_is_one_line_that_says_what_to_do(words, status, says):
    done = probe(*words)
    assert done.returncode == status and done.stdout == ""
    assert done.stderr.startswith("probing: ") and done.stderr.count("\n") == 1 and says in done.stderr


SHARED = {"--target", "--all", "--format", "--json", "--timeout"}
FIXED = {"--target", "--all"}
ROWS = {"--format", "--json"}


@pytest.mark.parametrize("command, takes", [
    ("list", ROWS), ("core", ROWS), ("version", ROWS), ("help", set()), ("backtrace", SHARED),
    ("doctor", FIXED | ROWS),
    ("memory", SHARED), ("tables", SHARED), ("config", SHARED), ("probes", SHARED), ("query", SHARED),
    ("export", FIXED | ROWS), ("archive", FIXED),
    ("record", FIXED | ROWS), ("flamegraph", FIXED), ("top", FIXED), ("eval", FIXED | {"--timeout"}),
    ("inject", FIXED | {"--timeout"}),
    ("detach", FIXED | {"--timeout"}), ("torch", FIXED | ROWS), ("gpu", FIXED | ROWS),
    ("track", SHARED), ("trace", SHARED), ("watch", SHARED),
    ("break", SHARED),
    ("groups", SHARED), ("continue", FIXED | {"--timeout"}), ("debug", FIXED | {"--timeout"}),
    ("catch", FIXED | {"--timeout"}),
])
def test_help_and_parser_agree_on_what_a_command_takes(command, takes):
    text = probe("help", command).stdout
    assert {word for word in re.findall(r"^  (?:-\w,|   ) (--\w+)", text, re.M)} & SHARED == takes
    for option in SHARED - FIXED - takes:
        done = probe(command, *[option] + ["1"] * (option != "--json"))
        assert done.returncode == 2 and f"{command} does not take {option} (" in done.stderr


def test_version_says_how_it_was_built_and_what_is_installed():
    assert probe("version").stdout == f"probing {(jobs.TOP / 'VERSION').read_text()}"
    row, = json.loads(probe("version", "--json").stdout)
    assert row["version"] == (jobs.TOP / "VERSION").read_text().strip() and row["machine"] == os.uname().machine
    assert re.fullmatch(r"glibc \d+\.\d+", row["libc"]) and row["agents"] == "glibc musl"
    beside = Path(jobs.PROGRAM).resolve().parent
    for part, program in ("sql", "probing-sql"), ("serve", "probing-serve"):
        assert row[part] == ("yes" if (beside / program).exists() else "no")


def test_json_is_the_same_as_format_json_wherever_there_are_rows(job):
    for words in (["list"], ["config"], ["-t", job.pid, "config"], ["-t", job.pid, "doctor"], ["-t", job.pid, "tables"],
                  ["-t", job.pid, "memory"], ["-t", job.pid, "backtrace"], ["query", "SELECT 1 AS one"]):
        both = [probe(*words, *form) for form in (["--json"], ["--format", "json"])]
        assert [done.returncode for done in both] == [0, 0], (words, [done.stderr for done in both])
        one, other = (json.loads(done.stdout) for done in both)
        assert isinstance(one, list) and list(one[0]) == list(other[0])


def test_letters_may_share_a_word(tmp_path):
    file = tmp_path / "statement.sql"
    file.write_text("SELECT 6 * 7 AS x")
    apart = probe("query", "-x", "-f", file)
    assert apart.returncode == 0 and apart.stdout != probe("query", "-f", file).stdout and "42" in apart.stdout
    for words in (["-xf", file], [f"-xf{file}"]):
        assert probe("query", *words).stdout == apart.stdout, words


def test_rows_in_every_format(job):
    probe(job.pid, "inject")
    table = probe("list").stdout.splitlines()
    assert table[0].split()[:3] == ["pid", "state", "python"]
    parsed = {
        "json": json.loads(probe("list", "--format", "json").stdout),
        "csv": list(csv.DictReader(io.StringIO(probe("list", "--format", "csv").stdout))),
        "tsv": list(csv.DictReader(io.StringIO(probe("list", "--format", "tsv").stdout), delimiter="\t")),
    }
    for name, rows in parsed.items():
        row = next(row for row in rows if int(row["pid"]) == job.pid)
        assert row["state"] == "probed" and row["python"] == ".".join(map(str, sys.version_info[:3])), name
        assert job.script in row["command"] and float(row["memory_mb"]) > 1 and 0 <= float(row["uptime"]) < 600
    assert parsed["json"][0].keys() == parsed["csv"][0].keys()
    own = next(row for row in parsed["json"] if row["pid"] == job.pid)
    assert own["rank"] is None, "NULL is null, not an empty string"


def test_every_command_writes_a_format_alike(job):
    """NULL, quotes and line ends as the rows of a query have them: one reader does for all commands."""
    rows = {}
    for name in ("csv", "tsv", "json"):
        text = probe("list", "--format", name).stdout
        lines = [line for line in text.splitlines() if str(job.pid) in line]
        rows[name] = lines[0]
        assert probe("query", "--format", name, "SELECT NULL AS a, '' AS b, 1 AS c").stdout == {
            "csv": 'a,b,c\n,"",1\n', "tsv": "a\tb\tc\n\\N\t\t1\n", "json": '[\n  {"a": null, "b": "", "c": 1}\n]\n'}[
                name]
    fields = rows["tsv"].split("\t")
    assert fields[0] == str(job.pid) and fields[3] == "\\N", "without a rank"
    assert rows["csv"].split(",")[3] == "" and rows["json"].startswith('  {"pid": ') and '"rank": null' in rows["json"]


def test_odd_command_lines_come_out_right():
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with jobs.start(sys.executable, "-c", code, 'a "quoted", thing', "tab\there", "é中😀",
                    b"\xff\xfe".decode("utf-8", "surrogateescape"), "\033[31m", ready="ready") as job:
        rows = json.loads(probe("list", "--format", "json").stdout)
        command = next(row for row in rows if row["pid"] == job.pid)["command"]
        assert 'a "quoted", thing' in command and "tab\there" in command and "é中😀" in command and "\ufffd" in command
        line = next(line for line in probe("list").stdout.splitlines() if line.split()[0] == str(job.pid))
        assert "\033" not in line and "\t" not in line, "what a terminal would obey is not passed on"


def test_what_is_no_utf8_or_a_command_to_the_terminal_is_not_passed_on():
    """Overlong forms and surrogates look like UTF-8; C1 controls are two harmless bytes, but not to a terminal."""
    code = "import time; print('ready', flush=True); time.sleep(60)"
    odd = [b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "\x9b31m\u00a0".encode()]
    with jobs.start(sys.executable, "-c", code, *(word.decode("utf-8", "surrogateescape") for word in odd),
                    ready="ready") as job:
        text = subprocess.run([jobs.PROGRAM, "list", "--format", "json"], stdout=subprocess.PIPE).stdout.decode()
        command = next(row for row in json.loads(text) if row["pid"] == job.pid)["command"]
        assert command.endswith(f"{'?' * 3} {'?' * 4} {'?' * 3} {'?' * 4} \x9b31m\u00a0".replace("?", "\ufffd"))
        table = subprocess.run([jobs.PROGRAM, "list"], stdout=subprocess.PIPE).stdout.decode()
        line = next(line for line in table.splitlines() if line.split()[:1] == [str(job.pid)])
        assert "\x9b" not in line and r"\xed\xa0\x80" in line and "\\x9b31m\u00a0" in line


def test_an_error_does_not_pass_on_what_a_stranger_named_his_process():
    name = f"\033]0;x\007\x9b31m{time.monotonic_ns()}\nprobing: all is well"
    sleep = shutil.which("sleep")
    with jobs.start(name, "60", executable=sleep), jobs.start(name, "60", executable=sleep):
        done = probe("-t", name[12:], "eval", "1")
        assert done.returncode == 1 and "2 processes match" in done.stderr and "?]0;x??31m" in done.stderr
        assert not re.search("[\0-\x09\x0b-\x1f\x7f-\x9f]", done.stderr)
        assert "\nprobing: all" not in done.stderr.split("': ", 1)[1]


@pytest.mark.parametrize("command", [["tables"], ["config", "probing.sample_rate=0.2"]], ids=lambda words: words[0])
def test_one_target_that_fails_does_not_hold_back_the_others(command):
    mark = f"pair_{time.monotonic_ns()}"
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with jobs.start(sys.executable, "-c", code, mark, ready="ready", env={"RANK": "0"}) as stopped, \
            jobs.start(sys.executable, "-c", code, mark, ready="ready", env={"RANK": "1"}) as other:
        os.kill(stopped.pid, signal.SIGSTOP)
        done = probe("-t", mark, "--all", *command, "--format", "json", "--timeout", "2")
        assert done.returncode == 1 and {row["target"] for row in json.loads(done.stdout)} == {"rank 1"}
        assert done.stderr.startswith(f"[rank 0] probing: {command[0]}: ") and str(stopped.pid) in done.stderr
        assert other.alive()


def install(prefix):
    """A copy of the program with its parts."""
    shutil.copytree(jobs.PROGRAM.parent, prefix / "bin")
    shutil.copytree(jobs.PROGRAM.parent.parent / "lib/probing", prefix / "lib/probing")
    return prefix / "bin/probing"


@pytest.mark.parametrize("prefix, cache, mode, taken", [
    ("build/release", True, 0o755, True), ("opt/probing", True, 0o755, False), ("build/release", False, 0o755, False),
    ("build/release", True, 0o775, False), ("build/release", True, 0o757, False)])
def test_python_code_beside_an_installation_is_not_taken_for_ours(tmp_path, prefix, cache, mode, taken):
    """Only a build tree that no other user can write to brings its own Python part into a process."""
    program = install(tmp_path / prefix)
    if cache:
        (tmp_path / prefix / "CMakeCache.txt").touch()
    folder, mark = tmp_path / "python/probing", tmp_path / "mark"
    folder.mkdir(parents=True)
    part = (jobs.TOP / "python/probing/_remote.py").read_text()
    (folder / "_remote.py").write_text(f"{part}\nopen({str(mark)!r}, 'w').close()\n")
    folder.chmod(mode)
    with jobs.python() as job:
        done = subprocess.run([program, "-t", str(job.pid), "eval", "6 * 7"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert done.stdout == b"42\n" and mark.exists() == taken


def dead_run(root):
    """The folder of a run that has ended, below root."""
    with jobs.python() as job:
        assert probe(job.pid, "inject", env={**os.environ, "PROBING_DIR": str(root)}).returncode == 0
    return next(root.glob(f"probing-*/*-{job.pid}-*"))


def test_more_dead_runs_than_descriptors(tmp_path):
    tmp_path.chmod(0o755)
    run = dead_run(tmp_path)
    pids = range(4100000, 4100100)
    for pid in pids:
        copy = run.parent / f"1-{pid}-1"
        copy.mkdir(mode=0o700)
        for name in ("about", "arena"):
            shutil.copy2(run / name, copy / name)
    for pid in pids[::10]:
        done = probe("-t", pid, "tables", env={**os.environ, "PROBING_DIR": str(tmp_path)},
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
        assert done.returncode == 0, done.stderr


def test_the_root_of_runs_may_be_a_link_and_nothing_below_it(tmp_path):
    tmp_path.chmod(0o755)
    root, link = tmp_path / "root", tmp_path / "link"
    root.mkdir()
    link.symlink_to("root")
    run = dead_run(link)
    pid = run.name.split("-")[1]
    env = {**os.environ, "PROBING_DIR": str(link)}
    done = probe("-t", pid, "tables", env=env)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    (root / run.parent.name / run.name).rename(elsewhere)
    (root / run.parent.name / run.name).symlink_to(elsewhere)
    assert probe("-t", pid, "tables", env=env).returncode == 1


def test_an_agent_that_stands_with_a_full_backlog_is_given_up(tmp_path):
    """Only its thread is stopped, as by a debugger: of a process that is stopped whole the tool knows."""
    attach, detach, libc = 16, 17, ctypes.CDLL(None, use_errno=True)
    tmp_path.chmod(0o755)
    env = {**os.environ, "PROBING_DIR": str(tmp_path)}
    with jobs.python() as job:
        assert probe(job.pid, "inject", env=env).returncode == 0
        agent = next(int(task.name) for task in Path(f"/proc/{job.pid}/task").iterdir()
                     if (task / "comm").read_text() == "probing\n")
        assert libc.ptrace(attach, agent, None, None) == 0
        os.waitpid(agent, getattr(os, "__WALL", 0x40000000))
        folder = os.open(next(tmp_path.glob(f"probing-*/*-{job.pid}-*")), os.O_RDONLY)
        waiting = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(f"/proc/self/fd/{folder}/control")
        except BlockingIOError:
            pass
        try:
            done = probe(job.pid, "eval", "--timeout", "1", "1", env=env, timeout=20)
            assert done.returncode == 1 and "does not answer" in done.stderr
        finally:
            libc.ptrace(detach, agent, None, None)
            os.close(folder)
            for connection in waiting:
                connection.close()


def on_a_terminal(words, columns, env=None):
    """What a command prints when a person sits at a terminal of that width."""
    import pty
    import termios
    import struct
    import fcntl
    pid, fd = pty.fork()
    if pid == 0:
        time.sleep(0.1)
        os.execve(jobs.PROGRAM, [str(jobs.PROGRAM), *words], {**os.environ, **(env or {})})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text = b""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        text += data
        if not data:
            break
    os.waitpid(pid, 0)
    os.close(fd)
    return text.decode()


def test_a_table_fits_the_terminal_and_has_colour_there_alone(job):
    wide = probe("list").stdout
    assert "\033" not in wide and max(map(len, wide.splitlines())) > 80
    text = on_a_terminal(["list"], 80)
    assert "\033[1m" in text
    plain = re.sub(r"\033\[\d*m", "", text)
    assert max(len(line) for line in plain.splitlines()) <= 80 and "…" in plain
    assert "\033" not in on_a_terminal(["list"], 80, {"NO_COLOR": "1"})


def test_doctor_says_what_stands_in_the_way(job):
    done = probe(job.pid, "doctor", "--format", "json")
    assert done.returncode == 0 and {row["state"] for row in json.loads(done.stdout)} <= {"ok", "warning"}
    kernel_thread = next(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"
                         and not open(f"/proc/{pid}/cmdline").read()
                         and "VmRSS" not in open(f"/proc/{pid}/status").read())
    done = probe(kernel_thread, "doctor", "--format", "json")
    assert done.returncode == 1
    assert any(row["state"] == "fail" for row in json.loads(done.stdout))


def test_the_man_page_names_every_command_and_option():
    page = probe("man").stdout
    plain = page.replace("\\-", "-")
    for command in COMMANDS:
        assert f"\n.SS {command}\n" in plain, command
        for option in re.findall(r"--([a-z-]+)", probe("help", command).stdout.split("options:")[1]):
            assert f"--{option}" in plain, f"{command} --{option}"
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    assert done.stderr == "" and "no colour on a terminal" in done.stdout


@pytest.mark.parametrize("command", ["backtrace", "tables", "memory", "config", "probes", "query", "queries", "torch",
                                     "list", "help", "version"])
def test_output_that_cannot_be_written_is_an_error(command, full_job):
    words = ["-t", full_job, command]
    if command in ("list", "help", "version"):
        words = [command]
    elif command == "query":
        words = ["-t", full_job, "query", "SELECT 1"]
    elif command == "queries":
        words = ["query", "SELECT * FROM range(2000); SELECT 2; SELECT 3"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([jobs.PROGRAM, *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=60)
    assert done.returncode == 1 and done.stderr.count("cannot be written") == 1, (done.returncode, done.stderr)


@pytest.fixture(scope="module")
def full_job():
    with jobs.python() as job:
        assert probe(job.pid, "inject").returncode == 0
        yield job.pid


def test_settings_stand_apart_from_their_values_and_words_have_no_unit(full_job):
    lines = probe(full_job, "config").stdout.splitlines()[::2]
    assert all(re.match(r"probing\.[a-z_.]+ +\S", line) for line in lines), lines
    assert not any(re.search(r"\b(auto|off) (s|%)", line) for line in lines), lines


def test_show_tables_lists_all(full_job):
    shown = probe(full_job, "query", "--format", "csv", "show  TABLES ;").stdout.split()[1:]
    listed = probe(full_job, "query", "--format", "csv", "SELECT name FROM probing.tables "
                                                         "ORDER BY name").stdout.split()[1:]
    assert shown == listed and {"python.torch_trace", "memory_usage", "system.process"} <= set(shown)


def test_a_narrow_screen_shows_times_and_numbers_whole_or_not_at_all(full_job):
    sql = ("SELECT TIMESTAMP '2026-11-18 22:43:52.123456' AS t, 'a text that is long enough to be cut at such a width' "
           "AS text, 123456789012 AS n, 'last' AS z")
    env = {**os.environ, "COLUMNS": "64"}
    done = subprocess.run(["script", "-qc", f"'{jobs.PROGRAM}' -t {full_job} query \"{sql}\"", "/dev/null"],
                          capture_output=True, text=True, env=env, timeout=60)
    assert "2026-11-18 22:43:52.123456" in done.stdout, done.stdout
    assert "123456789012" in done.stdout, done.stdout
    assert "a text" in done.stdout, done.stdout
    assert "…" in done.stdout, done.stdout
