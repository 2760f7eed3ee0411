"""Requests of clients of the original tool."""
import json
import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jobs
import pytest
from jobs import probe
from serve_kit import NEEDS_SERVE, commands_of, service

pytestmark = NEEDS_SERVE


@pytest.fixture(scope="module")
def job():
    with jobs.python(env={**os.environ, "SECRET_TOKEN": "hidden", "COLOUR": "blue"}) as running:
        assert probe(running.pid, "inject").returncode == 0
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory, job):
    with service(tmp_path_factory.mktemp("s") / "r", "--open", str(job.pid)) as s:
        yield s


def message(sql, opts=None):
    return json.dumps({"version": {"major": 0, "minor": 1, "patch": 0}, "message_id": None, "timestamp": 1, "payload": {"expr": sql, "opts": opts}})


def test_queries_in_the_envelope(served, job):
    sql = "SELECT 1::BIGINT AS a, 2::INTEGER AS b, 1.5::DOUBLE AS c, true AS d, 'it\\'s \"x\"' AS e, TIMESTAMP '2026-01-02 03:04:05.678' AS t, NULL::VARCHAR AS n"
    answer = served.json("/query", body=message(sql.replace("\\'", "''")))
    assert answer["version"] == {"major": 0, "minor": 1, "patch": 0} and abs(answer["timestamp"] / 1e6 - time.time()) < 60
    assert answer["payload"] == {"DataFrame": {
        "names": ["a", "b", "c", "d", "e", "t", "n"], "size": 1,
        "cols": [{"SeqI64": [1]}, {"SeqI32": [2]}, {"SeqF64": [1.5]}, {"SeqBOOL": [True]}, {"SeqText": ["it's \"x\""]},
                 {"SeqDateTime": [1767323045678000]}, {"SeqText": [""]}]}}
    limited = served.json("/query", body=message("SELECT range AS n FROM range(1000);", {"limit": 3}))
    assert limited["payload"]["DataFrame"]["cols"] == [{"SeqI64": [0, 1, 2]}]
    dto = served.json("/query/dto", body=json.dumps({"expr": "SELECT 7 AS n"}))
    assert dto["success"] is True and dto["payload"] == {"type": "DataFrame", "value": {"names": ["n"], "cols": [{"SeqI32": [7]}], "size": 1}}
    by_pid = served.json(f"/apis/query/local-pid?pid={job.pid}", body=message("SELECT pid FROM system.process"))
    assert by_pid["payload"]["DataFrame"]["cols"] == [{"SeqI32": [job.pid]}]
    cluster = served.json("/apis/cluster/query", body=json.dumps({"expr": "SELECT target_pid FROM system.process WHERE target_pid > 0", "cluster": True}))
    assert job.pid in cluster["dataframe"]["cols"][0]["SeqI32"] and cluster["meta"]["nodes_failed"] == 0


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"payload": {}}', '{"expr": 1}', '{"expr": "\\ud800"}', '{"expr": "a\\u0000b"}',
                                  "[" * 5000, '{"expr": "SELECT 1"' + ', "a": {"b": ' * 3000], ids=lambda body: body[:20])
def test_bodies_that_are_no_request_are_refused(served, body):
    status, _, answer = served.ask("/query", body=body, method="POST")
    assert status == 400 and json.loads(answer)["payload"]["Error"]["message"]
    status, _, answer = served.ask("/query/dto", body=body, method="POST")
    assert status == 400 and json.loads(answer)["error"]["message"]


def test_a_query_that_fails_says_so_in_the_envelope(served):
    status, _, answer = served.ask("/query", body=message("SELEC 1"))
    error = json.loads(answer)["payload"]["Error"]
    assert status == 422 and set(error) == {"code", "message", "details"} and "syntax error" in error["message"]


def test_a_request_without_what_it_needs_says_so_in_the_envelope(served):
    status, _, answer = served.ask("/apis/query/local-pid", body=message("SELECT 1"))
    assert status == 400 and "'pid' is missing" in json.loads(answer)["payload"]["Error"]["message"]
    assert served.ask(f"/query?target={'x' * 12289}", body=message("SELECT 1"))[0] == 400
    assert served.ask("/apis/pythonext/callstack?tid=0")[0] == 400


