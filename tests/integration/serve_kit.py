"""A service of `probing serve` for tests, and requests to it."""
import http.client
import json
import os
import re
import socket
import subprocess
import urllib.parse
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs import PROGRAM


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
        return subprocess.run([PROGRAM, "-t", f"{self.address}{target}", *map(str, words)], env=options.pop("env", self.env), capture_output=True,
                              text=True, timeout=60, **options)


@contextmanager
def service(folder, *words):
    folder.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    process = subprocess.Popen([PROGRAM, "serve", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Service(process, folder, process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0
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
