"""-t HOST:PORT: which process that is, in every form for every command; where the token goes; sampling that curl looks
at."""
import os
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import xml.etree.ElementTree
from contextlib import contextmanager, suppress

import cluster_kit
import jobs
import pytest
from jobs import PROGRAM, probe
from serve_kit import NEEDS_SERVE, Service, service

pytestmark = NEEDS_SERVE
SVG = "{http://www.w3.org/2000/svg}"

# A job that computes in two functions, three times as long in one of them.
BUSY = """
import time
rate = 0.25
def long(): work(0.03)
def short(): work(0.01)
def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
print("ready", flush=True)
while True:
    long()
    short()
"""


@contextmanager
def served_job(folder, *words, code=BUSY):
    """A process and the service that `inject` has started about it."""
    folder.mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    env.pop("PROBING_TOKEN", None)
    with jobs.python(code) as job:
        done = probe(job.pid, "inject", *words, env=env)
        assert done.returncode == 0, done.stderr
        try:
            yield job, Service(None, folder, done.stdout.splitlines()[1]), done.stdout
        finally:
            assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0


@pytest.fixture(scope="module")
def about(tmp_path_factory):
    with served_job(tmp_path_factory.mktemp("t") / "r", "-b", "-a", "127.0.0.1:0") as (job, s, _):
        yield job, s


# Of every command of the command line that takes a process: its words, its input, and what it must print.
COMMANDS = [
    (["inject"], None, r"process {pid} is probed"),
    (["backtrace"], None, r"(?s)process {pid}: .*(long|short) \(.*<module>"),
    (["dump"], None, r"(?s)process {pid}: .*(long|short) \(.*<module>"),
    (["eval", "rate * 4"], None, r"^1\.0$"),
    (["execute", "{folder}/code.py"], None, r"^it is 0\.25$"),
    (["execute", "import traceback;traceback.print_stack()"], None, r"File"),
    (["query", "--format", "csv", "SELECT DISTINCT func FROM python.backtrace WHERE func = '<module>'"], None,
     r"^func\n<module>$"),
    (["memory"], None, r"in RAM +[\d.]+ MB"),
    (["config"], None, r"probing\.sample_rate"),
    (["config", "probing.sample_rate=0.05"], None, r"0\.05"),
    (["config", "probing.max_memory=1GB"], None, r"1GB"),
    (["flamegraph", "-d", "300ms", "-o", "{folder}/x.folded"], None, r"x\.folded: \d+ samples"),
    (["repl"], "print(rate + 1)\n", r"1\.25"),
    (["tables"], None, r"memory_usage"),
    (["now"], None, r"{pid}"),
    (["pause"], None, r"nc 127\.0\.0\.1 \d+"),
    (["continue"], None, r"it goes on"),
    (["catch"], None, r"nc 127\.0\.0\.1 \d+"),
    (["catch", "--stop"], None, r""),
    (["listen"], None, r"nc 127\.0\.0\.1 \d+"),
    (["listen", "--stop"], None, r""),
    (["pprof"], None, r"^curl 'http://.*/flamegraph\?target={pid}"),
    (["pprof", "--stop"], None, r"ended"),
    (["detach"], None, r""),
]
FORMS = {"pid": ["{pid}"], "-t pid": ["-t", "{pid}"], "host:port": ["{at}"], "-t host:port": ["-t", "{at}"],
         "-t host:port/pid": ["-t", "{at}/{pid}"], "-t http://": ["-t", "http://{at}"]}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_target_works_for_every_command(about, form, tmp_path):
    job, s = about
    (tmp_path / "code.py").write_text("print('it is', rate)\n")
    facts = {"pid": job.pid, "at": s.address, "folder": tmp_path}
    for words, given, expected in COMMANDS:
        line = [word.format(**facts) for word in FORMS[form] + words]
        done = subprocess.run([PROGRAM, *line], env=s.env, input=given or "", capture_output=True, text=True,
                              timeout=60)
        said = done.stdout + (done.stderr if words[0] == "execute" else "")
        assert done.returncode == 0, (line, done.stderr)
        assert re.search(expected.format(**facts), said, re.M), (line, done.stdout, done.stderr)
    folded = (tmp_path / "x.folded").read_text()
    assert "long" in folded and "work" in folded, "the file came back to this side"