def test_what_the_process_is(served, job):
    overview = served.json("/apis/overview")
    assert overview["pid"] == overview["main_thread"] == job.pid and job.pid in overview["threads"] and overview["cwd"] == os.getcwd()
    assert overview["env"]["COLOUR"] == "blue" and "hidden" not in json.dumps(overview)
    assert [row["pid"] for row in served.json("/apis/processes/local")] == [job.pid]
    assert served.ask("/config/probing.sample_rate")[2].decode() == probe("-t", job.pid, "config", "probing.sample_rate").stdout
    assert served.ask("/config/--all")[0] == 404


NODE = {"host", "addr", "rank", "local_rank", "world_size", "group_rank", "group_world_size", "role", "role_name", "role_rank", "role_world_size", "status",
        "timestamp"}


def test_nodes_are_the_processes_here_and_those_that_report_themselves(served, job):
    nodes = served.json("/apis/nodes?offset=0&limit=1000&since_version=0")
    assert str(job.pid) in [node["addr"] for node in nodes["nodes"]] and nodes["total"] == len(nodes["nodes"]) and set(nodes["nodes"][0]) == NODE
    assert served.json("/apis/nodes?limit=0")["nodes"] == [] and str(job.pid) in [node["addr"] for node in served.json("/apis/nodes")]
    one = {"host": "n1", "addr": "n1:8080", "rank": 3, "status": "running", "timestamp": 1, "colour": {"no": ["such", "thing"]}}
    said = served.json("/apis/nodes", body=json.dumps(one), method="PUT")
    assert said["ok"] is True and said["version"] > nodes["version"] and said["removed"] == []
    [kept] = [node for node in said["nodes"] if node["addr"] == "n1:8080"]
    assert set(kept) == NODE and (kept["host"], kept["rank"], kept["role"]) == ("n1", 3, None)
    many = [{"addr": "n1:8080", "rank": 4}, *({"addr": f"n2:{port}", "rank": port} for port in range(100))]
    said = served.json("/apis/nodes", body=json.dumps({"nodes": many, "seen_version": 1}), method="PUT")
    assert [node["rank"] for node in said["nodes"] if node["addr"] == "n1:8080"] == [4] and len(said["nodes"]) >= 101
    part = served.json("/apis/nodes?offset=1&limit=5")
    assert len(part["nodes"]) == 5 and part["total"] >= 101, "processes of other tests come and go"
    assert served.json(f"/apis/nodes?offset={part['total'] + 1000}")["nodes"] == []
    for body in ("", "[]", "{}", '{"nodes": 1}', '{"nodes": [1]}', '{"addr": 1}', '{"addr": "zw*"}', '{"nodes": [{"addr": ""}]}',
                 json.dumps({"addr": "n" * 256}), json.dumps({"addr": "x", "host": "y" * 5000})):
        assert served.ask("/apis/nodes", body=body, method="PUT")[0] == 400, body
    assert served.ask("/apis/nodes", body=json.dumps({"addr": "n" * 255}), method="PUT")[0] == 200
    for asked in ("since_version=-1", "offset=1e9", "limit=", "limit=1000000000"):
        assert served.ask(f"/apis/nodes?{asked}")[0] == 400, asked
    assert "PUT" not in str(served.json("/api/v1/query", body="SELECT what FROM probing.audit")), "no process was changed"


def test_files_are_those_of_its_stacks_alone(served, job):
    status, headers, body = served.ask(f"/apis/files?path={job.script}")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8") and body.decode() == Path(job.script).read_text()
    for path in ("/etc/passwd", job.script + "/../x", "", "/proc/self/environ", "train.py"):
        assert served.ask(f"/apis/files?path={path}")[0] == (404 if path else 400), path
    for asked in ("", "?", "?path"):
        assert served.ask(f"/apis/files{asked}")[0] == 400, asked


