"""probing serve for others: a service of root's and its other users, TLS, and addresses beyond this machine."""
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path

import jobs
import pytest
from jobs import PROGRAM
from serve_kit import NEEDS_SERVE, service
from serve_users_kit import NEEDS_ROOT, OTHER, THIRD, ask_as, for_all

pytestmark = NEEDS_SERVE
@pytest.fixture(scope="module")
def shared():
    """A service of root's for all, a process of root's, and one of another user."""
    with for_all() as folder, tempfile.TemporaryDirectory() as own, jobs.python() as roots:
        script = folder / "train.py"
        script.write_text(jobs.TRAINING)
        with jobs.start("/usr/bin/python3", script, ready="ready", user=OTHER, group=OTHER, extra_groups=[],
                        cwd="/") as theirs, \
                service(Path(own) / "r", "--socket", str(folder / "socket"), "--open", str(roots.pid), "--cores",
                        "/etc", program=folder / "probing/bin/probing") as s:
            yield s, str(folder / "socket"), roots, theirs


@NEEDS_ROOT
def test_a_service_of_root_gives_a_user_that_users_processes_and_no_others(shared):
    s, path, roots, theirs = shared
    own, foreign, listed, evaluated, refused, sql, seen, query = ask_as(
        OTHER, path, ("GET", f"/api/v1/targets/{theirs.pid}/stacks", None),
        ("GET", f"/api/v1/targets/{roots.pid}/stacks?locals=1", None),
        ("GET", "/api/v1/targets", None), ("POST", f"/api/v1/targets/{theirs.pid}/eval",
                                           "import os; (rate, os.getuid())"),
        ("POST", f"/api/v1/targets/{roots.pid}/eval", "1"), ("POST", f"/api/v1/query?target={roots.pid}",
                                                             "SELECT * FROM system.envs"),
        ("POST", f"/api/v1/query?target={theirs.pid}", "SELECT count(*) > 0 AS any FROM system.maps"),
        ("POST", "/api/v1/query", "SELECT 1 AS a"))
    assert own[0] == 200 and "train" in own[1] and foreign[0] == 422 and "train" not in foreign[1]
    assert {row["pid"] for row in json.loads(listed[1])} & {roots.pid, theirs.pid} == {theirs.pid}
    assert evaluated == [200, f"(0.1, {OTHER})\n"]
    assert refused[0] == 422
    assert f"you are nobody (uid {OTHER})" in refused[1]
    assert (sql[0], json.loads(seen[1]), json.loads(query[1])) == (422, [{"any": True}], [{"a": 1}])
    # A third one sees neither's.
    both = ask_as(THIRD, path, *(("GET", f"/api/v1/targets/{pid}/stacks", None) for pid in (roots.pid, theirs.pid)))
    assert [status for status, _ in both] == [422, 422] and "train" not in str(both)
    # Root sees all, by the socket and with the token.
    assert [status for status, _ in ask_as(0, path, ("GET", f"/api/v1/targets/{theirs.pid}/stacks", None))] == [200]
    rows = s.json("/api/v1/query", body="SELECT peer, outcome FROM probing.audit WHERE what LIKE '%eval' ORDER "
                                        "BY timestamp")
    assert [row["peer"].endswith(f" of user {OTHER}") for row in rows] == [True, True]
    assert rows[0]["outcome"] == "ok"
    assert rows[1]["outcome"].startswith("exit status 1")


@NEEDS_ROOT
def test_what_root_has_chosen_and_keeps_is_not_for_others(shared):
    s, path, roots, theirs = shared
    assert s.ask("/flamegraph?seconds=0.2&idle=1&format=folded")[0] == 200 and s.ask("/api/v1/cores")[0] == 200
    for method, where, body in (("GET", "/flamegraph?seconds=0.2", None), ("GET", "/api/v1/cores", None),
                                ("GET", "/api/v1/cores/shadow/stacks", None),
                                ("GET", f"/api/v1/targets/{theirs.pid}/source?path={theirs.log}", None)):
        [[status, said]] = ask_as(OTHER, path, (method, where, body))
        assert status in (400, 404, 405), (where, said)
    # Files that a command writes are the user's own, and the folder of the service stays closed.
    [profile, audit] = ask_as(OTHER, path,
                              ("GET", f"/api/v1/targets/{theirs.pid}/profile?seconds=0.3&idle=1&format=folded", None),
                              ("POST", "/api/v1/query", "SELECT count(*) AS n FROM probing.audit"))
    assert profile[0] == 200 and "train" in profile[1] and json.loads(audit[1]) == [{"n": 0}]
    assert (s.folder / "probing-serve").stat().st_mode & 0o777 == 0o700


EVENTS = """
import socket, sys, time
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.settimeout(60)
    client.sendall(b"GET /api/v1/events?topics=now HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    text = b""
    while b"]" not in text:
        text += client.recv(65536)
print(text.decode())
"""


@NEEDS_ROOT
def test_events_are_of_the_users_own_processes(shared):
    s, path, roots, theirs = shared
    done = subprocess.run(["/usr/bin/python3", "-c", EVENTS, path], user=OTHER, group=OTHER, extra_groups=[],
                          capture_output=True, text=True, timeout=90, cwd="/")
    # Other tests' processes of the same user may be there.
    assert f'"pid": {theirs.pid}' in done.stdout and f'"pid": {roots.pid}' not in done.stdout, done.stdout + done.stderr


HOLDS = """
import socket, sys
clients, body = [], b"SELECT range, 'some text' FROM range(10000000)"
for _ in range(24):
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])
    client.settimeout(60)
    client.sendall(b"POST /api/v1/query?format=csv HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
    clients.append(client)
print(*(client.recv(12)[9:].decode() for client in clients), flush=True)
sys.stdin.read()
"""


