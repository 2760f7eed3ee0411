"""gpu profile, with a stand-in for CUPTI: what it makes is what the tables have, and CUPTI is left as it was. What ran on
a real GPU is in docs/gpu.md."""
import json
import os
import re
import subprocess
import sys
import time

import jobs
import pytest
from jobs import probe

HERE = os.path.dirname(os.path.abspath(__file__))
JOB = """
import ctypes, sys
folder, words = sys.argv[1], sys.argv[2:]
if "torch" in words:
    import torch
if "driver" in words:
    driver = ctypes.CDLL(folder + "/libcuda.so.1")
if "cupti" in words:
    cupti = ctypes.CDLL(folder + "/libcupti.so.13")
    cupti.stand_in_made.restype = ctypes.c_uint64
import os, time
said, path = 0, f"{folder}/code-{os.getpid()}"
print("ready", flush=True)
while True:  # lines of a file are run, in this thread
    lines = open(path).read().split("\\n") if os.path.exists(path) else [""]
    for line in lines[said:-1]:
        exec(line)
        said += 1
    time.sleep(0.01)
"""
ON, OFF = 7, 0
FILL = ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)")


@pytest.fixture(scope="module", name="folder")
def folder_of_stand_ins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cupti")
    (folder / "job.py").write_text(JOB)
    for name in ("libcupti.so.13", "libcuda.so.1"):
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-pthread", f"-Wl,-soname,{name}", "-o",
                        folder / name, os.path.join(HERE, "targets/stand_in_cupti.c")], check=True)
    return folder


def start(folder, *words, **env):
    return jobs.start(sys.executable, folder / "job.py", folder, *words, ready="ready\n", ready_seconds=90, env=env)


def profile(job, *words, **options):
    return probe("-t", job.pid, "gpu", "profile", *words, **options)


def rows(job, sql):
    return jobs.rows(job, sql)


def state(job):
    return int(probe(job.pid, "eval", "cupti.stand_in_state()").stdout)


def made(job):
    return int(probe(job.pid, "eval", "cupti.stand_in_made()").stdout)


@pytest.fixture(scope="module", name="job")
def a_job_of_torch(folder):
    with start(folder, "torch", "driver", "cupti") as job:
        yield job
        assert job.output == "ready\n"


def test_every_kernel_and_copy_is_a_row(job):
    before, begun = made(job), time.time()
    done = profile(job, "--seconds", "300ms")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "  vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*> >\n" in done.stdout
    assert "host to device" in done.stdout
    last = rows(job, "SELECT * FROM gpu.profiles ORDER BY timestamp DESC LIMIT 1")[0]
    assert last["why"] is None and last["lost"] == last["unfinished"] == 0 and last["cupti"] == 130001
    assert last["kernels"] + last["copies"] == made(job) - before and last["kernels"] > 0 and last["copies"] > 0
    assert state(job) == OFF, "it is off, and no buffer is kept"
    kernels = rows(job, "SELECT *, epoch(timestamp) AS t FROM gpu.kernels")
    assert len(kernels) == last["kernels"]
    assert all(begun - 1 < k["t"] < time.time() + 1 for k in kernels)
    assert {(k["name"], k["duration_us"], k["graph"]) for k in kernels} <= {
        (FILL, 1.0, None), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2.0, None),
        ("plain_kernel", 3.0, 5)}
    assert {(k["device"], k["stream"], k["blocks"], k["threads"], k["shared_bytes"], k["registers"])
            for k in kernels} == {(0, 7, 6, 128, 4096, 32)}
    again = profile(job, "--seconds", "50ms", "--json")
    assert FILL in {row["kernel"] for row in json.loads(again.stdout)}
    begun = [row["t"] for row in rows(job, "SELECT epoch(timestamp) AS t FROM gpu.profiles ORDER BY timestamp")]
    assert begun[1] - begun[0] >= 1.3, "a second after the end of the one of 300 ms: CUPTI has a thread that goes on"
    copies = rows(job, "SELECT DISTINCT kind, bytes, pageable, duration_us FROM gpu.copies ORDER BY kind")
    assert [tuple(c.values()) for c in copies] == [("host to device", 1 << 20, True, 5.0), ("set", 1 << 20, False, 5.0)]


def test_it_ends_by_itself_when_the_tool_is_killed_or_the_agent_goes(job):
    with subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "gpu", "profile", "--seconds", "3"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tool:
        jobs.wait_until(lambda: state(job) & ON == ON, 60, "the recording")
        tool.kill()
    jobs.wait_until(lambda: state(job) == OFF, 60, "its end")
    jobs.wait_until(lambda: probe(job.pid, "probes", "start", "gpu_profile", "for=50s").returncode == 0, 60,
                    "the end of the one before, and a new one")
    jobs.wait_until(lambda: state(job) & ON == ON, 60, "the recording")
    second = profile(job)
    assert second.returncode == 1 and "a recording of its GPU runs already" in second.stderr
    assert probe(job.pid, "detach").returncode == 0
    jobs.wait_until(lambda: state(job) == OFF, 60, "its end")