# Serves a file system in a thread and namespace of its own, in which opening and listing work and no read is ever answered.
HANGING_MOUNT = """
import ctypes, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
folder = os.environ["FOLDER"]
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("no namespace")
fuse = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
if libc.mount(b"fuse", folder.encode(), b"fuse", 0, options.encode()):
    sys.exit("no FUSE")
def attributes(node):
    return struct.pack("6Q10I", node, 100, 1, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100644, 1, 0, 0, 0, 4096, 0)
def answer():
    while True:
        asked = os.read(fuse, 1 << 20)
        _, operation, number, node = struct.unpack_from("IIQQ", asked)
        said = {26: struct.pack("4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8),  # INIT
                1: struct.pack("4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2),  # LOOKUP
                3: struct.pack("Q2I", 60, 0, 0) + attributes(node),  # GETATTR
                14: struct.pack("Q2I", 1, 0, 0)}.get(operation)  # OPEN
        if operation == 15:
            print("asked", flush=True)
        elif operation not in (2, 36, 42):  # FORGET, INTERRUPT
            os.write(fuse, struct.pack("IiQ", 16 + len(said or b""), 0 if said else -38, number) + (said or b""))
threading.Thread(target=answer, daemon=True).start()
code = "def wait(then):\\n then()"
def defined(file):
    names = {}
    exec(compile(code, file, "exec"), names)
    return names["wait"]
def stay():
    print("ready", flush=True)
    time.sleep(1000)
defined(folder + "/hangs.py")(lambda: defined(folder + ".pipe")(stay))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE, for a mount that hangs")
def test_a_file_that_cannot_be_read_holds_up_nobody(served, tmp_path):
    (tmp_path / "mount").mkdir()
    os.mkfifo(tmp_path / "mount.pipe")
    with jobs.python(HANGING_MOUNT, env={**os.environ, "FOLDER": str(tmp_path / "mount")}) as one, ThreadPoolExecutor() as pool:
        def ask(file):
            began = time.monotonic()
            status, _, body = served.ask(f"/apis/files?target={one.pid}&path={tmp_path}/{file}")
            return status, body.decode(), time.monotonic() - began
        hangs = [pool.submit(ask, "mount/hangs.py") for _ in range(3)]
        jobs.wait_until(lambda: "asked" in one.output, 10, "that the file is read")
        status, said, took = ask("mount.pipe")
        assert status == 404 and "no regular file" in said and took < 2 and not any(each.done() for each in hangs)
        for each in hangs:
            status, said, took = each.result()
            assert status == 404 and "timed out" in said and 2 < took < 10, said
        jobs.wait_until(lambda: not commands_of(served), 20, "the end of their commands")


def test_tables_under_names_of_theirs(served):
    # The machine may have other jobs, which have steps.
    matrix = served.json("/apis/training/step_matrix?cluster=true")
    samples = matrix.pop("samples")
    assert all(set(sample) == {"rank", "local_step", "coord_step", "duration_ms", "host", "addr"} for sample in samples)
    assert matrix.pop("rank_count") >= 0 and (matrix.pop("step_count") > 0) == bool(samples)
    assert matrix == {"cluster": False, "partial": False, "nodes_queried": 1, "nodes_failed": 0}
    for path in ("trace/list", "trace/show", "trace/variables", "pytorch/timeline"):
        assert served.json(f"/apis/pythonext/{path}") == []
    assert b"train" in served.ask("/apis/pprofextension/flamegraph/folded?seconds=0.3&idle=1")[2]


def test_stacks_and_code(served, job):
    frames = served.json("/apis/pythonext/callstack?mode=py")
    assert [frame["PyFrame"]["func"] for frame in frames] == ["train", "main", "<module>"]
    assert frames[0]["PyFrame"]["locals"]["model"]["value"] and frames[0]["PyFrame"]["lineno"] > 0
    mixed = served.json(f"/apis/pythonext/callstack?mode=mixed&tid={job.pid}")
    assert {"PyFrame", "CFrame"} == {kind for frame in mixed for kind in frame}
    assert served.json("/apis/pythonext/callstack?tid=1") == []
    assert served.ask("/apis/pythonext/callstack?mode=asm")[0] == 400
    assert served.ask("/apis/pythonext/eval", body="rate * 2")[2] == b"0.2\n"
    assert served.ask("/apis/flamegraph/pprof?seconds=0.3&idle=1")[2].rstrip().endswith(b"</svg>")
    assert served.ask("/apis/pythonext/trace/start?function=train", method="POST")[2].startswith(b"tracing __main__:train")
    assert "__main__:train" in str(served.json("/apis/pythonext/trace/list"))
    assert served.ask("/apis/pythonext/trace/stop?function=train", method="POST")[0] == 200
    assert served.ask("/apis/pythonext/trace/start", method="POST")[0] == 400


# --- the prompt ---

class WebSocket:
    """As a client's: its frames are masked, and the handshake is looked at."""

    def __init__(self, served, path="/ws", token=True, **headers):
        self.socket = socket.create_connection((served.host, served.port), timeout=60)
        sent = {"Host": served.address, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **({"X-Probing-Token": served.token} if token else {}), **headers}
        self.socket.sendall("\r\n".join([f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        lines = iter(lambda: self.file.readline().strip().decode(), "")
        self.headers = dict(line.split(": ", 1) for line in lines)

    def send(self, content, kind=1, last=True, masked=True):
        content = content.encode() if isinstance(content, str) else content
        wide = b"" if len(content) < 126 else struct.pack(">H", len(content)) if len(content) < 65536 else struct.pack(">Q", len(content))
        size = len(content) if not wide else 126 if len(wide) == 2 else 127
        mask = os.urandom(4) if masked else b""
        if masked:
            content = bytes(byte ^ mask[i % 4] for i, byte in enumerate(content))
        self.socket.sendall(bytes([kind | last << 7, size | masked << 7]) + wide + mask + content)

    def receive(self):
        """Kind and content of the next frame; None: the other end has closed."""
        head = self.file.read(2)
        if len(head) < 2:
            return None
        assert head[0] & 0x80 and not head[1] & 0x80, "a service's frames are whole and have no mask"
        size = head[1] if head[1] < 126 else int.from_bytes(self.file.read(2 if head[1] == 126 else 8), "big")
        return head[0] & 15, self.file.read(size)

    def run(self, code):
        self.send(code)
        kind, content = self.receive()
        assert kind == 1
        return json.loads(content)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()
        self.socket.close()


def test_the_prompt_answers_each_line_with_what_it_printed(served, job):
    with WebSocket(served) as ws:
        assert (ws.status, ws.headers["Sec-WebSocket-Accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")  # of RFC 6455
        assert ws.run("rate * 2\n") == {"status": "ok", "output": "0.2\n", "traceback": []}
        assert ws.run("kept = [1, 2]\n")["output"] == "" and ws.run("print(sum(kept)); kept.pop()\n")["output"] == "3\n2\n"
        failed = ws.run("1/0\n")
        assert failed["status"] == "error" and failed["traceback"][0].startswith("Traceback") and "ZeroDivisionError" in failed["traceback"][-1]
        ws.send(b"hello", kind=9)
        assert ws.receive() == (10, b"hello")
        ws.send("'in ", last=False)
        ws.send(b"", kind=9)
        ws.send("pieces'", kind=0)
        assert ws.receive() == (10, b"") and json.loads(ws.receive()[1])["output"] == "'in pieces'\n"
        assert len(ws.run("'x' * 100000")["output"]) == 100003 and ws.run("")["status"] == "ok"
        ws.send(struct.pack(">H", 1000), kind=8)
        assert ws.receive() == (8, b"") and ws.receive() is None
    rows = served.json("/api/v1/query", body="SELECT target, body, outcome FROM probing.audit WHERE what = '/ws' ORDER BY timestamp")
    assert rows[0] == {"target": str(job.pid), "body": "rate * 2\n", "outcome": "ok"} and {"target": str(job.pid), "body": "1/0\n", "outcome": "exit status 1"} in rows


def test_a_prompt_that_is_none_or_breaks_the_rules_is_closed(served, tmp_path, job):
    assert WebSocket(served, token=False).status == 401
    assert WebSocket(served, Origin="http://evil.example").status == 403
    assert WebSocket(served, **{"Sec-WebSocket-Key": "short"}).status == WebSocket(served, Upgrade="h2c").status == served.ask("/ws")[0] == 426
    assert WebSocket(served, f"/ws?token={served.token}&target={job.pid}", token=False).status == 101
    for content, options in ((b"x", {"kind": 2}), (b"x", {"kind": 3}), (b"1", {"masked": False}), (b"x" * 126, {"kind": 9}), (b"x", {"kind": 9, "last": False})):
        with WebSocket(served) as ws:
            ws.send(content, **options)
            assert ws.receive() == (8, b"") and ws.receive() is None, options
    with WebSocket(served) as ws:  # a petabyte is announced
        ws.socket.sendall(bytes([0x81, 0xff]) + (1 << 50).to_bytes(8, "big") + bytes(4))
        assert ws.receive() == (8, b"")
    with service(tmp_path / "r", "--read-only", "--open", str(job.pid)) as s:
        assert WebSocket(s).status == 404


def test_a_client_that_leaves_its_prompt_ends_what_it_runs(served, job):
    with WebSocket(served) as ws:
        ws.send("import time\nleft = 'running'\nfor _ in range(1000): time.sleep(0.05)\n")
        jobs.wait_until(lambda: probe(job.pid, "eval", "'left' in globals()").stdout == "True\n", 20, "the code")
    sql = "SELECT outcome FROM probing.audit WHERE what = '/ws' ORDER BY timestamp DESC LIMIT 1"
    jobs.wait_until(lambda: served.json("/api/v1/query", body=sql) == [{"outcome": "ended, since the client left"}], 30, "the end of its code")


# --- every route that it has ---

RECORDED = [
    # What the original tool's command line, page and processes ask for, and the status here: 404 with a word of what there is instead, 405 for a GET
    # that would change a process.
    ("GET", "/health", None, 200), ("GET", "/ready", None, 200),
    ("POST", "/query", message("SELECT 1"), 200), ("POST", "/query/dto", json.dumps({"expr": "SELECT 1", "opts": None}), 200),
    ("GET", "/config/probing.sample_rate", None, 200), ("GET", "/apis/overview", None, 200), ("GET", "/apis/processes/local", None, 200),
    ("POST", "/apis/query/local-pid?pid={pid}", message("SELECT 1"), 200), ("GET", "/apis/files?path={script}", None, 200),
    ("GET", "/apis/nodes", None, 200), ("GET", "/apis/nodes?offset=0&limit=10&since_version=0", None, 200),
    ("PUT", "/apis/nodes", json.dumps({"nodes": [{"host": "a", "addr": "a:1", "rank": 0}], "seen_version": 0}), 200),
    ("GET", "/apis/training/step_matrix?cluster=false", None, 200),
    ("POST", "/apis/cluster/query", json.dumps({"expr": "SELECT 1 AS a", "cluster": True, "hierarchical": False, "scope": None}), 200),
    ("GET", "/apis/pythonext/callstack", None, 200), ("GET", "/apis/pythonext/callstack?tid={pid}&mode=mixed", None, 200),
    ("POST", "/apis/pythonext/eval", "1 + 1", 200),
    *(("GET", f"/apis/pythonext/trace/{name}", None, 200) for name in ("list", "show", "variables", "chrome-tracing?limit=1000")),
    *(("GET", f"/apis/pythonext/trace/{name}?function=train", None, 405) for name in ("start", "stop")),
    ("GET", "/apis/pythonext/pytorch/timeline", None, 200), ("GET", "/apis/pythonext/pytorch/profile?steps=1", None, 405),
    *(("GET", f"/apis/pythonext/pytorch/profile/{name}", None, 404) for name in ("start", "stop", "status")),
    ("GET", "/apis/pythonext/pytorch/runtime-debug", None, 200),
    *(("GET", f"/apis/pythonext/{name}", None, 404) for name in (
        "ray/timeline", "ray/timeline/chrome", "magics", "flight-recorder/snapshot", "crash/hold", "crash/release", "skills/list", "skills/load?id=x",
        "skills/catalog", "skills/routing", "skills/roots", "extensions/list", "engines/list")),
    ("GET", "/apis/flamegraph/pprof?seconds=0.2&idle=1", None, 200), ("GET", "/apis/pprofextension/flamegraph?seconds=0.2&idle=1", None, 200),
    ("GET", "/apis/pprofextension/flamegraph/json?seconds=0.2&idle=1", None, 200), ("GET", "/apis/pprofextension/flamegraph/folded?seconds=0.2&idle=1", None, 200),
    *(("GET", path, None, 404) for path in ("/apis/pprofextension/flamegraph/distributed/json", "/apis/torchextension/flamegraph", "/apis/flamegraph/torch")),
    ("POST", "/apis/rdmaextension/", "", 404), ("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}), 200),
]


def test_every_request_that_its_clients_make_is_answered(served, job):
    wrong = []
    for method, path, body, want in RECORDED:
        status, headers, answer = served.ask(path.format(pid=job.pid, script=job.script), body=body, method=method)
        told = json.loads(answer)["error"]["message"] if status in (404, 405) else "said"
        if status != want or "there is nothing here" in told or (status == 405 and "POST" not in headers["Allow"]):
            wrong.append((method, path, status, answer[:200]))
    assert not wrong
