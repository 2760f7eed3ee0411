"""bundle: an incident in one file: made while a rank is stopped and another has ended, read when nothing of the job is
left; and files that are cut off, damaged or hostile."""
import io
import json
import os
import signal
import struct
import subprocess
import threading
import zipfile
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jobs
import pyarrow.parquet
import pytest
from jobs import PROGRAM, probe
from serve_kit import NEEDS_SERVE, commands_of, service

# Each part of a file has a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)

RANK = """
import time
class Model: pass
def forward(batch, db_password):
    print("ready", flush=True)
    while True: time.sleep(0.01)
def main():
    model, shown_local = Model(), "a local that is shown"
    forward(shown_local, 2 * "hunter2")
main()
"""
SECRETS = (b"hunter2hunter2", b"sk-very-secret")
LOG = "import probing\nfor i in range(200): probing.log(step=i, loss=float(i))"


def has_written(job):
    """Whether the copy of its rows on disk, which is what a dead rank leaves, has all of them."""
    os.kill(job.pid, signal.SIGSTOP)
    rows = jobs.rows(job, "SELECT count(*) AS n FROM training_logs")
    os.kill(job.pid, signal.SIGCONT)
    return rows[0]["n"] == 200


def start_ranks(stack, world):
    """Ranks of one job that are probed and have logged 200 steps; rank 1 is stopped, the last one has ended."""
    store = str(20000 + os.getpid() % 20000)
    ranks = [stack.enter_context(jobs.python(RANK, env={
        "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store,
        "OPENAI_API_KEY": "sk-very-secret", "TRAIN_MODE": "visible"})) for rank in range(world)]
    for job in ranks:
        assert probe(job.pid, "inject").returncode == 0
        assert probe(job.pid, "eval", LOG).returncode == 0
    jobs.wait_until(lambda: has_written(ranks[-1]), what="the rows of the last rank on disk")
    ranks[-1].process.kill()
    ranks[-1].process.wait()
    os.kill(ranks[1].pid, signal.SIGSTOP)
    return ranks


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    """The path of a file about three ranks, of which nothing runs any more, and their pids."""
    path = tmp_path_factory.mktemp("incident") / "incident.probing"
    with ExitStack() as stack:
        ranks = start_ranks(stack, 3)
        pids = [job.pid for job in ranks]
        # The ranks are children of this test: its pid stands for all of them.
        done = probe("-t", os.getpid(), "--all", "bundle", "-o", path, "--timeout", "2m", timeout=240)
        assert done.returncode == 0, done.stderr
        assert [job.alive() for job in ranks] == [True, True, False]
    return path, pids


def ask(path, *words, status=0, **options):
    done = probe("-t", path, *words, **options)
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout


def test_a_file_answers_when_the_job_is_gone(incident, tmp_path):
    path, pids = incident
    listed = json.loads(ask(path, "list", "--json"))
    assert {(row["pid"], row["rank"]) for row in listed} == {(pid, rank) for rank, pid in enumerate(pids)}
    text = ask(path, "backtrace")
    assert "forward" in text and "while True: time.sleep(0.01)" in text and "a local that is shown" in text
    assert "stopped" in text.lower()
    assert {process["pid"] for process in json.loads(ask(path, "backtrace", "--json"))} == set(pids[:2])
    assert "main" in ask(path, "backtrace", "--merge")
    rows = json.loads(ask(path, "query", "--format", "json",
                          "SELECT rank, count(*) AS n, max(loss) AS most FROM training_logs GROUP BY rank"))
    assert sorted((row["rank"], row["n"], row["most"]) for row in rows) == [(rank, 200, 199.0) for rank in range(3)]
    assert "training_logs" in ask(path, "tables") and "rank 2" in ask(path, "memory")
    assert "probing.sample_rate" in ask(path, "config")
    flame = tmp_path / "flame.folded"
    ask(path, "flamegraph", "-o", flame)
    assert "forward" in flame.read_text()