@NEEDS_ROOT
def test_a_user_cannot_take_all_places(shared):
    s, path, roots, theirs = shared
    with subprocess.Popen(["/usr/bin/python3", "-c", HOLDS, path], user=OTHER, group=OTHER, extra_groups=[],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as holder:
        said = holder.stdout.readline().split()
        assert sorted(said) == ["200"] * 16 + ["503"] * 8
        assert ask_as(OTHER, path, ("GET", "/api/v1/targets", None))[0][0] == 503
        assert s.ask("/api/v1/targets")[0] == ask_as(THIRD, path, ("GET", "/api/v1/targets", None))[0][0] == 200
        holder.stdin.close()
    jobs.wait_until(lambda: ask_as(OTHER, path, ("GET", "/api/v1/targets", None))[0][0] == 200, 30,
                    "that the user may ask again")


@NEEDS_ROOT
def test_a_service_of_a_user_answers_no_other_user():
    with for_all() as folder:
        home = folder / "home"
        home.mkdir(mode=0o700)
        os.chown(home, OTHER, OTHER)
        env = {"XDG_RUNTIME_DIR": str(home), "PATH": os.environ["PATH"], "HOME": str(home)}
        run = dict(env=env, user=OTHER, group=OTHER, extra_groups=[], cwd="/", text=True)
        program = folder / "probing/bin/probing"
        refused = subprocess.run([program, "serve", "--socket", str(home / "shared")], capture_output=True, timeout=20,
                                 **run)
        assert refused.returncode == 1 and "--socket is for root" in refused.stderr
        process = subprocess.Popen([program, "serve"], stdout=subprocess.PIPE, **run)
        try:
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            home.chmod(0o711)
            (home / "probing-serve").chmod(0o711)
            (home / "probing-serve/socket").chmod(0o666)
            path = str(home / "probing-serve/socket")
            want = ("GET", "/api/v1/targets", None)
            assert [ask_as(uid, path, want)[0][0] for uid in (OTHER, THIRD,
                                                              0)] == [200, 403,
                                                                      200], ("the kernel says who asks, also where the "
                                                                             "folder is open")
        finally:
            process.terminate()
            process.communicate(timeout=20)


# --- TLS, and beyond this machine ---

@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out",
                    folder / "cert.pem", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True,
                   timeout=60)
    return folder


def test_with_a_certificate_it_speaks_tls_alone(tmp_path, certificate):
    words = ("--cert", str(certificate / "cert.pem"), "--key", str(certificate / "key.pem"))
    with jobs.python() as one, service(tmp_path / "r", *words) as s:
        def ask(path, context, body=None, token=True):
            connection = http.client.HTTPSConnection("localhost", s.port, timeout=30, context=context)
            connection.request("POST" if body else "GET", path, body=body,
                               headers={"Authorization": f"Bearer {s.token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        trusting = ssl.create_default_context(cafile=certificate / "cert.pem")
        assert json.loads(ask("/api/v1/query", trusting, "SELECT 7 AS n")[2]) == [{"n": 7}]
        assert ask("/api/v1/targets", trusting, token=False)[0] == 401
        assert "; Secure" in ask(f"/?token={s.token}", trusting, token=False)[1]["Set-Cookie"]
        with pytest.raises(ssl.SSLCertVerificationError):
            ask("/health", ssl.create_default_context())
        with pytest.raises((OSError, http.client.HTTPException)):  # no TLS
            s.ask("/health", timeout=10)
        if shutil.which("curl"):
            done = subprocess.run(["curl", "-sS", "--cacert", certificate / "cert.pem", "-H",
                                   f"Authorization: Bearer {s.token}", f"https://localhost:{s.port}/api/v1/targets"],
                                  capture_output=True, text=True, timeout=30)
            assert one.pid in [row["pid"] for row in json.loads(done.stdout)], done.stderr
        there = s.run("list")
        assert there.returncode == 1 and "TLS" in there.stderr, there.stderr
    status = subprocess.run([PROGRAM, "serve", *words[:2]], capture_output=True, text=True, timeout=20)
    assert status.returncode == 2 and "--cert and --key go together" in status.stderr
    (tmp_path / "bad.pem").write_text("no key\n")
    bad = subprocess.run([PROGRAM, "serve", *words[:3], str(tmp_path / "bad.pem")], capture_output=True, text=True,
                         timeout=20, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")})
    assert bad.returncode == 1 and "--cert and --key" in bad.stderr


def test_beyond_this_machine_a_token_is_needed_and_a_missing_certificate_is_said(tmp_path, certificate):
    with service(tmp_path / "r", "0.0.0.0:0") as s:
        s.host = "127.0.0.1"
        name = socket.gethostname()
        assert s.ask("/api/v1/targets", token=False)[0] == 401 and s.ask("/api/v1/targets")[0] == 200
        # It is asked under the machine's name and under the address that was connected to; a name that somebody makes
        # lead here is none.
        assert s.ask("/api/v1/targets", headers={"Host": f"{name}:{s.port}"})[0] == 200
        assert s.ask("/api/v1/targets",
                     headers={"Host": f"evil.example:{s.port}"})[0] == s.ask("/api/v1/targets", headers={
                         "Host": f"10.1.2.3:{s.port}"})[0] == 421
        s.process.terminate()
        assert "without TLS, so the token can be read on the network" in s.process.communicate(timeout=20)[1]
    with service(tmp_path / "r", "--cert", str(certificate / "cert.pem"), "--key", str(certificate / "key.pem"),
                 "0.0.0.0:0") as s:
        s.process.terminate()
        assert s.process.communicate(timeout=20)[1] == ""
    with service(tmp_path / "r") as s:
        s.process.terminate()
        assert s.process.communicate(timeout=20)[1] == ""
