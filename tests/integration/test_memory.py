"""`memory`, python.memory and gpu_metrics: against what the kernel, Python itself and NVML say."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import jobs
import roots
from interpreters import INTERPRETERS, interpreter_id
from jobs import rows

HEAP = """
import gc, sys, time
gc.disable()
keep = [[i] for i in range(200000)]
print(sys.getallocatedblocks(), *gc.get_count(), "ready", flush=True)
time.sleep(120)
"""
GROWS = """
import time
print("ready", flush=True)
keep = []
while True:
    keep.append(bytearray(b"x" * 100000))
    time.sleep(0.01)
"""


def probe(*args, env=None):
    return subprocess.run([jobs.PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})


def memory(pid, env=None):
    done = probe(pid, "memory", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def as_python_says(found, said):
    blocks, *counts = map(int, said.split()[:4])
    # Python counts its large blocks too; and what it printed took some itself.
    assert 0.97 * blocks < found["heap_blocks"] <= blocks + 100
    assert abs(found["gc_gen0"] - counts[0]) <= 20 and [found["gc_gen1"], found["gc_gen2"]] == counts[1:]
    assert found["heap_arenas"] * (256 << 10) <= found["heap_bytes"] < 4 * 32 * blocks * 2


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=interpreter_id)
def test_the_heap_and_the_collector_are_as_python_says(interpreter):
    with jobs.python(HEAP, interpreter=interpreter) as job:
        as_python_says(memory(job.pid), job.output)


@pytest.mark.parametrize("interpreter", roots.INTERPRETERS["sid"], ids=os.path.basename)
def test_the_heap_of_newer_pythons_in_a_container(interpreter):
    with roots.start("sid", interpreter, "-c", HEAP) as target:
        target.wait_for("ready")
        as_python_says(memory(target.pid), target.output)


def test_a_heap_that_is_not_pythons_own_is_not_made_up():
    with jobs.python(HEAP, env={"PYTHONMALLOC": "malloc"}) as job:
        found = memory(job.pid)
        assert found["heap_blocks"] in (None, 0) and found["gc_gen0"] >= 200000


def test_memory_is_as_the_kernel_says():
    with jobs.python() as job:
        found = memory(job.pid)
        status = dict(line.split(":", 1) for line in open(f"/proc/{job.pid}/status"))
        for name, field in (("rss_bytes", "VmRSS"), ("peak_rss_bytes", "VmHWM"), ("vms_bytes", "VmSize"),
                            ("swap_bytes", "VmSwap")):
            assert abs(found[name] - int(status[field].split()[0]) * 1024) <= 1 << 20, name
        rss = {}
        for line in open(f"/proc/{job.pid}/smaps"):
            if "-" in line.split()[0]:
                path = line.split(maxsplit=5)[5].strip() if len(line.split(maxsplit=5)) == 6 else "anonymous"
            elif line.startswith("Rss:"):
                rss[path] = rss.get(path, 0) + int(line.split()[1]) * 1024
        largest = sorted(rss.values(), reverse=True)[:5]
        assert all(abs(row["rss_bytes"] - rss[row["path"]]) <= 256 << 10 for row in found["mappings"])
        assert len(found["mappings"]) == 5 and abs(found["mappings"][0]["rss_bytes"] - largest[0]) <= 256 << 10
        assert found["rows"] == 0
        assert found["growth_bytes_per_minute"] is None
        assert "not known yet" in probe(job.pid, "memory").stdout


STARTS = """
import time
keep = []
for i in range(300):
    keep.append(bytearray(b"x" * 500000))
    if i == 20: print("ready", flush=True)
    time.sleep(0.03)