def test_torch_s_own_profiler_is_left_alone(folder):
    lines = []

    def run(job, line):
        lines.append(line)
        with open(folder / f"code-{job.pid}", "a") as code:
            code.write(line + "\n")
        jobs.wait_until(lambda: probe(job.pid, "eval", "said").stdout == f"{len(lines)}\n", 60, line)

    with start(folder, "torch", "driver", "cupti") as job:
        refused = "probing: gpu: torch.profiler is recording, and only one can use CUPTI\n"
        run(job, "from torch.profiler import profile, schedule, ProfilerActivity as a")
        run(job, "held = profile(activities=[a.CPU], schedule=schedule(wait=1, warmup=1, active=1)); held.start()")
        assert profile(job, "--seconds", "20ms").returncode == 0, "it waits for its turn"
        for _ in range(2):  # it prepares, it records
            run(job, "held.step()")
            done = profile(job, "--seconds", "20ms")
            assert done.stderr == refused and done.returncode == 1 and state(job) & ON == 0
        run(job, "held.stop()")
        assert profile(job, "--seconds", "20ms").returncode == 0
        with subprocess.Popen([str(jobs.PROGRAM), "-t", str(job.pid), "gpu", "profile", "--seconds", "50"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True) as tool:
            jobs.wait_until(lambda: state(job) & ON == ON, 60, "the recording")
            run(job, "other = profile(activities=[a.CPU]); other.start()")
            time.sleep(0.2)
            assert state(job) & ON == ON, "what is on may be the other's: nothing is switched off while it records"
            run(job, "other.stop()")
            assert "torch.profiler started to record and took over CUPTI" in tool.communicate(timeout=60)[1]
        jobs.wait_until(lambda: state(job) & ON == 0, 60, "its end")


def check_counts(job, out):
    last = rows(job, "SELECT * FROM gpu.profiles ORDER BY timestamp DESC LIMIT 1")[0]
    assert last["kernels"] + last["copies"] + last["lost"] + last["unfinished"] == made(job)
    assert "unfinished" in out or not last["lost"] + last["unfinished"]
    assert state(job) == OFF
    return last


def test_a_clock_that_counts_ticks_is_understood_and_what_is_not_over_counted(folder):
    """torch.profiler gives CUPTI the processor's counter for a clock, and leaves it so."""
    with start(folder, "torch", "driver", "cupti", STAND_IN="ticks open") as job:
        begun = time.time()
        done = profile(job, "--seconds", "500ms")
        assert done.returncode == 0
        assert check_counts(job, done.stdout)["unfinished"] > 0
        kernels = rows(job, "SELECT name, duration_us, epoch(timestamp) AS t FROM gpu.kernels ORDER BY 3")
        expected = {FILL: 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 2, "plain_kernel": 3}
        assert len(kernels) > 10
        assert all(abs(k["duration_us"] / expected[k["name"]] - 1) < 0.1 for k in kernels), kernels[:5]
        assert begun - 1 < kernels[0]["t"] and kernels[-1]["t"] < time.time() + 1


def test_what_finds_no_room_is_counted(folder):
    with start(folder, "torch", "driver", "cupti", STAND_IN="flood") as job:
        done = profile(job, "--seconds", "100ms", timeout=120)
        assert done.returncode == 0, done.stderr
        assert check_counts(job, done.stdout)["unfinished"] == 0


@pytest.mark.parametrize("words, env, says", [
    ([], {}, "this process uses no GPU: libcuda.so.1 is not loaded"),
    (["driver"], {}, "no libcupti.so is loaded in this process: torch with CUDA brings it along"),
    (["driver", "cupti"], {"STAND_IN": "no-cuda"}, "this process has not used a GPU yet"),
    (["driver", "cupti"], {"STAND_IN": "version=29"}, "CUPTI has version 29; known are those of CUDA 11.7 to 13.4"),
    (["driver", "cupti"], {"CUDA_INJECTION64_PATH": "/opt/nsight.so"},
     "another profiler (CUDA_INJECTION64_PATH) is in this process; only one can use CUPTI"),
    (["driver", "cupti"], {}, "only processes of PyTorch are recorded: of others it is not known which profiler uses "
                              "CUPTI"),
    (["torch", "driver", "cupti"], {"STAND_IN": "error=35"}, "CUPTI refuses: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
], ids=lambda value: re.sub(r"\W+", "-", "-".join(value))[:40] if isinstance(value, list) else None)
def test_where_it_cannot_be_a_sentence_says_why(folder, words, env, says):
    with start(folder, *words, **env) as job:
        done = profile(job)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"probing: gpu: {says}\n")
        if "cupti" in words:
            assert state(job) == OFF
        assert job.alive() and job.output == "ready\n"


@pytest.mark.parametrize("words, says", [
    ([], "what of the GPU? there is profile"), (["profiles"], "what of the GPU? there is profile"),
    (["profile", "--seconds", "0"], "--seconds takes a time from 10ms to 60 seconds"),
    (["profile", "--seconds", "2h"], "--seconds takes a time from 10ms to 60 seconds"),
])
def test_a_wrong_command_is_said(words, says):
    done = probe("-t", os.getpid(), "gpu", *words)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
