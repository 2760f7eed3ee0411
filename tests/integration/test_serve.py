"""probing serve: its answers, refused requests, and commands from other machines."""
import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import jobs
import prometheus_client.openmetrics.parser
import prometheus_client.parser
import pyarrow.ipc
import pytest
from jobs import PROGRAM, probe
# noqa: F401 (job and served are fixtures)
from serve_kit import NEEDS_SERVE, Service, Stream, commands_of, job, rss, served, service

pytestmark = NEEDS_SERVE


# --- what it answers ---

def test_targets_are_those_of_list(served, job):
    [row] = [row for row in served.json("/api/v1/targets") if row["pid"] == job.pid]
    [listed] = [row for row in json.loads(probe("list", "--json").stdout) if row["pid"] == job.pid]
    assert row["id"] == listed["id"] and row["command"] == listed["command"]


def test_stacks_memory_settings_and_tables_are_those_of_the_commands(served, job):
    stacks = served.json(f"/api/v1/targets/{job.pid}/stacks?locals=true")
    names = [frame["function"] for frame in stacks[0]["threads"][0]["frames"]]
    assert names[-3:] == ["train", "main", "<module>"]
    assert served.json(f"/api/v1/targets/{job.pid}/settings") == json.loads(probe(
        "-t", job.pid, "config", "--json").stdout)
    assert {row["name"] for row in served.json(f"/api/v1/targets/{job.pid}/settings")} >= {"probing.sample_rate"}
    assert served.json(f"/api/v1/targets/{job.pid}/memory")[0]["pid"] == job.pid


def test_eval_runs_in_the_process_and_is_written_down(served, job):
    status, headers, body = served.ask(f"/api/v1/targets/{job.pid}/eval", body="rate * 2")
    assert (status, body, headers["Content-Type"]) == (200, b"0.2\n", "text/plain; charset=utf-8")
    sql = ("SELECT peer, target, what, body, outcome, seconds > 0 AS timed, timestamp > now() - INTERVAL 1 MINUTE AS "
           "new FROM probing.audit ORDER BY timestamp")
    row = {"peer": row_peer(served, sql), "target": str(job.pid), "what": "/api/v1/targets/{id}/eval",
           "body": "rate * 2", "outcome": "ok", "timed": True, "new": True}
    assert served.json("/api/v1/query", body=sql)[-1] == row
    assert json.loads(probe("query", "--json", sql, env=served.env).stdout)[-1] == row
    # An option's name is code here.
    assert served.ask(f"/api/v1/targets/{job.pid}/eval", body="-rate")[2] == b"-0.1\n"