@pytest.mark.parametrize("form", FORMS)
def test_a_flame_graph_that_is_given_no_name_appears_here_under_the_one_that_is_printed(about, form, tmp_path):
    job, s = about
    line = [word.format(pid=job.pid, at=s.address) for word in FORMS[form]]
    done = subprocess.run([PROGRAM, *line, "flamegraph", "-d", "300ms"], env=s.env, cwd=tmp_path, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.iterdir()
    assert re.fullmatch(r"flame-[\w.-]+\.svg", file.name), (file, done.stdout)
    assert done.stdout.startswith(file.name + ": "), (file, done.stdout)
    assert "long" in "".join(xml.etree.ElementTree.parse(file).getroot().itertext())


def test_the_address_that_a_service_prints_is_a_target(about):
    job, s = about
    done = probe("-t", f"http://{s.address}/?token={s.token}", "eval", "rate")
    assert (done.returncode, done.stdout) == (0, "0.25\n"), done.stderr
    done = probe("-t", f"http://{s.address}/{job.pid}?token={s.token}", "eval", "rate")
    assert (done.returncode, done.stdout) == (0, "0.25\n"), done.stderr
    for target, said in ((f"https://{s.address}", "speaks no TLS"), ("127.0.0.1:99999", "no port 99999"),
                         ("127.0.0.1:0", "no port 0")):
        refused = probe("-t", target, "eval", "rate", env=s.env)
        assert refused.returncode == 2 and said in refused.stderr, refused.stderr


def test_without_a_process_of_its_own_the_only_one_is_meant(tmp_path):
    with cluster_kit.nodes(1, 1, tmp_path) as node:
        there = ["-t", node.addresses[0], "--token-file", node.token]
        assert probe(*there, "eval", "rank").stdout == "0\n"
        rows = probe(*there, "query", "--format", "csv", "SELECT count(*) > 0 AS n FROM memory_usage")
        assert rows.returncode == 0 and rows.stdout in ("n\ntrue\n", "n\nfalse\n"), rows.stderr


def test_of_several_processes_each_is_named_to_be_copied(tmp_path):
    with cluster_kit.nodes(1, 2, tmp_path) as node:
        there = ["--token-file", node.token]
        for words in (["eval", "rank"], ["backtrace"], ["repl"], ["record"], ["flamegraph", "-d", "1"],
                      ["query", "SELECT * FROM python.torch_trace"],
                      ["query", "SELECT max(step) FROM training_logs -- of it"], ["query", "FROM memory_usage"]):
            done = probe("-t", node.addresses[0], *words, *there)
            named = re.findall(r"-t (\S+:\d+/\d+)", done.stderr)
            assert done.returncode == 2, (words, done.stdout, done.stderr)
            assert not done.stdout, (words, done.stdout, done.stderr)
            assert "which process?" in done.stderr, (words, done.stdout, done.stderr)
            assert len(named) == 2 and all(each.startswith(node.addresses[0]) for each in named), done.stderr
        assert sorted(probe("-t", each, "eval", "rank", *there).stdout for each in named) == ["0\n", "1\n"]
        # What is about no process needs none.
        for sql in ("SELECT 7 AS n", "SELECT 'from memory_usage', 7 AS n FROM range(1) -- from memory_usage"):
            assert "7" in probe("-t", node.addresses[0], "query", "--format", "csv", sql, *there).stdout
        assert "state" in probe("-t", node.addresses[0], "list", *there).stdout


# --- the token ---

@contextmanager
def listener(family, address):
    """What was sent to a port: any program may listen there."""
    got = []
    with socket.create_server((address, 0), family=family) as server:
        def serve():
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        got.append(client.recv(65536).decode("latin1"))
                        client.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], got


@pytest.fixture
def without_token(monkeypatch):
    for name in ("PROBING_TOKEN", "PROBING_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_the_own_token_goes_to_no_other_port(tmp_path, without_token):
    with service(tmp_path / "r") as s:
        for family, address, host in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"),
                                      (socket.AF_INET, "127.0.0.1", "localhost"), (socket.AF_INET6, "::1", "[::1]")):
            with listener(family, address) as (port, got):
                assert probe("-t", f"{host}:{port}", "list", env=s.env).returncode == 1
                if host != "localhost":
                    probe("cluster", "attach", "x", "--services", f"{host}:{port}", "--timeout", "3", env=s.env)
                assert got and not any(s.token in each for each in got), got
        assert probe("-t", s.address, "list", env=s.env).returncode == 0
        assert probe("-t", f"localhost:{s.port}", "list", env=s.env).returncode == 0


