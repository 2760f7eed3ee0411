"""GET /api/v1/events: one stream of what others ask for again and again, and what it costs."""
import json
import os
import selectors
import signal
import socket
import time

import jobs
import pytest
from jobs import probe
# noqa: F401 (job and served are fixtures)
from serve_kit import NEEDS_SERVE, Stream, commands_of, job, rss, served, service

pytestmark = NEEDS_SERVE


def numbers(events):
    return [int(number.rpartition("-")[2]) for _, number, _ in events]


def test_now_has_a_line_for_each_process(served, job):
    [row] = [row for row in served.json("/api/v1/now") if row["pid"] == job.pid]
    assert row["function"] == "train"
    assert row["line"] > 0
    assert row["memory_mb"] > 1
    assert row["id"].startswith(f"{job.pid}@")
    assert [r["function"] for r in json.loads(probe("-t", job.pid, "now", "--json").stdout)] == ["train"]
    with Stream(served, "now") as stream:
        events = stream.wait_for(lambda events: len(events) >= 3)
    assert {topic for topic, _, _ in events} == {"now"} and numbers(events) == sorted(numbers(events))
    [line] = [line for line in events[2][2] if line["pid"] == job.pid]
    assert line.keys() == row.keys() and line["function"] == "train" and line["since"] >= 0
    assert b"text/event-stream" in stream.bytes


def test_several_topics_come_through_one_stream_as_their_routes_answer(served, job):
    with Stream(served, f"targets,alerts,stacks:{job.pid}") as stream:
        wanted = {"targets", "alerts", f"stacks:{job.pid}"}
        events = stream.wait_for(lambda events: {topic for topic, _, _ in events} == wanted)
    answers = {topic: data for topic, _, data in events}
    assert answers["alerts"] == served.json("/api/v1/alerts")
    assert job.pid in {row["pid"] for row in answers["targets"]}
    assert [frame["function"]
            for frame in answers[f"stacks:{job.pid}"][0]["threads"][0]["frames"]][-3:] == ["train", "main", "<module>"]


def test_a_diagnosis_that_finds_something_is_an_event_too(served, job):
    def stopped(events):
        return [found for _, _, answer in events for one in answer["jobs"] for found in one["findings"]
                if (one["ranks"][0]["pid"], found["kind"]) == (job.pid, "stopped")]

    with Stream(served, f"diagnosis:{job.pid}") as stream:
        assert not stopped(stream.wait_for(lambda events: events))
        os.kill(job.pid, signal.SIGSTOP)
        try:
            events = stream.wait_for(stopped)
        finally:
            os.kill(job.pid, signal.SIGCONT)
    assert f"Process {job.pid} is stopped by a signal" in stopped(events)[0]["says"]


@pytest.mark.timeout(600)
def test_a_diagnosis_is_a_topic_of_all_jobs_and_of_one(served, job):
    """That of all jobs has those of others on this machine too: it takes its time, and may miss who has just begun."""
    def pids(events, wanted):
        return [{rank["pid"] for one in answer["jobs"] for rank in one["ranks"]}
                for topic, _, answer in events if topic == wanted and "jobs" in answer]

    with jobs.python() as other, Stream(served, f"diagnosis,diagnosis:{job.pid}") as stream:
        events = stream.wait_for(lambda events: pids(events, f"diagnosis:{job.pid}") and any(
            {job.pid, other.pid} <= of for of in pids(events, "diagnosis")), 110)
    assert pids(events, f"diagnosis:{job.pid}")[0] == {job.pid}


def test_all_without_a_target_is_every_probed_process(served):
    sql = "SELECT target_pid FROM memory_usage GROUP BY ALL"
    with jobs.python() as one:
        assert probe(one.pid, "inject").returncode == 0
        jobs.wait_until(lambda: one.pid in {row["target_pid"]
                                            for row in served.json("/api/v1/query?all=true", body=sql)}, 20, "its row")
        assert str(one.pid) in probe("--all", "query", "--format", "csv", sql).stdout.split()