def test_a_finding_is_said_again_with_its_status(incident):
    path, _ = incident
    assert ask(path, "diagnose", status=10).startswith("Rank ")
    assert json.loads(ask(path, "diagnose", "--json", status=10))


def test_its_parts_are_files_of_other_programs_without_secrets(incident):
    path, pids = incident
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        names = file.namelist()
        parts = {name: file.read(name) for name in names}
    manifest = json.loads(parts["manifest.json"])
    assert [part["name"] for part in manifest["parts"]] == [name for name in names
                                                            if name not in ("manifest.json", "index.html")]
    assert {process["state"] for process in manifest["processes"]} == {"running", "ended"}
    for name in ("findings.txt", "stacks.txt", "profile.folded", "machine/proc-meminfo.txt", f"versions/{pids[0]}.txt"):
        assert parts[name], name
    for name in names:
        assert not [secret for secret in SECRETS if secret in parts[name]], name
        if name.endswith(".json"):
            json.loads(parts[name])
    assert "visible" in parts["environment.json"].decode()
    tables = [pyarrow.parquet.read_table(io.BytesIO(data), partitioning=None) for name, data in parts.items()
              if name.startswith("rows/training_logs/") and name.endswith(".parquet")]
    assert sum(table.num_rows for table in tables) == 600
    page = parts["index.html"].decode()
    assert "<script" not in page and "forward" in page and "What is wrong" in page


def test_what_needs_a_process_is_refused(incident):
    path, _ = incident
    for words in (["inject"], ["eval", "1"], ["top"], ["backtrace", "--native"], ["flamegraph", "-d", "1"]):
        done = probe("-t", path, *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_an_unpacked_file_is_the_same(incident, tmp_path):
    path, _ = incident
    with zipfile.ZipFile(path) as file:
        file.extractall(tmp_path / "unpacked")
    assert ask(tmp_path / "unpacked", "backtrace") == ask(path, "backtrace")


def test_nothing_is_left_of_reading(incident, tmp_path):
    path, _ = incident
    ask(path, "list", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir())
    done = probe("-t", path, "list", env={**os.environ, "TMPDIR": str(tmp_path / "none")})
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "TMPDIR" in done.stderr


def test_what_does_not_fit_is_named(tmp_path):
    with jobs.python(env={"FILLER": "x" * 100000}) as job:
        assert probe(job.pid, "inject").returncode == 0
        path = tmp_path / "small.probing"
        done = probe(job.pid, "bundle", "-o", path, "--max", "70KB")
        assert done.returncode == 0, done.stderr
        assert path.stat().st_size <= 70000
        with zipfile.ZipFile(path) as file:
            left = json.loads(file.read("manifest.json"))["left_out"]
        assert any("did not fit" in part["why"] for part in left), left
        assert "train" in ask(path, "backtrace")
        assert probe(job.pid, "bundle", "-o", "/dev/full").returncode == 1
        done = probe(job.pid, "bundle", "-o", tmp_path / "none" / "x.probing")
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert job.alive()
    assert list(tmp_path.iterdir()) == [path]


def test_the_page_is_counted_too(tmp_path):
    """It repeats parts, and each character that it escapes is several there."""
    code = ("import time\ndef down(n, text):\n    if n: down(n - 1, text)\n    print('ready', flush=True)\n"
            "    time.sleep(1000)\ndown(600, 30 * '<&>')")
    with jobs.python(code) as job:
        path = tmp_path / "small.probing"
        done = probe(job.pid, "bundle", "-o", path, "--max", "100KB", "--timeout", "2m", timeout=240)
        assert done.returncode == 0, done.stderr
    assert path.stat().st_size <= 100000
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name).decode() for name in ("index.html", "stacks.txt", "manifest.json")}
    assert "&lt;&amp;&gt;" in parts["index.html"] and "The rest is in the part itself" in parts["index.html"]
    left_out = [part["part"] for part in json.loads(parts["manifest.json"])["left_out"]]
    assert len(left_out) == len(set(left_out)), "what did not fit is named once"


