"""Requests of clients of the original tool."""
import json
import os
import time
from pathlib import Path

import jobs
import pytest
from jobs import probe
from serve_kit import NEEDS_SERVE, service

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
    assert status == 400 and json.loads(answer)["error"]["message"]


def test_what_the_process_is(served, job):
    overview = served.json("/apis/overview")
    assert overview["pid"] == overview["main_thread"] == job.pid and job.pid in overview["threads"] and overview["cwd"] == os.getcwd()
    assert overview["env"]["COLOUR"] == "blue" and "hidden" not in json.dumps(overview)
    assert [row["pid"] for row in served.json("/apis/processes/local")] == [job.pid]
    assert served.ask("/config/probing.sample_rate")[2].decode() == probe("-t", job.pid, "config", "probing.sample_rate").stdout
    assert served.ask("/config/--all")[0] == 404
    nodes = served.json("/apis/nodes?offset=0&limit=100&since_version=0")
    assert job.pid in [node["addr"] for node in nodes["nodes"]] and nodes["total"] == len(nodes["nodes"])
    assert set(nodes["nodes"][0]) == {"host", "addr", "rank", "local_rank", "world_size", "group_rank", "group_world_size", "role", "role_name", "role_rank",
                                      "role_world_size", "status", "timestamp"}
    assert served.json(f"/apis/nodes?offset={nodes['total']}")["nodes"] == []


def test_files_are_those_of_its_stacks_alone(served, job):
    status, headers, body = served.ask(f"/apis/files?path={job.script}")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8") and body.decode() == Path(job.script).read_text()
    for path in ("/etc/passwd", job.script + "/../x", "", "/proc/self/environ", "train.py"):
        assert served.ask(f"/apis/files?path={path}")[0] in (400, 404)


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