def test_what_cannot_be_answered_is_an_event_too(served):
    with jobs.python() as one, Stream(served, f"stacks:{one.pid}") as stream:
        stream.wait_for(lambda events: events)
        one.process.kill()
        one.process.wait()
        events = stream.wait_for(lambda events: isinstance(events[-1][2], dict))
        assert str(one.pid) in events[-1][2]["error"]["message"]


def test_who_comes_back_gets_what_came_meanwhile(served, job):
    with Stream(served, "now") as first:
        events = first.wait_for(lambda events: len(events) >= 2)
        with Stream(served, "now", **{"Last-Event-ID": events[0][1]}) as again:
            assert again.wait_for(lambda events: events)[0][1] == events[1][1]
        # The name of an event of another service, or of none: the newest comes first.
        with Stream(served, "now", **{"Last-Event-ID": "0123456789abcdef-1"}) as other:
            assert numbers(other.wait_for(lambda events: events))[0] >= numbers(events)[1]


def test_refuses_what_is_no_topic(served):
    for topics in ("", "nothing", "stacks", "stacks:--all", "now:1", "stacks:1;now",
                   ",".join(f"stacks:{n}" for n in range(1, 20))):
        status, _, body = served.ask(f"/api/v1/events?topics={topics}")
        assert status == 400 and "topic" in json.loads(body)["error"]["message"], (topics, body)
    assert served.ask("/api/v1/events?topics=now", token=False)[0] == 401
    assert served.ask("/api/v1/events?topics=now&colour=blue")[0] == 400


@pytest.mark.parametrize("clients", [128, 256, 384])
def test_many_clients_share_one_command_and_none_is_forgotten(served, clients):
    before = rss(served.process.pid)
    streams = [Stream(served, "now") for _ in range(clients)]
    waiting = selectors.DefaultSelector()
    for stream in streams:
        waiting.register(stream.socket, selectors.EVENT_READ, stream)
    deadline = time.monotonic() + 60
    left = set(streams)
    while left and time.monotonic() < deadline:
        for key, _ in waiting.select(1):
            assert key.data.read_more()
            if len(key.data.events()) >= 2:
                left.discard(key.data)
    assert not left, f"{len(left)} of {clients} clients got no two events"
    jobs.wait_until(lambda: len(commands_of(served)) == 1, 20, "the end of what was followed before")
    assert (rss(served.process.pid) - before) / clients < 30
    for stream in streams:
        stream.socket.close()
    if clients == 384:
        jobs.wait_until(lambda: not commands_of(served), 20, "the end of a command that nobody follows")


def test_a_client_that_does_not_read_loses_events_and_costs_no_memory(served, job):
    with Stream(served, f"stacks:{job.pid}") as slow, Stream(served, f"stacks:{job.pid}") as quick:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        quick.wait_for(lambda events: len(events) >= 2)
        before = rss(served.process.pid)
        quick.wait_for(lambda events: len(events) >= 4)
        assert rss(served.process.pid) - before < 4096


def test_a_service_that_ends_ends_its_streams(tmp_path, job):
    with service(tmp_path / "r") as s:
        streams = [Stream(s, "now") for _ in range(20)]
        streams[0].wait_for(lambda events: events)
        s.process.terminate()
        for stream in streams:
            while stream.read_more():
                pass
        assert s.process.wait(20) == 0


DEEP = """
import threading, signal
go_on = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: go_on.set())
def descend(n):
    if n: descend(n - 1)
    else: go_on.wait()
threads = [threading.Thread(target=descend, args=(120,), name="a-thread-with-a-name") for _ in range(120)]
for thread in threads: thread.start()
print("ready", flush=True)
while True: signal.pause()
"""


def test_after_an_answer_that_is_too_long_the_next_is_an_event(served):
    with jobs.python(DEEP) as one, Stream(served, f"stacks:{one.pid}") as stream:
        events = stream.wait_for(lambda events: events)
        assert events[0][2]["error"]["code"] == "too_long", str(events)[:200]
        one.process.send_signal(signal.SIGUSR1)
        events = stream.wait_for(lambda events: isinstance(events[-1][2], list))
        assert len(events[-1][2][0]["threads"]) < 100