def test_the_own_token_goes_not_to_whoever_has_the_port_afterwards(tmp_path, without_token):
    with service(tmp_path / "r") as s:
        s.process.kill()  # what it has left says still that it listens there
        s.process.wait()
    assert (tmp_path / "r/probing-serve/address").exists()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", s.port))
        server.listen()
        tool = subprocess.Popen([PROGRAM, "-t", s.address, "list"], env=s.env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        client, _ = server.accept()
        with client:
            got = client.recv(65536).decode()
        tool.communicate(timeout=30)
    assert tool.returncode == 1 and got.startswith("GET /api/v1/command") and s.token not in got and "Bearer" not in got


def test_another_users_folder_is_no_service_of_ones_own(tmp_path, without_token, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("takes root, to be another user")
    with service(tmp_path / "r") as s, listener(socket.AF_INET, "127.0.0.1") as (port, got):
        folder = tmp_path / "r/probing-serve"
        (folder / "address").write_text(f"http://127.0.0.1:{port}")
        os.rename(folder / "socket", folder / "kept")
        # A process of another user has put its socket in the place.
        theirs = socket.socket(socket.AF_UNIX)
        monkeypatch.chdir(folder)  # its whole name is too long
        theirs.bind("socket")
        listens = (f"import socket, time; s = socket.socket(fileno={theirs.fileno()}); s.listen(); print('ready', "
                   f"flush=True); time.sleep(60)")
        other = subprocess.Popen(["/usr/bin/python3", "-c", listens], user=65534, group=65534, extra_groups=[],
                                 pass_fds=[theirs.fileno()], cwd="/", stdout=subprocess.PIPE)
        try:
            assert other.stdout.readline() == b"ready\n"
            done = probe("-t", f"127.0.0.1:{port}", "list", env=s.env)
        finally:
            other.kill()
            other.communicate()
            theirs.close()
            os.rename(folder / "kept", folder / "socket")
        assert done.returncode == 1 and got and s.token not in got[0], done.stderr


def test_a_token_that_is_given_is_sent(tmp_path):
    with service(tmp_path / "r") as s, listener(socket.AF_INET, "127.0.0.1") as (port, got):
        probe("-t", f"127.0.0.1:{port}", "list", env={**s.env, "PROBING_TOKEN": "given"})
        assert "Authorization: Bearer given" in got[0]


# --- sampling that curl looks at ---

def picture(line, folder, env):
    """Runs a line of a shell, and reads what it has written: the texts of the picture."""
    began = time.monotonic()
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    tree = xml.etree.ElementTree.parse(folder / "flamegraph.svg")
    return " ".join(tree.getroot().itertext()), time.monotonic() - began


def shares(text):
    """The percentages of the functions in the titles of a flame graph."""
    return {name: float(share) for name, share in re.findall(r"\b(long|short|work) \([^)]*\)[^%]*?([\d.]+)% of all",
                                                             text)}


def test_the_line_that_pprof_prints_gets_what_was_sampled_since(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    with jobs.python(BUSY) as job:
        began = jobs.calm()
        done = probe(job.pid, "pprof", env=env)
        assert done.returncode == 0 and jobs.calm() - began < 5 * jobs.SLOW, done.stderr
        try:
            [line] = re.findall(r"^curl .*$", done.stdout, re.M)
            assert "60 minutes" in done.stdout and f"probing {job.pid} pprof --stop" in done.stdout
            picture(line, tmp_path, env)  # at once, without a pause between
            time.sleep(3)
            text, seconds = picture(line, tmp_path, env)
            found = shares(text)
            assert seconds < 5 * jobs.SLOW and "work" in text, text
            assert 1.5 < found["long"] / found["short"] < 6, found  # 3, as the job does it
            assert "recording" in probe(job.pid, "record", "--list").stdout
            again = probe(job.pid, "pprof", env=env)
            assert line in again.stdout and "is sampled already" in again.stdout
            assert "ended" in probe(job.pid, "pprof", "--stop", env=env).stdout
            assert "work" in picture(line, tmp_path, env)[0], "what was sampled can still be had"
            assert probe(job.pid, "pprof", "--stop", env=env).returncode == 1
        finally:
            assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0


def recorders(pid):
    return [line for line in probe(pid, "record", "--list", "--format", "csv").stdout.splitlines()
            if ",recording," in line]


def test_sampling_ends_with_its_time_and_with_the_process(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    try:
        with jobs.python(BUSY) as job:
            assert probe(job.pid, "pprof", "-d", "2s", env=env).returncode == 0
            assert len(recorders(job.pid)) == 1
            jobs.wait_until(lambda: not recorders(job.pid), 20, "the end of its time")
            done = probe(job.pid, "pprof", "-d", "0", env=env)
            assert done.returncode == 0 and "minutes" not in done.stdout
            [row] = recorders(job.pid)
            recorder = int(row.split(",")[6])
        jobs.wait_until(lambda: not os.path.exists(
            f"/proc/{recorder}"), 20, "the end of the sampler of a process that has ended")
    finally:
        subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20)


def test_inject_begins_the_sampling_too(tmp_path):
    with served_job(tmp_path / "r", "-P") as (job, s, said):
        [line] = re.findall(r"^curl .*$", said, re.M)
        assert "work" in picture(line, tmp_path, s.env)[0]
        live = s.ask("/flamegraph?seconds=0.3&format=folded")[2]
        assert b"work" in live, "with a time it samples anew"


def test_what_fails_is_a_picture_where_one_was_asked_for(tmp_path):
    with service(tmp_path / "r") as s:
        for path, token, status, said in (("/flamegraph", False, 401, "a token is needed"),
                                          ("/flamegraph?format=svg", False, 401, "a token"),
                                          ("/flamegraph", True, 400, "which process?"),
                                          ("/flamegraph?target=99999999", True, 422, "there is no process"),
                                          ("/api/v1/targets/99999999/profile", True, 404, "there is no process"),
                                          ("/flamegraph?target=<b>%26\x1b", True, 422, "'<b>&"),
                                          ("/flamegraph?target=1&nonsense=1", True, 400, "no argument")):
            # as curl does
            got, headers, body = s.ask(urllib.parse.quote(path, safe="/?=&<>%"), token=token, headers={"Accept": "*/*"})
            assert (got, headers["Content-Type"]) == (status, "image/svg+xml"), (path, got, body)
            texts = " ".join(each.text for each in xml.etree.ElementTree.fromstring(body).iter(SVG + "text"))
            assert said in texts and str(status) in texts, (path, texts)
        for path, headers in (("/flamegraph?format=folded", {}), ("/api/v1/targets", {}),
                              ("/flamegraph", {"Accept": "application/json"}), ("/flamegraph", {})):
            assert s.ask(path, token=False, headers=headers)[1]["Content-Type"] == "application/json"


# --- an address that cannot be ---

@pytest.mark.parametrize("address, said", [("foo:bar", "no address"), ("127.0.0.1:99999", "65535"),
                                           ("no.such.host.invalid:80", "no address"), ("-1", "")])
def test_an_address_that_is_none_is_an_error_before_anything_is_done(tmp_path, address, said):
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with jobs.python() as job:
        for words in (["inject", "-b", f"--address={address}"], ["pprof", f"--address={address}"]):
            done = probe(job.pid, *words, env=env)
            assert done.returncode == 1 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
        assert "probing" not in " ".join(job.threads()) and not recorders(job.pid), "nothing was done to the process"
        assert probe("serve", "--status", env=env).returncode == 1


def test_a_second_address_is_an_error_and_the_same_one_is_none(about):
    _, s = about
    with jobs.python() as other, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = probe(other.pid, "inject", "-b", "-a", "127.0.0.1:%d" % free.getsockname()[1], env=s.env)
        assert done.returncode == 1, done.stderr
        assert f"runs already, at http://{s.address}" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "probing" not in " ".join(other.threads())
        for same in (s.address, str(s.port), f"localhost:{s.port}", "127.0.0.1", "127.0.0.1:0"):
            done = probe(other.pid, "inject", "-b", "-a", same, env=s.env)
            assert done.returncode == 0 and s.address in done.stdout, (same, done.stderr)
