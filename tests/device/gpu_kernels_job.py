"""The job of gpu_kernels.py: does what lines of its stdin say, and answers each with a line of JSON.

STAND_IN names a folder with stand-ins for CUPTI and the driver: then it runs on a CPU, to try the script itself.
"""
import ctypes
import json
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
stand_in = os.environ.get("STAND_IN")
if stand_in:
    sys.setdlopenflags(0x102)
import torch
import torch.nn as nn

if stand_in:
    ctypes.CDLL(stand_in + "/libcuda.so.1")
    ctypes.CDLL(stand_in + "/libcupti.so.13")
device = "cpu" if stand_in else "cuda"
torch.use_deterministic_algorithms(True)


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


class Training:
    """Steps of a training: some that keep the GPU busy (big), some that launch many small kernels."""

    def __init__(self, big):
        torch.manual_seed(1)
        width, layers, rows = (8192, 8, 4096) if big and device == "cuda" else (128, 24, 64)
        kind = torch.bfloat16 if big else torch.float32
        self.net = nn.Sequential(*[
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
            for _ in range(layers)
        ]).to(device, kind)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.host = torch.randn(rows, width, dtype=kind)
        if device == "cuda":
            self.pinned = self.host.pin_memory()

    def step(self):
        x = self.pinned.to(device, non_blocking=True) if device == "cuda" else self.host
        x = x + self.host.to(device)
        loss = self.net(x).float().square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


trainings = {"big": Training(True), "small": Training(False)}


def mixed(n):
    wait()
    begun = time.time()
    for _ in range(n):
        trainings["big"].step()
        trainings["small"].step()
    wait()
    return {"begun": begun, "ended": time.time()}


def profiled(n):
    wait()
    kinds = [torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        mixed(n)
        time.sleep(0.5)  # the other side tries to record meanwhile
    path = f"/tmp/gpu-kernels-{os.getpid()}.json"
    profile.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    os.unlink(path)
    return {
        "kernels": [[e["name"], e["dur"]] for e in events if e.get("cat") == "kernel"],
        "copies": sum(e.get("cat") in ("gpu_memcpy", "gpu_memset") for e in events)
    }


def pace(kind, seconds):
    """[[when it ended, how long it took], ...]"""
    times, until = [], time.time() + seconds
    wait()
    while time.time() < until:
        begun = time.perf_counter()
        trainings[kind].step()
        wait()
        times.append([time.time(), time.perf_counter() - begun])
    return times


def losses(n):
    """Of a training from its beginning; graphs are captured beside it, and children forked."""
    training, seen, children = Training(False), [], []
    x = torch.ones(256, 256, device=device)
    for i in range(n):
        seen.append(training.step())
        if device == "cuda" and i % 10 == 5:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x @ x + 1
            graph.replay()
            seen.append(y.sum())
        if i % 20 == 10:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            children.append(os.waitpid(pid, 0)[1])
    return {"losses": [loss.item() for loss in seen], "children": children}


def state():
    threads = sorted(open(f"/proc/self/task/{tid}/comm").read().strip() for tid in os.listdir("/proc/self/task"))
    with open("/proc/self/maps") as maps:
        n = len(maps.readlines())
    with open("/proc/self/statm") as statm:
        size, resident = [int(word) * 4096 >> 20 for word in statm.read().split()[:2]]
    return {"threads": threads, "maps": n, "mapped_mb": size, "resident_mb": resident}


for _ in range(2):
    mixed(2)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "exit":
        how = words[1]
        if how == "quietly":
            sys.exit(0)
        if how == "at-once":
            os._exit(3)
        if how == "raise":
            raise KeyError("on purpose")
        if how == "busy":
            for _ in range(50):
                trainings["small"].step()
            sys.exit(0)
    answer = {"mixed": mixed, "profiled": profiled, "losses": losses}.get(words[0])
    if answer:
        result = answer(int(words[1]))
    elif words[0] == "pace":
        result = pace(words[1], float(words[2]))
    else:
        result = state()
    print(json.dumps(result), flush=True)
