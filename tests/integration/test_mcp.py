"""/mcp: what an assistant is told, by messages and by the real client."""
import json
import os
import signal

import pytest
from jobs import probe
from serve_kit import NEEDS_SERVE, job, served, service  # noqa: F401 (job and served are fixtures)

pytestmark = NEEDS_SERVE

READ = {"list_targets", "now", "stacks", "compare_ranks", "hang_report", "describe_tables", "query", "profile",
        "memory", "diagnose", "list_skills", "run_skill"}


def test_a_diagnosis_with_and_without_a_finding_is_an_answer(served, job):
    answer = served.json("/api/v1/diagnosis")
    assert job.pid in {rank["pid"] for found in answer["jobs"] for rank in found["ranks"]}
    os.kill(job.pid, signal.SIGSTOP)
    try:
        answer = served.json("/api/v1/diagnosis")
        text = call(served, "diagnose")[1]
    finally:
        os.kill(job.pid, signal.SIGCONT)
    (found,) = [found for found in answer["jobs"] if found["ranks"][0]["pid"] == job.pid]
    assert found["findings"][0]["kind"] == "stopped"
    assert f"Process {job.pid} is stopped by a signal" in text


def send(served, method, params=None, headers=(), **message):
    status, _, body = served.ask("/mcp", body=json.dumps({"jsonrpc": "2.0", "id": 7, "method": method,
                                                          "params": params or {}, **message}),
                                 headers={"Content-Type": "application/json",
                                          "Accept": "application/json, text/event-stream", **dict(headers)})
    return status, json.loads(body) if body else None


def call(served, tool, **arguments):
    status, answer = send(served, "tools/call", {"name": tool, "arguments": arguments})
    assert status == 200 and answer["id"] == 7, answer
    return answer["result"]["isError"], answer["result"]["content"][0]["text"]


def test_what_there_is(served):
    status, hello = send(served, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                                "clientInfo": {"name": "x", "version": "1"}})
    assert status == 200
    assert hello["result"]["protocolVersion"] == "2025-11-25"
    assert hello["result"]["serverInfo"]["name"] == "probing"
    assert "2026-07-28" in send(served, "server/discover",
                                headers={"MCP-Protocol-Version": "2026-07-28",
                                         "Mcp-Method": "server/discover"})[1]["result"]["supportedVersions"]
    tools = send(served, "tools/list")[1]["result"]["tools"]
    assert {tool["name"] for tool in tools} == READ and all(tool["annotations"]["readOnlyHint"] for tool in tools)
    assert send(served, "ping")[1]["result"] == {}
    assert served.ask("/mcp", body='{"jsonrpc": "2.0", "method": "notifications/initialized"}')[0] == 202
    assert served.ask("/mcp")[0] == 405 and served.ask("/mcp", method="DELETE")[0] == 405


def test_tools_answer_what_the_commands_print(served, job):
    failed, text = call(served, "query", sql="SELECT 6 * 7 AS n")
    assert not failed and json.loads(text) == [{"n": 42}]
    assert job.pid in {row["pid"] for row in json.loads(call(served, "list_targets")[1])}
    assert "in train" in call(served, "stacks",
                              target=str(job.pid))[1] or "train" in call(served, "stacks", target=str(
                                  job.pid), native=True)[1]
    assert "train" in call(served, "profile", target=str(job.pid), seconds=0.3)[1]
    assert "memory_usage" in call(served, "describe_tables")[1]
    assert call(served, "memory", target=str(job.pid))[0] is False
    failed, text = call(served, "query", sql="SELEC 1")
    assert failed and "syntax error" in text
    for arguments in ({}, {"target": "1", "colour": "blue"}, {"target": {"a": 1}},
                      {"target": "1", "native": "perhaps"}):
        assert call(served, "stacks", **arguments)[0] is True
    # What looks like an option is the text that it is.
    assert "no process has" in call(served, "stacks", target="--no-process-has-this")[1]


@pytest.mark.parametrize("body, headers, status, code", [
    ("{", {}, 400, -32700), ("[]", {}, 400, -32600), ('{"id": 1, "method": "no/such"}', {}, 404, -32601),
    ('{"id": 1, "method": "ping"}', {"MCP-Protocol-Version": "1999-01-01"}, 400, -32022),
    ('{"id": 1, "method": "ping"}', {"Mcp-Method": "tools/list"}, 400, -32020),
    ('{"id": 1, "method": "tools/call", "params": {"name": "now"}}', {"Mcp-Name": "query"}, 400, -32020),
    ('{"id": 1, "method": "tools/call", "params": {"name": "eval", "arguments": {"target": "1", "code": "1"}}}', {},
     200, -32602)])
def test_refuses_by_the_book(served, body, headers, status, code):
    got, _, answer = served.ask("/mcp", body=body, headers=headers)
    assert (got, json.loads(answer)["error"]["code"]) == (status, code)


def test_refuses_other_sites_and_strangers(served):
    assert served.ask("/mcp", body="{}", headers={"Origin": "http://evil.example"})[0] == 403
    assert served.ask("/mcp", body="{}", token=False)[0] == 401


def test_changes_need_the_switch_and_are_written_down(tmp_path, job):
    with service(tmp_path / "r", "--mcp-changes") as s:
        assert {tool["name"] for tool in send(s, "tools/list")[1]["result"]["tools"]} == READ | {"eval", "config"}
        assert call(s, "eval", target=str(job.pid), code="-rate") == (False, "-0.1\n")
        [row] = json.loads(probe("query", "--json", "SELECT what, body, outcome FROM probing.audit", env=s.env).stdout)
        assert row["what"] == "/mcp" and "-rate" in row["body"] and row["outcome"] == "ok"
    with service(tmp_path / "r", "--mcp-changes", "--read-only") as s:
        assert {tool["name"] for tool in send(s, "tools/list")[1]["result"]["tools"]} == READ
