"""The clocks of a cluster's nodes: how far they are from ours, with an error that is true."""
import json
import os
import signal
import subprocess
from pathlib import Path

import clock_kit
import cluster_kit
import jobs
from jobs import probe

CLOCKS = ("SELECT node, offset_us, error_us, epoch(now()::TIMESTAMP) - epoch(measured) AS age FROM cluster.clocks "
          "ORDER BY node")


def clocks(name):
    done = probe("-t", f"cluster:{name}", "query", "--json", CLOCKS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@jobs.three_tries
def test_a_clock_that_is_wrong_is_measured_within_its_error(tmp_path_factory):
    offsets = [0, 3_250_000_000, -90_000_000_000]
    with clock_kit.nodes(offsets, tmp_path_factory.mktemp("clocks")) as (job, words):
        done = probe("cluster", "attach", "clocks", *words, "--timeout", "30")
        assert done.returncode == 0, done.stderr
        rows = clocks("clocks")
        assert [row["node"] for row in rows] == ["n0", "n1", "n2"]
        for row, offset in zip(rows, offsets):
            assert abs(row["offset_us"] - offset / 1000) <= row["error_us"], row
            assert 0 < row["error_us"] and row["age"] < 60, row
        probe("cluster", "detach", "clocks")
        jobs.in_time(max(row["error_us"] for row in rows) < 5000, str(rows))


def kept_offset(name, node):
    """Nanoseconds, as they stand in the cluster's file: a statement about them would measure anew."""
    kept = Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters", f"{name}.cluster")
    return next(int(line.split()[4]) for line in kept.read_text().splitlines() if line.startswith(f"node {node} "))


def test_clocks_are_measured_again_while_ranks_are_recorded(tmp_path_factory):
    offsets = [2_000_000_000, -5_000_000_000, 7_000_000_000]
    with clock_kit.nodes([0, offsets[0]], tmp_path_factory.mktemp("clocks")) as (job, words):
        done = probe("cluster", "attach", "moved", *words, "--timeout", "30")
        assert done.returncode == 0, done.stderr
        assert abs(kept_offset("moved", "n1") - offsets[0]) < 1e8
        place = job.folder / "n1"
        with subprocess.Popen([str(jobs.PROGRAM), "-t", "cluster:moved", "record", "--duration", "60", "--ranks", "0"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
            for before, after in zip(offsets, offsets[1:]):
                place.write_text(place.read_text().replace(str(before), str(after)))
                jobs.wait_until(lambda: abs(kept_offset("moved", "n1") - after) < 1e8 or recording.poll() is not None,
                                40, what="the new measurement")
            assert recording.poll() is None
            recording.send_signal(signal.SIGINT)
            recording.wait(30)
        probe("cluster", "detach", "moved")


@jobs.three_tries
def test_services_tell_their_clocks_themselves(tmp_path_factory):
    with cluster_kit.nodes(2, 1, tmp_path_factory.mktemp("clocks")) as job:
        cluster_kit.attach("served", job, "--timeout", "30")
        rows = clocks("served")
        assert sorted(row["node"] for row in rows) == sorted(job.addresses)
        assert all(abs(row["offset_us"]) <= row["error_us"] for row in rows), rows
        audit = [path.read_text() for path in job.folder.glob("node*/probing-serve/audit*")]
        # A look and the questions of the attach; the clock changes nothing and starts nothing.
        assert audit and all(text.count("/api/v1/cluster") <= 4 for text in audit), audit
        probe("cluster", "detach", "served")
        jobs.in_time(max(row["error_us"] for row in rows) < 2000, str(rows))
