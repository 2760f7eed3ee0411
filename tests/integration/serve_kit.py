"""A service of `probing serve` for tests, and requests to it; served and job are fixtures for whoever imports them."""
import http.client
import json
import os
import re
import socket
import subprocess
import urllib.parse
from contextlib import contextmanager, suppress
from pathlib import Path

import jobs
import pytest
from jobs import PROGRAM

NEEDS_SERVE = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")


class Service:
    def __init__(self, process, folder, line):
        url = urllib.parse.urlsplit(line)
        self.process, self.folder, self.host, self.port = process, folder, url.hostname, url.port
        self.address, self.token = f"{url.hostname}:{url.port}", urllib.parse.parse_qs(url.query)["token"][0]
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}

    def ask(self, path, body=None, method=None, token=True, headers=(), timeout=60):
        """Status, headers and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        sent = {**({"Authorization": f"Bearer {self.token}"} if token else {}), **dict(headers)}
        connection.request(method or ("POST" if body is not None else "GET"), path, body=body, headers=sent)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    def json(self, path, **options):
        status, _, body = self.ask(path, **options)
        assert status == 200, body
        return json.loads(body)

    def raw(self, request):
        """The status of a request that no client would send."""
        with socket.create_connection((self.host, self.port), timeout=20) as client:
            client.sendall(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
            return int(client.makefile("rb").readline().split()[1])

    def run(self, *words, target="", **options):
        return subprocess.run([PROGRAM, "-t", f"{self.address}{target}", *map(str, words)],
                              env=options.pop("env", self.env), capture_output=True, text=True, timeout=60, **options)


@contextmanager
def service(folder, *words, program=PROGRAM):
    folder.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    process = subprocess.Popen([program, "serve", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Service(process, folder, line)
    finally:
        if process.returncode != -9:  # the test has killed it
            process.terminate()
        process.communicate(timeout=20)
    assert process.returncode in (0, -9)
    assert not list((folder / "probing-serve").glob("job-??????")), "a command's folder was left behind"


def commands_of(served):
    """The commands that it runs now: any of its threads may have started them."""
    found = []
    for task in Path(f"/proc/{served.process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            found += (task / "children").read_text().split()
    return found


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with service(tmp_path_factory.mktemp("s") / "r") as s:
        yield s


@pytest.fixture(scope="module")
def job():
    with jobs.python() as running:
        yield running


class Stream:
    """A client of the stream that reads when it is told to."""

    def __init__(self, served, topics, **headers):
        self.socket = socket.create_connection((served.host, served.port), timeout=30)
        sent = {"Host": served.address, "Authorization": f"Bearer {served.token}", **headers}
        lines = [f"GET /api/v1/events?topics={topics} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.bytes = b""

    def read_more(self):
        """False: the other end has closed."""
        more = self.socket.recv(65536)
        self.bytes += more
        return bool(more)

    def text(self):
        """The body as far as it has come, out of its chunks."""
        _, _, rest = self.bytes.partition(b"\r\n\r\n")
        body = b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            body, rest = body + rest[:length], rest[length + 2:]
        return body.decode()

    def events(self):
        """(topic, number, data) of each that has come whole."""
        found = []
        for block in self.text().split("\n\n")[:-1]:
            fields = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
            if fields:
                data = "\n".join(value for name, _, value in fields if name == "data")
                found.append((dict((name, value) for name, _, value in fields)["event"], fields[0][2],
                              json.loads(data)))
        return found

    def wait_for(self, enough, seconds=30):
        self.socket.settimeout(seconds)
        while not enough(self.events()):
            assert self.read_more(), f"the stream ended: {self.bytes[-500:]}"
        return self.events()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()