def test_nothing_is_left_of_one_that_is_ended(tmp_path):
    with jobs.python() as job:
        making = subprocess.Popen([PROGRAM, "-t", str(job.pid), "bundle", "-o", tmp_path / "x.probing"],
                                  env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL)
        jobs.wait_until(lambda: list(tmp_path.glob("incident*/*")), what="its folder")
        making.terminate()
        assert making.wait(120) in (128 + signal.SIGTERM, 0)  # 0: it was quicker
        assert set(tmp_path.iterdir()) <= {tmp_path / "x.probing"} and job.alive()


def test_nothing_is_left_of_reading_that_is_ended(tmp_path):
    (tmp_path / "unpacked").mkdir()
    make_zip(tmp_path / "x.probing", *((f"rows/{n}", "x") for n in range(8000)), ("manifest.json", "{}"))
    for words in (["-t", tmp_path / "x.probing", "list"], ["serve", tmp_path / "x.probing"]):
        reading = subprocess.Popen([PROGRAM, *words], env={**os.environ, "TMPDIR": str(tmp_path / "unpacked")},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        jobs.wait_until(lambda: list((tmp_path / "unpacked").iterdir()), what="its folder")
        reading.terminate()
        assert reading.wait(120) in (128 + signal.SIGTERM, 1)  # 1: it was quicker
        assert not list((tmp_path / "unpacked").iterdir())


@contextmanager
def posts_to(look):
    """An address that takes posts, and what look saw at each of them."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(look())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", seen
        server.shutdown()


def test_a_new_finding_makes_a_file_by_itself(tmp_path):
    """Of a process that is stopped, which is a finding; only that of this test's own job is waited for. It is told
    first, and of the older files only those that were made like this one go."""
    made_by_hand = {tmp_path / f"incident-20200101-0000{n}.probing" for n in range(10, 20)}
    made_by_hand |= {tmp_path / "incident-20200101T000000Z-stopped-1-mine.probing", tmp_path / "incident-a.probing"}
    kept_before = {tmp_path / f"incident-20200101T0000{n}Z-stopped-1.probing" for n in range(10, 20)}
    for path in made_by_hand | kept_before:
        path.touch()

    def new_files():
        return set(tmp_path.glob("incident-*.probing")) - made_by_hand - kept_before

    with jobs.python() as job, posts_to(new_files) as (address, seen):
        watch = subprocess.Popen([PROGRAM, "-t", str(job.pid), "diagnose", "--every", "1s", "--bundle", tmp_path],
                                 env={**os.environ, "PROBING_ALERT_WEBHOOK": address},
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            os.kill(job.pid, signal.SIGSTOP)
            jobs.wait_until(new_files, 240, what="a file of the finding")
            jobs.wait_until(lambda: not min(kept_before).exists(), 60, what="the end of the oldest")
        finally:
            watch.terminate()
            watch.wait()
            os.kill(job.pid, signal.SIGCONT)
        assert seen and seen[0] == set(), "it was posted after its file was made"
        assert all(path.exists() for path in made_by_hand)
        path = min(new_files())
        assert [row["pid"] for row in json.loads(ask(path, "list", "--json"))] == [job.pid]
        done = probe("diagnose", "--bundle", tmp_path)
        assert done.returncode == 2 and "--every" in done.stderr


def refused(path, *says):
    done = probe("-t", path, "list")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr + done.stdout
    assert any(text in done.stderr for text in says), done.stderr


def test_a_file_that_was_cut_off_or_damaged_is_refused(incident, tmp_path):
    whole = incident[0].read_bytes()
    path = tmp_path / "bad.probing"
    for share in (0, 1, 3, 30, 300, 600, 900, 990, 999):
        path.write_bytes(whole[:len(whole) * share // 1000])
        refused(path, "cut off", "is not a zip")
    path.write_bytes(whole[:-1])
    refused(path, "cut off")
    changed = bytearray(whole)
    with zipfile.ZipFile(incident[0]) as file:
        changed[whole.index(file.read("findings.txt"))] ^= 1
    path.write_bytes(changed)
    refused(path, "checksum", "damaged")


def make_zip(path, *parts, how=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", how) as file:
        for name, text in parts:
            file.writestr(name, text)


HOSTILE = {
    "nothing": '{}', "list": '[]', "no_json": "x", "deep": "[" * 100000, "newer": '{"probing_incident": 9}',
    "no_processes": '{"probing_incident": 1}', "text": '{"probing_incident": "1", "processes": []}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_of_another_program_is_refused(name, tmp_path):
    make_zip(tmp_path / "x.probing", ("manifest.json", HOSTILE[name]))
    refused(tmp_path / "x.probing", "no incident's file", "newer release")


def test_a_hostile_file_reaches_nothing_else(tmp_path):
    path = tmp_path / "x.probing"
    for name in ("../out", "/etc/out", "a/../../out", "a//b", "./a", "a/" * 40 + "b", "a\x01b", "x" * 500,
                 ".service/probing-serve/token", "rows/.hidden"):
        make_zip(path, (name, "out"))
        refused(path, "leads elsewhere", "list of parts is wrong")
    make_zip(path, ("manifest.json", "{}" * 100), how=zipfile.ZIP_DEFLATED)
    refused(path, "compressed")
    with pytest.warns(UserWarning):
        make_zip(path, ("a", "one"), ("a", "two"))
    refused(path, "two parts have one name")
    make_zip(path, ("a", "one"), ("b", "two"))
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42:second + 46] = struct.pack("<I", 0)  # both parts are at one place
    path.write_bytes(data)
    refused(path, "lies over another")
    evil = "x\x1b[2J\n"
    make_zip(path, ("manifest.json", json.dumps({"probing_incident": 1, "processes": [
        {"pid": 1, "start_time": -1, "rank": 1e300, "label": evil, "command": evil}, 7, None]})), ("stacks.txt", evil))
    shown = probe("-t", path, "list")
    assert shown.returncode == 0 and "\x1b" not in shown.stdout
    assert "\x1b" not in ask(path, "backtrace")
    done = probe("-t", path, "query", "SELECT 1 FROM memory_usage")
    assert done.returncode == 1 and "no recorded rows" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@NEEDS_SERVE
def test_a_service_of_a_file_answers_about_it_alone(incident, tmp_path):
    path, pids = incident
    with service(tmp_path / "run", str(path)) as served:
        rows = served.json("/api/v1/targets")
        assert [row["pid"] for row in rows] == pids
        assert "training_logs" in str(served.json(f"/api/v1/targets/{pids[2]}/tables"))
        status, _, body = served.ask(f"/api/v1/targets/{os.getpid()}/tables")
        assert status != 200 and b"no process" in body
        status, _, body = served.ask("/")
        assert status == 200
        # It takes nothing of the file for its own: its token lies elsewhere.
        (child,) = commands_of(served)
        env = dict(line.split("=", 1) for line in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in line)
        assert (Path(env["XDG_RUNTIME_DIR"]) / "probing-serve/token").read_text() == served.token
        assert Path(env["PROBING_INCIDENT"]) not in Path(env["XDG_RUNTIME_DIR"]).parents
        status, _, body = served.ask("/api/v1/cluster", body="AAAA", headers={"Content-Type": "text/plain"})
        assert b"needs a process" in body, (status, body)
    for folder in (env["XDG_RUNTIME_DIR"], env["PROBING_INCIDENT"]):
        assert not Path(folder).exists()


@pytest.mark.parametrize("words", [["cluster", "answer"], ["core", "list"], ["now"], ["version"], ["skill", "list"]])
def test_commands_of_such_a_service_never_answer_about_this_machine(words, tmp_path):
    (tmp_path / "manifest.json").write_text('{"probing_incident": 1, "processes": []}')
    done = probe(*words, env={**os.environ, "PROBING_INCIDENT": str(tmp_path)})
    assert done.returncode == 2 and "needs a process" in done.stderr and not done.stdout, done