time.sleep(600)
"""


def test_growth_is_told_after_a_minute_by_its_line_and_a_start_is_no_leak():
    """Three programs at once: one that leaks, one of which what allocates is sampled, one that only takes long to
    start."""
    leak = GROWS.replace("0.01", "0.02")
    with jobs.python(leak) as job, jobs.python(leak) as sampled, jobs.python(STARTS) as starts:
        for each in (job, starts):
            assert probe(each.pid, "inject").returncode == 0
        assert probe(sampled.pid, "config", "probing.memory.sampling=on,interval=64KB").returncode == 0
        jobs.wait_until(lambda: memory(job.pid)["rows"] >= 4, what="four rows")
        early = memory(job.pid)
        assert early["growth_bytes_per_minute"] is None and early["growth_s"] is None
        text = probe(job.pid, "memory").stdout
        assert "not known yet: " in text and "60 are needed" in text and "MB a minute" not in text
        jobs.wait_until(lambda: memory(job.pid)["recorded_s"] >= 35, 60, "half a minute")
        first, begun = int(open(f"/proc/{job.pid}/statm").read().split()[1]), time.monotonic()
        jobs.wait_until(lambda: min(memory(each.pid)["recorded_s"] for each in (job, sampled, starts)) >= 61, 90,
                        "a minute")
        grown = (int(open(f"/proc/{job.pid}/statm").read().split()[1]) - first) * 4096 / (time.monotonic() - begun) * 60
        found, text = memory(job.pid), probe(job.pid, "memory").stdout
        assert 0.7 * grown < found["growth_bytes_per_minute"] < 1.4 * grown and 29 < found["growth_s"] < 40
        assert "MB a minute in the last" in text and f"probing -t {job.pid} config probing.memory.sampling=on" in text
        assert "▁" in text and "█" in text and "Python heap" in text
        assert len(probe(job.pid, "memory", "--format", "csv").stdout.splitlines()) == 2
        by, text = memory(sampled.pid)["grows_by"], probe(sampled.pid, "memory").stdout
        assert (by["function"], by["file"], by["line"]) == ("<module>", sampled.script, 6), by
        assert f"held by <module> ({sampled.script}:6)" in text
        still = memory(starts.pid)
        assert still["growth_bytes_per_minute"] == 0 and "none in the last" in probe(starts.pid, "memory").stdout, still
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        dead = memory(job.pid)
        assert dead["dead"]
        assert dead["rss_bytes"] >= found["rss_bytes"] - (4 << 20)
        assert dead["growth_bytes_per_minute"] > 0
        assert "last in RAM" in probe(job.pid, "memory").stdout


@jobs.three_tries
def test_record_keeps_python_memory_of_a_process_that_was_never_probed():
    with jobs.python(GROWS) as job:
        assert len(rows(job.pid, "SELECT * FROM python.memory")) == 1, "only that of now"
        assert probe(job.pid, "record", "--duration", "3.5").returncode == 0
        recorded = rows(job.pid, "SELECT * FROM python.memory ORDER BY timestamp")
        assert {row["pid"] for row in recorded} == {job.pid}
        jobs.in_time(4 <= len(recorded) <= 7, f"{len(recorded)} rows in 3.5 s")
        assert recorded[0]["rss_bytes"] < recorded[-1]["rss_bytes"]
        # On a loaded machine not every row counts them: that is bounded by time.
        blocks = [row["heap_blocks"] for row in recorded if row["heap_blocks"] is not None]
        jobs.in_time(blocks, "no row counts them")
        assert min(blocks) > 1000
        assert {row["torch_cpu_bytes"] for row in recorded} == {row["gpu_bytes"] for row in recorded} == {None}
        assert "probing" not in job.threads()
        jobs.in_time(rows(job.pid, "SELECT sum(samples) AS n FROM python.samples")[0]["n"] > 50, "hardly a sample")
        assert probe(job.pid, "record", "--duration", "1.5").returncode == 0
        twice = rows(job.pid, "SELECT count(*) AS n FROM python.memory")[0]["n"]
        assert twice > len(recorded), "two recordings are one table"
        listed = rows(job.pid, "SELECT rows FROM probing.tables WHERE name = 'python.memory'")
        assert listed == [{"rows": twice - 1}]
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        assert rows(job.pid, "SELECT count(*) AS n FROM python.memory") == [{"n": twice - 1}]
        assert [row["rows"] > 0 for row in json.loads(probe(job.pid, "tables", "--format", "json").stdout)
                if row["table"] == "python.memory"] == [True]
        found = memory(job.pid)
        assert found["dead"], "five seconds say nothing of growth"
        assert found["heap_blocks"] > 1000, "five seconds say nothing of growth"
        assert found["growth_bytes_per_minute"] is None, "five seconds say nothing of growth"


# A stand-in for torch with CUDA, which this machine cannot run: its two sums, and a mapped file of the library's name.
TORCH = """
import mmap, sys, time, types
folder = sys.argv[1]
with open(folder + "/libtorch_cuda.so", "w+b") as library:
    library.write(bytes(4096))
    library.flush()
    mapped = mmap.mmap(library.fileno(), 4096)
