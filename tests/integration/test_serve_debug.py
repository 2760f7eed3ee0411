"""What the service answers about one object or one line of a process: inspect, breakpoints, a debugger."""
import json
import socket

import jobs
import pytest
from jobs import PROGRAM, probe
from serve_kit import service

pytestmark = pytest.mark.skipif(not (PROGRAM.parent / "probing-serve").exists(), reason="built without libmicrohttpd")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with service(tmp_path_factory.mktemp("s") / "r") as s:
        yield s


def states_of(*pids):
    return [row["state"] for row in json.loads(probe("list", "--json").stdout) if row["pid"] in pids]


def test_to_list_breakpoints_brings_no_agent_into_a_process(served):
    with jobs.python() as job:
        assert served.json(f"/api/v1/targets/{job.pid}/breakpoints") == []
        assert json.loads(probe("-t", job.pid, "watch", "--json").stdout) == []
        assert states_of(job.pid) == ["python"]


def test_an_object_a_log_point_and_a_debugger(served):
    with jobs.python() as job:
        at = f"/api/v1/targets/{job.pid}"
        told = served.json(f"{at}/inspect", body="model@train")
        assert told["type"].endswith("Model") and {field["name"] for field in told["fields"]} == {"weights"}
        status, _, body = served.ask(f"{at}/inspect", body="nothing@train")
        assert status == 422 and "nothing" in json.loads(body)["error"]["message"]

        place = json.loads(probe("-t", job.pid, "backtrace", "--json").stdout)[0]["threads"][0]["frames"]
        [frame] = [frame for frame in place if frame["function"] == "train"]
        assert served.ask(f"{at}/breakpoints?log=loss%3D%7Bloss%7D",
                          body=f"{frame['file']}:{frame['first_line'] + 3} if step > 0")[0] == 200
        [point] = served.json(f"{at}/breakpoints")
        assert (point["action"], point["condition"]) == ("log", "step > 0")
        assert served.ask(f"{at}/breakpoints/stop", body="1")[0] == 200 and served.json(f"{at}/breakpoints") == []

        status, _, body = served.ask(f"{at}/debug", body="")
        assert status == 200, body
        host, port = body.decode().strip().rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20):
            pass
        assert served.ask(f"{at}/debug/stop", body="")[0] == 200


def test_a_service_that_only_reads_lists_and_sets_nothing(tmp_path):
    with jobs.python() as job, service(tmp_path / "r", "--read-only") as s:
        assert s.json(f"/api/v1/targets/{job.pid}/breakpoints") == []
        assert [s.ask(f"/api/v1/targets/{job.pid}/{what}", body="x")[0]
                for what in ("inspect", "breakpoints/stop", "pause", "continue", "debug", "debug/stop")] == [404] * 6
        assert s.ask(f"/api/v1/targets/{job.pid}/breakpoints", body="x.py:1")[0] == 405
