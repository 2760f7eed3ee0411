"""What records is a probe: listed, started and stopped by name, and gone with the agent."""
import json

import jobs
import pytest
from jobs import probe


def probes(job, *words):
    done = probe(job.pid, "probes", *words, "--json")
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def rows(job):
    return json.loads(probe(job.pid, "query", "SELECT count(*) AS n FROM memory_usage", "--json").stdout)[0]["n"]


@pytest.fixture(name="job")
def probed_job():
    with jobs.python() as job:
        assert probe(job.pid, "inject").returncode == 0
        yield job


def test_a_probe_is_stopped_started_and_set_while_the_program_runs(job):
    assert probes(job)["memory_usage"]["state"] == "on"
    assert probes(job, "stop", "memory_usage")["memory_usage"]["state"] == "off"
    before = rows(job)
    assert probes(job, "stop", "memory_usage")["memory_usage"]["state"] == "off"
    started = probes(job, "start", "memory_usage", "interval=20ms")["memory_usage"]
    assert (started["state"], started["settings"],
            started["description"]) == ("on", "interval=20ms", "a row every 0.02 s")
    jobs.wait_until(lambda: rows(job) > before + 20, what="rows")
    assert probes(job, "start", "memory_usage")["memory_usage"]["description"] == "a row every 1 s"
    assert "memory_usage" in probe(job.pid, "probes").stdout
    assert job.output == "ready\n"


@pytest.mark.parametrize("words, status, says", [
    (["start", "nothing"], 1, "there is no probe 'nothing'; there are memory_usage"),
    (["start", "memory_usage", "interval=soon"], 1, "interval is a time from 10 ms to 3600 s, such as 500ms or "
                                                    "2s, not 'soon'"),
    (["start", "memory_usage", "colour=red"], 1, "'colour=red' is no setting of this probe; it takes interval"),
    (["start"], 2, "which probe?"), (["toggle", "memory_usage"], 2, "'toggle' is neither start nor stop"),
    (["stop", "memory_usage", "now"], 2, "stop takes the name of one probe"),
    (["start", "memory_usage", "x" * 200], 2, "settings of a probe have at most 127 bytes"),
], ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else None)
def test_what_is_wrong_with_a_request_is_said(job, words, status, says):
    done = probe(job.pid, "probes", *words)
    assert done.returncode == status and says in done.stderr and done.stdout == ""


def test_to_look_injects_nothing_and_detach_stops_all():
    with jobs.python() as job:
        done = probe(job.pid, "probes")
        assert done.returncode == 1 and "is not probed" in done.stderr and "probing" not in job.threads()
        for _ in range(3):  # start injects
            assert probes(job, "start", "memory_usage", "interval=10ms")["memory_usage"]["state"] == "on"
            assert probe(job.pid, "detach").returncode == 0
            jobs.wait_until(lambda: "probing" not in job.threads(), what="the end of its threads")
        assert probe(job.pid, "inject").returncode == 0
        assert probes(job)["memory_usage"]["settings"] is None, "the next agent begins as the first"
        assert job.alive()