cuda = types.SimpleNamespace(device_count=lambda: 2, is_initialized=lambda: True, memory_allocated=lambda gpu: 1000 + gpu,
                             memory_reserved=lambda gpu: 4000)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
print("ready", flush=True)
if len(sys.argv) > 2:
    import re
    re.match("(a|aa)*b", "a" * 60)  # holds the GIL for ever
time.sleep(120)
"""


def test_torch_is_asked_for_what_only_it_knows(tmp_path):
    (tmp_path / "job.py").write_text(TORCH)
    with jobs.start(sys.executable, tmp_path / "job.py", tmp_path, ready="ready") as job:
        assert "known when the process is probed" in probe(job.pid, "memory").stdout
        assert probe(job.pid, "inject").returncode == 0
        found = memory(job.pid)
        assert (found["torch_cuda_bytes"], found["torch_cuda_reserved_bytes"]) == (2001, 8000)
        assert found["torch_cpu_bytes"] is None


def test_a_python_that_does_not_answer_does_not_hold_up_the_rest(tmp_path):
    (tmp_path / "job.py").write_text(TORCH)
    with jobs.start(sys.executable, tmp_path / "job.py", tmp_path, "stuck", ready="ready") as job:
        assert probe(job.pid, "inject").returncode == 0
        begun = jobs.calm()
        text = probe(job.pid, "memory").stdout
        assert "Python did not answer within a second" in text and "Python heap" in text and "in RAM" in text
        assert jobs.calm() - begun < 8


# --- GPUs. What a real one says is proved by tests/device/gpu_metrics.sh; here: a stand-in for what goes wrong. ---

@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Folders with a libnvidia-ml.so.1 of the test: a whole one, and one that lacks functions."""
    if any(os.path.exists(f"/dev/nvidia{n}") for n in range(8)):
        pytest.skip("this machine has a GPU: tests/device/gpu_metrics.sh proves it with the real NVML")
    folders = {}
    for kind, flags in (("whole", ["-DWHOLE"]), ("lacking", [])):
        folders[kind] = tmp_path_factory.mktemp(kind)
        source = os.path.join(os.path.dirname(__file__), "targets/stand_in_nvml.c")
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", folders[kind] / "libnvidia-ml.so.1", source],
                       check=True)
    return folders


def record(job, folder, mode, duration="1.5"):
    env = {"LD_LIBRARY_PATH": str(folder), "STAND_IN": mode, "STAND_IN_PID": str(job.pid)}
    return probe(job.pid, "record", "--duration", duration, env=env)