def row_peer(served, sql):
    """The address that the last change came from: a port of this machine."""
    peer = served.json("/api/v1/query", body=sql)[-1]["peer"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", peer)
    return peer


def test_what_failed_and_what_was_a_command_is_written_down_too(served, job):
    assert served.ask(f"/api/v1/targets/{job.pid}/eval", body="1/0")[0] == 422
    assert served.run("eval", "rate", target=f"/{job.pid}").returncode == 0
    sql = "SELECT what, body, outcome FROM probing.audit ORDER BY timestamp DESC LIMIT 2"
    command, failed = served.json(f"/api/v1/query?target={job.pid}", body=sql)
    assert (command["what"], command["body"], command["outcome"]) == ("command", f"-t {job.pid} eval rate", "ok")
    assert failed["body"] == "1/0" and failed["outcome"].startswith("exit status 1: ")
    with (served.folder / "probing-serve/audit").open("a") as audit:
        audit.write('{"id":"0","what":"cut')  # the disk was full
    assert len(served.json("/api/v1/query", body=sql)) == 2


def test_queries_come_in_every_format(served, job):
    sql = "SELECT 1 AS a, 'x' AS b"
    assert served.json("/api/v1/query", body=sql) == [{"a": 1, "b": "x"}]
    for form, want in (("csv", b"a,b\n1,x\n"), ("tsv", b"a\tb\n1\tx\n"), ("jsonl", b'{"a": 1, "b": "x"}\n')):
        assert served.ask(f"/api/v1/query?format={form}", body=sql)[2] == want
    assert served.ask("/api/v1/query?format=parquet", body=sql)[2].startswith(b"PAR1")
    _, headers, body = served.ask("/api/v1/query?format=arrow", body=sql)
    assert headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert pyarrow.ipc.open_stream(body).read_all().to_pylist() == [{"a": 1, "b": "x"}]
    assert served.json(f"/api/v1/query?target={job.pid}", body="SELECT count(*) > 0 AS any FROM "
                                                               "probing.tables") == [{"any": True}]


def test_an_error_before_the_first_row_is_one_of_http(served):
    status, _, body = served.ask("/api/v1/query", body="SELEC 1")
    error = json.loads(body)["error"]
    assert status == 422 and error["code"] == "failed" and "syntax error" in error["message"]


def test_what_came_whole_says_so_at_its_end(served):
    with socket.create_connection((served.host, served.port), timeout=20) as client:
        client.sendall(f"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Probing-Token: "
                       f"{served.token}\r\nContent-Length: 8\r\n\r\nSELECT 1".encode())
        text = client.makefile("rb").read().decode()
    head, _, rest = text.partition("\r\n\r\n")
    assert "Trailer: Probing-Result" in head and rest.endswith("\r\n0\r\nProbing-Result: whole\r\n\r\n"), text


def test_an_error_in_the_middle_breaks_the_stream(served):
    sql = "SELECT CASE WHEN range = 2000000 THEN error('boom') ELSE 'x' END AS v FROM range(3000000)"
    with pytest.raises(http.client.IncompleteRead):
        served.ask("/api/v1/query?format=csv", body=sql)


def test_stacks_of_several_are_merged(served):
    mark = f"several{os.getpid()}"
    with jobs.python(flags=("-X", mark)) as one, jobs.python(flags=("-X", mark)) as two:
        merged = served.json(f"/api/v1/stacks?target={mark}&all=true&merge=true")
        stacks = [stack for stack in merged if stack["frames"][0]["function"] == "train"]  # at one line, or at two
        assert sum(stack["processes"] for stack in stacks) == 2
        assert {m["tid"] for stack in stacks for m in stack["members"]} == {one.pid, two.pid}
        assert [frame["function"] for frame in stacks[0]["frames"]] == ["train", "main", "<module>"]


def test_profiles_come_in_every_format(served, job):
    status, headers, body = served.ask(f"/api/v1/targets/{job.pid}/profile?seconds=0.5&format=folded&idle=true")
    assert status == 200 and b"train" in body
    status, headers, body = served.ask(f"/flamegraph?target={job.pid}&seconds=0.5&idle=1")
    assert headers["Content-Type"] == "image/svg+xml" and body.rstrip().endswith(b"</svg>")
    assert "sandbox" in headers["Content-Security-Policy"]
    assert served.ask(f"/debug/pprof/profile?seconds=0.5&target={job.pid}&idle=1")[2][:2] == b"\x1f\x8b"


def test_the_form_of_an_answer_is_what_the_client_accepts(served):
    def accepting(text):
        return served.ask("/api/v1/query", body="SELECT 1 AS a", headers={"Accept": text})[2]
    assert accepting("text/csv") == b"a\n1\n"
    assert accepting("image/png, application/x-ndjson;q=0.5, */*") == b'{"a": 1}\n'
    assert json.loads(accepting("*/*")) == json.loads(accepting("text/html,application/xhtml+xml,text/csv")) == [
        {"a": 1}]


def test_recordings_are_started_read_and_ended(served):
    with jobs.python() as one:
        path = f"/api/v1/targets/{one.pid}/recording"
        assert served.ask(path)[0] == 422, "nothing is recorded yet"
        assert served.ask(path + "?rate=50&idle", method="POST")[0] == 200
        try:
            [row] = [row for row in served.json("/api/v1/recordings") if row["pid"] == one.pid]
            assert (row["state"], row["rate"]) == ("recording", 50)
            jobs.wait_until(lambda: b"train" in served.ask(path + "?format=folded&since=1m%20ago")[2], 20, "samples")
        finally:
            status, _, body = served.ask(path, method="DELETE")
            assert status == 200, body
        assert [row["state"] for row in served.json("/api/v1/recordings") if row["pid"] == one.pid] == ["ended"]
        assert b"train" in served.ask(f"/api/v1/targets/{row_id(served, one.pid)}/recording?format=folded")[2]
        assert served.ask(path, method="DELETE")[0] == 422
        assert served.ask(path + "?since=yesterday-ish&format=folded")[0] == 422


def row_id(served, pid):
    [row] = [row for row in served.json("/api/v1/targets") if row["pid"] == pid
             and row["state"] not in ("dead", "archived")]
    return row["id"]


def test_core_files_of_a_folder(tmp_path):
    (tmp_path / "cores").mkdir()
    (tmp_path / "cores/core.1").write_bytes(b"no core")
    (tmp_path / "cores/link").symlink_to("/etc/passwd")
    with service(tmp_path / "r", "--cores", str(tmp_path / "cores")) as s:
        assert [core["file"] for core in s.json("/api/v1/cores")] == ["core.1"]
        status, _, body = s.ask("/api/v1/cores/core.1/stacks")
        assert status == 422 and "core" in json.loads(body)["error"]["message"]
        for name in ("..", "..%2fr", ".hidden", "--all"):
            assert s.ask(f"/api/v1/cores/{name}/stacks")[0] == 404


def test_metrics_are_what_prometheus_reads(served, job):
    status, headers, body = served.ask("/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    line = r'[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)+\} [0-9.e+]+'
    for text in body.decode().splitlines():
        assert text.startswith(("# HELP ", "# TYPE ")) or re.fullmatch(line, text), text
    assert f'probing_process_resident_bytes{{pid="{job.pid}"' in body.decode()


def test_the_description_names_every_route(served):
    described = served.json("/openapi.json")
    listed = {tuple(line.split()[:2]) for line in served.ask("/")[2].decode().splitlines()[2:]}
    assert {(method.upper(), path) for path, methods in described["paths"].items() for method in methods} == listed
    assert described["openapi"] == "3.1.0" and len(listed) > 15
    drawn = described["paths"]["/flamegraph"]["get"]["responses"]["default"]["$ref"].rsplit("/", 1)[-1]
    assert set(described["components"]["responses"][drawn]["content"]) == {"application/json", "image/svg+xml"}


# --- whom it refuses ---

REFUSED = {
    "no token": (dict(path="/api/v1/targets", token=False), 401),
    "a wrong token": (dict(path="/api/v1/targets", token=False, headers={"Authorization": "Bearer " + "0" * 64}), 401),
    "another host": (dict(path="/api/v1/targets", headers={"Host": "evil.example"}), 421),
    "another site": (dict(path="/api/v1/query", body="SELECT 1", headers={"Origin": "http://evil.example"}), 403),
    "a page of another port": (dict(path="/api/v1/query", body="SELECT 1", headers={"Sec-Fetch-Site": "same-site"}),
                               403),
    "10 GB": (dict(path="/api/v1/query", method="POST", headers={"Content-Length": str(10 << 30)}), 413),
    "an unknown argument": (dict(path="/api/v1/targets?colour=blue"), 400),
    "a bad flag": (dict(path="/api/v1/targets?dead=perhaps"), 400),
    "a number out of range": (dict(path="/api/v1/targets/1/profile?seconds=1e9"), 400),
    "a number that is none": (dict(path="/api/v1/targets/1/profile?seconds=nan"), 400),
    "an unknown format": (dict(path="/api/v1/query?format=doc", body="SELECT 1"), 400),
    "no body": (dict(path="/api/v1/query", body=""), 400),
    "a path that climbs": (dict(path="/api/v1/../../etc/passwd"), 404),
    "an id that is an option": (dict(path="/api/v1/targets/--all/stacks"), 404),
    "another method": (dict(path="/api/v1/targets", method="DELETE"), 405),
    "a process that is not there": (dict(path="/api/v1/targets/99999999/stacks"), 404),
    "no process where one is needed": (dict(path="/flamegraph"), 400),
    "an empty flag": (dict(path="/api/v1/targets?dead="), 400),
    "core files of no folder": (dict(path="/api/v1/cores"), 404),
    "an upgrade from another site": (dict(path="/api/v1/command",
                                          headers={"Upgrade": "probing-command", "Connection": "Upgrade",
                                                                            "Origin": "http://evil.example"}), 403),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(served, name):
    asked, want = REFUSED[name]
    status, _, body = served.ask(**asked)
    assert status == want, body
    assert json.loads(body)["error"]["message"]


def test_refuses_what_no_client_sends(served):
    auth = f"Authorization: Bearer {served.token}"
    assert served.raw(f"GET /api/v1/targets HTTP/1.1\nHost: localhost\nHost: evil.example\n{auth}") == 400
    assert served.raw(f"POST /api/v1/query HTTP/1.1\nHost: localhost\n{auth}\nContent-Length: "
                      f"1\nTransfer-Encoding: chunked") == 400
    assert served.raw(f"POST /api/v1/query HTTP/1.1\nHost: localhost\n{auth}\nContent-Length: "
                      f"1\nContent-Length: 2") == 400
    assert served.raw(f"GET /api/v1/targets HTTP/1.1\n{auth}") in (400, 421)


@pytest.mark.parametrize("path", ["/api/v1/%2e%2e/%2e%2e/etc/passwd", "/api/v1/targets/..%2f..%2fetc%2fpasswd/stacks",
                                  "/api/v1/targets/1%00/stacks",
                                  "/api/v1/targets/1%0d%0aX-A:1/stacks", "//api/v1/targets", "/config/..%2f..%2fetc",
                                  "/config/--all", "/api/v1/targets/%2d%2dall/stacks"])
def test_paths_lead_nowhere_else(served, path):
    status, headers, _ = served.ask(path)
    assert status == 404 and "X-A" not in headers


def test_an_upgrade_or_a_stream_without_the_token_is_refused(served):
    for path, to in (("/api/v1/command", "probing-command"), ("/api/v1/events?topics=now", "")):
        assert served.ask(path, token=False, headers={"Connection": "Upgrade", "Upgrade": to} if to else {})[0] == 401


def test_requests_that_never_end_hold_up_nobody(served):
    halves = [socket.create_connection((served.host, served.port)) for _ in range(200)]
    for n, half in enumerate(halves):
        half.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        if n % 2:
            half.sendall(b"POST /api/v1/query HTTP/1.1\r\nContent-Length: 100\r\n\r\nSELECT")
    assert served.ask("/api/v1/targets")[0] == 200
    for half in halves:
        half.close()


def test_a_body_without_an_end_is_given_up(served):
    def send(megabytes):
        with socket.create_connection((served.host, served.port), timeout=20) as client:
            client.sendall(f"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nX-Probing-Token: "
                           f"{served.token}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(megabytes):
                client.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            client.sendall(b"0\r\n\r\n")
            return client.makefile("rb").readline().split()[1]
    assert send(2) == b"413"
    before = rss(served.process.pid)
    with pytest.raises((OSError, IndexError)):
        send(64)
    assert rss(served.process.pid) - before < 8192


def test_prometheus_reads_the_metrics(served, job):
    def check(families):
        families = {family.name: family for family in families}
        sizes = {sample.labels["pid"]: sample.value for sample in families["probing_process_resident_bytes"].samples}
        assert sizes[str(job.pid)] > 1 << 20 and families["probing_process_uptime_seconds"].type == "gauge"
    check(prometheus_client.parser.text_string_to_metric_families(served.ask("/metrics")[2].decode()))
    # As Prometheus itself asks.
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    _, headers, body = served.ask("/metrics", headers={"Accept": accept})
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    check(prometheus_client.openmetrics.parser.text_string_to_metric_families(body.decode()))


def test_tokens_come_as_clients_send_them(served):
    basic = base64.b64encode(f"any:{served.token}".encode()).decode()
    assert served.ask("/api/v1/targets", token=False, headers={"Authorization": f"Basic {basic}"})[0] == 200
    assert served.ask("/api/v1/targets", token=False, headers={"X-Probing-Token": served.token})[0] == 200
    assert served.ask(f"/api/v1/targets?token={served.token}", token=False)[0] == 200
    assert served.ask("/health", token=False)[0] == 200


def test_a_browser_gets_a_cookie_for_the_token_in_its_address(served):
    status, headers, _ = served.ask(f"/?a=1&token={served.token}&b=x%20%26%0d", token=False)
    assert (status, headers["Location"]) == (303, "/?a=1&b=x%20%26%0D")
    name, *attributes = headers["Set-Cookie"].split("; ")
    assert name == f"probing_token_{served.port}={served.token}"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    status, headers, _ = served.ask(f"//evil.example/%0d%0aX:1?token={served.token}", token=False,
                                    headers={"Accept": "text/html"})
    assert (status, headers["Location"]) == (303, "/evil.example/%0D%0AX%3A1")
    # The page itself is nobody's secret: a wrong token gets it, and neither a cookie nor an answer.
    assert "Set-Cookie" not in served.ask("/?token=" + "0" * 64, token=False)[1]
    assert served.ask("/api/v1/targets?token=" + "0" * 64, token=False)[0] == 401

    def with_cookie(path, body=None, **headers):
        return served.ask(path, body=body, token=False, headers={"Cookie": name, **headers})[0]
    assert with_cookie("/api/v1/targets") == 200
    assert with_cookie("/api/v1/query", "SELECT 1") == 403
    assert with_cookie("/api/v1/query", "SELECT 1", **{"Sec-Fetch-Site": "same-origin"}) == 200
    assert with_cookie("/api/v1/query", "SELECT 1", Origin=f"http://{served.address}") == 200
    assert with_cookie("/api/v1/query", "SELECT 1", Origin=f"http://{served.host}:{served.port ^ 1}") == 403


def test_a_service_that_only_reads_has_no_way_to_change(tmp_path, job):
    with service(tmp_path / "r", "--read-only") as s:
        assert s.ask(f"/api/v1/targets/{job.pid}/eval", body="1")[0] == 404
        assert s.ask(f"/api/v1/targets/{job.pid}/settings", body="probing.sample_rate=1")[0] == 405
        assert s.ask(f"/api/v1/targets/{job.pid}/stacks")[0] == 200
        assert s.run("eval", "1", target=f"/{job.pid}").returncode == 1


def test_the_unix_socket_asks_its_owner_for_nothing_and_lets_nobody_else_in(served, monkeypatch):
    path = served.folder / "probing-serve/socket"
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.path.relpath(path))  # a socket's name is short
        client.sendall(b"GET /api/v1/targets HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.makefile("rb").readline().split()[1] == b"200"
    assert (path.parent.stat().st_mode & 0o777, (path.parent / "token").stat().st_mode & 0o777) == (0o700, 0o600)


# --- load, and ends ---

def test_a_client_that_does_not_read_costs_a_buffer_and_nobody_else(served):
    before = rss(served.process.pid)
    body = b"SELECT range, range * 2, 'some text' FROM range(10000000)"
    with socket.create_connection((served.host, served.port)) as client:
        client.sendall(b"POST /api/v1/query?format=csv HTTP/1.1\r\nHost: localhost\r\nX-Probing-Token: %s\r\n"
                       b"Content-Length: %d\r\n\r\n%s"
                       % (served.token.encode(), len(body), body))
        assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(1)
        assert rss(served.process.pid) - before < 8192
        assert served.ask("/api/v1/targets")[0] == 200
        assert commands_of(served)
    jobs.wait_until(lambda: not commands_of(served), 20, "the end of the command of a client that left")


def test_clients_that_do_not_read_lose_their_places_to_those_who_wait(served):
    body = b"SELECT range, range * 2, 'some text' FROM range(10000000)"
    with ExitStack() as unread:
        for _ in range(12):  # there are 4 to 8 places for queries, by the number of CPUs
            client = unread.enter_context(socket.create_connection((served.host, served.port)))
            client.sendall(b"POST /api/v1/query?format=csv HTTP/1.1\r\nHost: localhost\r\nX-Probing-Token: %s\r\n"
                           b"Content-Length: %d\r\n\r\n%s"
                           % (served.token.encode(), len(body), body))
        jobs.wait_until(lambda: len(commands_of(served)) >= 4, 30, "that all places of queries are taken")
        assert served.ask("/api/v1/targets")[0] == 200, "what is no query does not wait for them"
        assert served.json("/api/v1/query", body="SELECT 1 AS a") == [{"a": 1}]
    jobs.wait_until(lambda: not commands_of(served), 20, "the end of their commands")


@pytest.mark.parametrize("clients", [128, 256, 384])
def test_many_clients_at_once_are_all_answered(served, clients):
    with ThreadPoolExecutor(clients) as pool:
        assert set(pool.map(lambda _: served.ask("/health", token=False)[0], range(2 * clients))) == {200}


def test_more_commands_than_may_run_wait_for_their_turn(served):
    with ThreadPoolExecutor(200) as pool:
        said = list(pool.map(lambda _: served.ask("/api/v1/query", body="SELECT 1")[0], range(200)))
    assert said.count(200) == 200
    assert served.json("/api/v1/query", body="SELECT 1 AS a") == [{"a": 1}]


def test_one_a_user_and_the_next_takes_over(tmp_path, job):
    with service(tmp_path / "r") as s:
        second = subprocess.run([PROGRAM, "serve"], env=s.env, capture_output=True, text=True, timeout=20)
        assert second.returncode == 1 and f"your service runs already: http://{s.address}" in second.stderr
        status = subprocess.run([PROGRAM, "serve", "--status"], env=s.env, capture_output=True, text=True, timeout=20)
        assert s.token in status.stdout and str(s.process.pid) in status.stdout
        assert subprocess.run([PROGRAM, "serve", "--stop"], env=s.env, timeout=20).returncode == 0
        assert s.process.wait(20) == 0
    killed = subprocess.Popen([PROGRAM, "serve"], env=s.env, stdout=subprocess.PIPE, text=True)
    assert s.token in killed.stdout.readline()
    killed.kill()
    killed.communicate()
    with service(tmp_path / "r") as again:
        assert again.token == s.token and again.ask(f"/api/v1/targets/{job.pid}/stacks")[0] == 200


def test_killed_and_replaced_under_load_it_is_found_again_and_no_process_notices(tmp_path):
    """Clients that ask all the time, and one that follows events, across a kill and the start of another installation
    at the same address."""
    stop, good = threading.Event(), []

    def ask_again(s):
        while not stop.is_set():
            with suppress(OSError, http.client.HTTPException, AssertionError):
                good.append((s.json("/api/v1/query", body="SELECT 1 AS a", timeout=5), time.monotonic()))

    def answered_after(moment):
        return sum(when > moment for _, when in list(good)) >= 8
    upgraded = tmp_path / "upgraded"
    shutil.copytree(PROGRAM.parent.parent, upgraded,
                    ignore=lambda _, names: set(names) - {"bin", "lib"} if "bin" in names else set())
    with jobs.python() as one, ThreadPoolExecutor(4) as pool:
        try:
            with service(tmp_path / "r") as s:
                for _ in range(4):
                    pool.submit(ask_again, s)
                with Stream(s, "now") as stream:
                    last = stream.wait_for(lambda events: events)[-1][1]
                jobs.wait_until(lambda: answered_after(0), 30, "answers")
                s.process.kill()
                s.process.wait()
            began = time.monotonic()
            with service(tmp_path / "r", s.address, program=upgraded / "bin/probing") as s:
                jobs.wait_until(lambda: answered_after(began), 30, "answers of the next service to the same clients")
                with Stream(s, "now", **{"Last-Event-ID": last}) as stream:
                    events = stream.wait_for(lambda events: events)
                assert one.pid in {row["pid"] for row in events[0][2]}
                assert one.alive() and s.ask(f"/api/v1/targets/{one.pid}/stacks")[0] == 200
        finally:
            stop.set()
    assert all(rows == [{"a": 1}] for rows, _ in good)


def test_in_the_background_it_outlives_the_command(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    started = subprocess.run([PROGRAM, "serve", "--background"], env=env, stdout=subprocess.PIPE, text=True, timeout=20)
    try:
        assert started.returncode == 0 and started.stdout.startswith("http://127.0.0.1:")
        s = Service(None, tmp_path / "r", started.stdout)
        assert s.ask("/api/v1/targets")[0] == 200
    finally:
        assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0


# --- commands from elsewhere ---

WAITS = "import time\nfor _ in range(1000): time.sleep(0.05)"

def test_commands_give_the_same_there_as_here(served, job):
    for words in (["eval", "rate"], ["eval", "1/0"], ["eval"], ["backtrace", "--colour"],
                  ["config", "probing.nothing"]):
        here, there = probe("-t", job.pid, *words), served.run(*words, target=f"/{job.pid}")
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr), words
    assert str(job.pid) in served.run("list").stdout
    assert "train" in served.run("backtrace", target=f"/{job.pid}").stdout


def test_files_go_along_and_come_back(served, job, tmp_path):
    (tmp_path / "q.sql").write_text("SELECT 7 AS n")
    done = served.run("query", "-f", tmp_path / "q.sql", "-o", tmp_path / "n.csv")
    assert done.returncode == 0 and (tmp_path / "n.csv").read_text() == "n\n7\n", done.stderr
    (tmp_path / "code.py").write_text("print('it is', rate)\n")
    assert served.run("execute", tmp_path / "code.py", target=f"/{job.pid}").stdout == "it is 0.1\n"
    failed = served.run("query", "-o", tmp_path / "none.csv", "SELEC 1")
    assert failed.returncode == 1 and not list(tmp_path.glob("none*"))


def test_input_goes_along_and_a_signal_too(served, job):
    assert served.run("query", "--format", "csv", "-", input="SELECT 5 AS n").stdout == "n\n5\n"
    waiting = subprocess.Popen([PROGRAM, "-t", f"{served.address}/{job.pid}", "eval", "--timeout", "60", WAITS],
                               env=served.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    jobs.wait_until(lambda: commands_of(served), what="the command")
    time.sleep(0.5)
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=30)
    assert waiting.returncode == 1 and "KeyboardInterrupt" in said, said
    jobs.wait_until(lambda: not commands_of(served), what="the end of the command")


def test_a_tool_that_is_killed_leaves_no_command_behind(served, job):
    waiting = subprocess.Popen([PROGRAM, "-t", f"{served.address}/{job.pid}", "eval", "--timeout", "60", WAITS],
                               env=served.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    jobs.wait_until(lambda: commands_of(served), what="the command")
    waiting.kill()
    waiting.wait()
    jobs.wait_until(lambda: not commands_of(served), 20, "the end of the command")
    assert served.run("eval", "rate", target=f"/{job.pid}").stdout == "0.1\n"


def test_a_service_that_ends_takes_its_commands_along(tmp_path, job):
    with service(tmp_path / "r") as s:
        (s.folder / "probing-serve/job-left").mkdir()  # by one that was killed
        (s.folder / "probing-serve/job-left/x").touch()
    with service(tmp_path / "r") as s:
        waiting = subprocess.Popen([PROGRAM, "-t", f"{s.address}/{job.pid}", "eval", "--timeout", "60", WAITS],
                                   env=s.env, stderr=subprocess.PIPE, text=True)
        jobs.wait_until(lambda: commands_of(s), what="the command")
        [command] = commands_of(s)
        assert subprocess.run([PROGRAM, "serve", "--stop"], env=s.env, timeout=20).returncode == 0
        assert "connection lost" in waiting.communicate(timeout=20)[1] and waiting.returncode == 1
        jobs.wait_until(lambda: not Path(f"/proc/{command}").exists(), what="the end of the command")
    assert probe(job.pid, "eval", "rate").stdout == "0.1\n"


def test_without_a_service_or_its_token_it_says_so(served):
    other = {**served.env, "PROBING_TOKEN": "x"}
    wrong = served.run("list", env=other)
    assert wrong.returncode == 1 and "a token is needed" in wrong.stderr
    right = served.folder / "probing-serve/token"
    assert served.run("list", "--token-file", right, env=other).returncode == 0
    assert served.run(f"--token-file={right}", "list", env=other).returncode == 0
    missing = served.run("list", "--token-file", served.folder / "none", env=other)
    assert missing.returncode == 1 and "none cannot be read" in missing.stderr
    assert probe("-t", os.getpid(), "memory", "--token-file", right).returncode == 2
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        none = probe("-t", "127.0.0.1:%d" % closed.getsockname()[1], "list")
    assert none.returncode == 1 and "no service answers" in none.stderr


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH\r\n" * 700, b"HTTP/1.1 101 Ok\r\n\r\n" + b"\xff" * 100,
                                  b"HTTP/1.1 101 Ok\r\n\r\n" + b"F\x04\x00\x00\x00../x" + b"X\x00\x00\x00\x00"],
                         ids=["nothing", "another protocol", "noise", "a file that was not asked for"])
def test_a_service_that_is_none_harms_nobody(said, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        tool = subprocess.Popen([PROGRAM, "-t", "127.0.0.1:%d" % server.getsockname()[1], "list"],
                                stdin=subprocess.DEVNULL, cwd=tmp_path,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        client, _ = server.accept()
        with client:
            client.recv(65536)
            with suppress(OSError):  # it has heard enough
                client.sendall(said)
                client.shutdown(socket.SHUT_WR)
            _, words = tool.communicate(timeout=30)
    assert tool.returncode == 1 and not list(tmp_path.iterdir())
    assert words.startswith("probing: list: ") or said.endswith(b"X\x00\x00\x00\x00")


def test_inject_starts_it_about_the_process(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    with jobs.python() as one:
        first = probe(one.pid, "inject", "-b", env=env)
        try:
            s = Service(None, tmp_path / "r", first.stdout.splitlines()[1])
            assert b"train" in s.ask("/flamegraph?seconds=0.5&idle=1&format=folded")[2]
            assert probe(one.pid, "inject", "-P", env=env).stdout.splitlines()[1] == first.stdout.splitlines()[1]
        finally:
            assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0


def test_inject_starts_it_at_an_address(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with jobs.python() as one:
            refused = probe(one.pid, "inject", "-a", address, env=env)
            assert refused.returncode == 1 and "in use" in refused.stderr and "is probed all the same" in refused.stderr
            free.close()
            with jobs.python() as other:
                said = probe(other.pid, "inject", "-P", "-a", address, env=env).stdout.splitlines()
                try:
                    s = Service(None, tmp_path / "r", said[1])
                    assert s.address == address, "the process that the page opens on"
                    assert s.json("/api/v1/service")["target"] == str(other.pid), "the process that the page opens on"
                    # A second one is about the first's process still, and says where it is.
                    assert probe(one.pid, "inject", "-a", "127.0.0.1:0", env=env).stdout.splitlines()[1] == said[1]
                    assert [each["pid"] for each in s.json("/api/v1/stacks")] == [other.pid]
                finally:
                    assert subprocess.run([PROGRAM, "serve", "--stop"], env=env, timeout=20).returncode == 0
