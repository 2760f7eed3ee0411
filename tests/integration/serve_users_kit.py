"""Several users of one service: who asks, and what each of them sees."""
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import PROGRAM

OTHER, THIRD = 65534, 65533
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
# As another user: requests by the unix socket, one after the other; each line of the output is what one was answered.
ASKS = """
import http.client, json, socket, sys
path, requests = sys.argv[1], json.loads(sys.argv[2])
class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
for method, where, body in requests:
    connection = Local("localhost", timeout=60)
    connection.request(method, where, body=body)
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))
"""


def ask_as(uid, path, *requests):
    """[status, body] of each (method, path, body)."""
    done = subprocess.run(["/usr/bin/python3", "-c", ASKS, path, json.dumps(requests)], user=uid, group=uid,
                          extra_groups=[], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def for_all():
    """An installation and a socket that every user gets to."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(PROGRAM.parent.parent, Path(folder) / "probing",
                        ignore=lambda _, names: set(names) - {"bin", "lib"} if "bin" in names else set())
        (Path(folder) / "probing").chmod(0o755)
        yield Path(folder)