def test_gpu_metrics_has_a_row_a_second_and_gpu(stand_in):
    with jobs.python() as job:
        assert record(job, stand_in["whole"], "two", "2.5").returncode == 0
        seen = rows(job.pid, "SELECT * EXCLUDE timestamp FROM gpu_metrics ORDER BY timestamp, gpu")
        assert len(seen) in (4, 6, 8) and [row["gpu"] for row in seen[:4]] == [0, 1, 0, 1]
        assert seen[0] == {"gpu": 0, "name": "Stand-in", "uuid": None, "gpu_util": 75, "memory_util": 30,
                           "memory_used_mb": 1024,
                           "memory_total_mb": 81920, "temperature_c": 41, "power_w": 312.5, "sm_clock_mhz": None,
                           "process_memory_mb": 512, "active": None, "sm_active": None, "sm_occupancy": None,
                           "tensor_active": None, "dram_active": None, "pcie_mb_s": None, "nvlink_mb_s": None,
                           "power_limit_w": 700, "ecc_errors": None, "slowed": "power cap; heat",
                           "doing": None}, "activity is between two looks"
        assert seen[1]["temperature_c"] == 42 and seen[1]["gpu_util"] is None and seen[1]["process_memory_mb"] is None
        assert rows(job.pid, "SELECT avg(gpu_util) AS util FROM gpu_metrics WHERE timestamp "
                             "> now() - 60") == [{"util": 75}]
        assert {row["gpu_bytes"] for row in rows(job.pid, "SELECT gpu_bytes FROM python.memory WHERE timestamp < "
                                                          "(SELECT max(timestamp) FROM python.memory)")} == {512 << 20}
        env = {"LD_LIBRARY_PATH": str(stand_in["whole"]), "STAND_IN": "two", "STAND_IN_PID": str(job.pid)}
        assert memory(job.pid,
                      env=env)["gpu_bytes"] == memory(job.pid)["gpu_bytes"] == 512 << 20, "now, and as last recorded"


@pytest.mark.parametrize("does, doing, active, sm, pcie", [
    ("waits", "waiting", 99.9, 0.7, 1629), ("copies", "copying", 0.006, 0, 57959),
    ("computes", "computing", 99.8, 96.4, 0)])
def test_gpu_metrics_says_what_a_gpu_is_doing(stand_in, does, doing, active, sm, pcie):
    with jobs.python() as job:
        env = {"LD_LIBRARY_PATH": str(stand_in["whole"]), "STAND_IN": "two", "STAND_IN_PID": str(job.pid),
               "STAND_IN_DOES": does}
        assert probe(job.pid, "record", "--duration", "2.5", env=env).returncode == 0
        last = rows(job.pid, "SELECT * FROM gpu_metrics WHERE gpu = 0 ORDER BY timestamp DESC LIMIT 1")[0]
        assert (last["doing"], last["active"], last["sm_active"], last["pcie_mb_s"], last["nvlink_mb_s"]) == (
            doing, active, sm, pcie, None)
        other = rows(job.pid, "SELECT DISTINCT doing, active FROM gpu_metrics WHERE gpu = 1")
        assert other == [{"doing": None, "active": None}], "it has no such counters"


@pytest.mark.parametrize("kind, mode, util, said", [
    ("whole", "none", [], ""), ("whole", "broken", [], "NVML cannot be started (error 9)"),
    ("lacking", "two", [None, None], "")])
def test_a_driver_that_disappoints_leaves_what_can_be_known(stand_in, kind, mode, util, said):
    with jobs.python() as job:
        done = record(job, stand_in[kind], mode)
        assert done.returncode == 0 and said in done.stderr
        assert [row["gpu_util"] for row in rows(job.pid, "SELECT * FROM gpu_metrics ORDER BY "
                                                         "timestamp, gpu LIMIT 2")] == util
        assert len(rows(job.pid, "SELECT * FROM python.memory")) >= 1


def test_a_driver_that_hangs_holds_up_nobody(stand_in):
    with jobs.python() as job:
        begun = jobs.calm()
        assert record(job, stand_in["whole"], "hangs", "2").returncode == 0
        assert jobs.calm() - begun < 9
        assert memory(job.pid, env={"LD_LIBRARY_PATH": str(stand_in["whole"]),
                                    "STAND_IN": "hangs"})["gpu_bytes"] is None
        assert jobs.calm() - begun < 15
        assert rows(job.pid, "SELECT sum(samples) AS n FROM python.samples")[0]["n"] > 50


def test_without_a_gpu_the_table_is_empty_with_its_columns():
    with jobs.python() as job:
        assert rows(job.pid, "SELECT avg(gpu_util) FROM gpu_metrics WHERE timestamp "
                             "> now() - 60") == [{"avg(gpu_util)": None}]
        names = [row["column_name"] for row in rows(job.pid, "DESCRIBE gpu_metrics")]
        assert {"timestamp", "gpu", "gpu_util", "memory_used_mb", "process_memory_mb"} <= set(names)
