"""A service of root's for all users: one of them who takes all that there is takes it from nobody else."""
import resource
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

import jobs
import pytest
from serve_kit import NEEDS_SERVE, service
from serve_users_kit import NEEDS_ROOT, OTHER, THIRD, ask_as, for_all

pytestmark = NEEDS_SERVE

# As a user: so many connections by a unix socket that send these bytes; then how many the service has closed.
HOLDS = """
import select, socket, sys
clients = []
for _ in range(int(sys.argv[2])):
    client = socket.socket(socket.AF_UNIX)
    client.connect(sys.argv[1])  # waits while the service has not accepted those before
    client.settimeout(20)
    try:
        client.sendall(sys.argv[3].encode())
    except BrokenPipeError:
        pass
    clients.append(client)
print("held", flush=True)
for line in sys.stdin:
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLHUP)
    print(sum(1 for _, what in poll.poll(0) if what & select.POLLHUP), flush=True)
"""


@contextmanager
def holding(path, n, request, uid=OTHER):
    many = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    with subprocess.Popen(["/usr/bin/python3", "-c", HOLDS, path, str(n), request], preexec_fn=many, user=uid,
                          group=uid, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, cwd="/") as holder:
        assert holder.stdout.readline() == "held\n"
        yield lambda: (holder.stdin.write("\n"), holder.stdin.flush(), int(holder.stdout.readline()))[2]
        holder.stdin.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with for_all() as folder, service(tmp_path_factory.mktemp("s") / "r", "--socket", str(folder / "socket"),
                                      program=folder / "probing/bin/probing") as s:
        yield s, str(folder / "socket")


@NEEDS_ROOT
def test_long_queries_of_one_user_leave_queries_to_others(shared):
    _, path = shared
    sql = "SELECT count(DISTINCT hash(a.range * b.range)) FROM range(100000) a, range(100000) b"
    request = f"POST /api/v1/query?timeout=60 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sql)}\r\n\r\n{sql}"
    with holding(path, 16, request):
        time.sleep(1)
        for uid in (THIRD, 0):
            assert ask_as(uid, path, ("POST", "/api/v1/query", "SELECT 1 AS a")) == [[200, '[\n  {"a": 1}\n]\n']]


@NEEDS_ROOT
@pytest.mark.parametrize("request_text", ["", "GET / HTTP/1.1\r\nX", "GET /api/v1/events?topics=now HTTP/1.1\r\n"
                                                                     "Host: localhost\r\n\r\n"],
                         ids=["idle", "half-sent", "busy"])
def test_connections_of_one_user_leave_some_to_others(shared, request_text):
    _, path = shared
    with socket.socket(socket.AF_UNIX) as before, holding(path, 1100, request_text) as count_closed:
        before.connect(path)
        before.settimeout(20)
        began = jobs.calm()
        for uid in (THIRD, 0):
            assert ask_as(uid, path, *[("GET", "/health", None)] * 3) == [[200, '{"status":"ok"}\n']] * 3
        assert jobs.calm() - began < 20, "not only when idle connections are closed in any case, after a minute"
        assert 1100 - 1024 / 2 < count_closed() < 1100, "no more than a share, and no less than some"
        before.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert before.recv(100).startswith(b"HTTP/1.1 200"), "a connection of somebody else stays"


def test_half_sent_requests_without_a_token_keep_nobody_out(tmp_path):
    with service(tmp_path / "r") as s, ExitStack() as opened:
        for _ in range(1200):
            client = opened.enter_context(socket.create_connection((s.host, s.port)))
            client.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
        assert s.ask("/health", token=False, timeout=10)[0] == s.ask("/api/v1/targets", timeout=20)[0] == 200


def test_headers_that_do_not_come_end_the_connection(tmp_path):
    """Also where a byte comes now and then; a client that waits between two requests may wait."""
    with service(tmp_path / "r") as s:
        at = (s.host, s.port)
        with socket.create_connection(at) as slow, socket.create_connection(at) as between, \
                socket.create_connection(at) as line:
            request = f"GET /health HTTP/1.1\r\nHost: {s.address}\r\n\r\n".encode()
            between.sendall(request)
            between.recv(4096)
            slow.sendall(b"GET /health HTTP/1.1\r\n")
            began, ended = time.monotonic(), {}
            while len(ended) < 2 and time.monotonic() < began + 20:
                for client in {slow, line} - set(ended):
                    client.settimeout(0.2)
                    try:
                        client.sendall(b"a")
                        if not client.recv(1):
                            ended[client] = time.monotonic() - began
                    except TimeoutError:
                        pass
                    except OSError:
                        ended[client] = time.monotonic() - began
            assert len(ended) == 2 and all(9 < each < 14 for each in ended.values()), ended
            between.settimeout(10)
            between.sendall(request)
            assert between.recv(100).startswith(b"HTTP/1.1 200")
