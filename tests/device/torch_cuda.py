"""The checks of torch_cuda.sh: a training on a GPU without and with the torch probe, and what was recorded against what
the job measured.

DEVICE=cpu runs what needs no GPU, to try the script itself.
"""
import json
import os
import subprocess
import sys
import time

from checks import check, probing, rows, verdict

DEVICE = os.environ.get("DEVICE", "cuda")
JOB = """
import json, os, sys, threading, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch, torch.nn as nn
import torch.distributed as dist
device = os.environ.get("DEVICE", "cuda")
gpu = device == "cuda"
torch.use_deterministic_algorithms(True)

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        return x + self.mlp(self.norm(x))

def make(d=1024 if gpu else 32, layers=4):
    torch.manual_seed(0)
    net = nn.Sequential(*[Block(d) for _ in range(layers)]).to(device)
    return net, torch.randn(512 if gpu else 8, d, device=device)

def train(steps, wrap=lambda net: net):
    net, x = make()
    net = wrap(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    losses, events, begun = [], [], []
    for i in range(steps):
        begun.append(time.time())
        if gpu:
            events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)]); events[-1][0].record()
        loss = net(x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if gpu:
            events[-1][1].record()
        losses.append(loss.detach())
    if gpu:
        torch.cuda.synchronize()
    each = [a.elapsed_time(b) for a, b in events]
    times = sorted(each)
    return {"steps": list(zip(begun, each)), "losses": [each.item() for each in losses], "gpu_ms": times[len(times) // 2] if times else None,
            "allocated_mb": torch.cuda.memory_allocated() / 2 ** 20 if gpu else None}

def timed(steps):
    net, x = make(256, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    def step():
        loss = net(x[:, :256]).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
    for _ in range(20):
        step()
    found = []
    for _ in range(steps):
        begun = time.perf_counter(); step()
        if gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return sorted(found)[steps // 2] * 1e3

def graph():
    net, x = make()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            want = net(x)
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = net(x)
    g.replay(); torch.cuda.synchronize()
    return bool(torch.equal(y, want))

def graph_beside():
    # captures in this thread while another one trains: the probe must not break them
    net, x = make(); net(x); stop, failed = [], []
    def work():
        other, data = make(256, 2)
        opt = torch.optim.SGD(other.parameters(), lr=1e-4)
        while not stop:
            other(data[:, :256]).square().mean().backward(); opt.step()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        net(x)
    torch.cuda.synchronize()
    thread = threading.Thread(target=work); thread.start(); time.sleep(0.5)
    for _ in range(30):
        g = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(g, capture_error_mode="thread_local"):
                y = net(x)
            g.replay()
        except Exception as error:
            failed.append(str(error)[:200])
    stop.append(1); thread.join(); torch.cuda.synchronize()
    return failed

def compiled():
    net, x = make()
    want = net(x)
    return bool(torch.allclose(torch.compile(net, backend="aot_eager", fullgraph=True)(x), want, rtol=1e-3, atol=1e-3))

kept = []

def keep(count):
    for _ in range(count):
        kept.append(torch.empty(8 << 20, dtype=torch.uint8, device=device))
    return len(kept)

def history_of_the_job():
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return {"on": torch._C._cuda_isHistoryEnabled(), "entries": len(trace), "frames": any(each.get("frames") for each in trace if each["action"].startswith("free"))}

def ddp(steps):
    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29677", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl" if gpu else "gloo")
        time.sleep(2.5)
    return train(steps, lambda net: nn.parallel.DistributedDataParallel(net))

train(3)
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


def ask(job, text):
    job.stdin.write(text + "\n")
    job.stdin.flush()
    line = job.stdout.readline()
    if not line:
        check(text, False, "the job has ended")
        raise SystemExit("FAIL")
    return json.loads(line)


def switch(job, on):
    probing(job.pid, "probes", "start" if on else "stop", "torch", *(["budget=off"] if on else []))
    end = time.monotonic() + 20
    while on and "of the steps" not in probing(job.pid, "probes") and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1.5)  # the thread that looks for CUDA comes by once a second


def look_at_allocations(job, losses):
    """Tensors of the GPU by the function that keeps them."""
    probing(job.pid, "config", "probing.memory.sampling=on")
    end = time.monotonic() + 20
    while "memory_allocations" not in probing(job.pid, "tables") and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1.5)
    check("losses while allocations are sampled", ask(job, "train(100)")["losses"] == losses, "the same")
    count = ask(job, "keep(40)")
    time.sleep(1)
    ask(job, "keep(1)")  # the size of a tensor is read when the next one is made
    sql = ("SELECT function_name, device, round(sum(allocated_bytes) / 1048576) AS mb FROM memory_allocations WHERE "
           "kind = 'tensor' AND freed IS NULL AND device LIKE '{}%' GROUP BY ALL ORDER BY mb DESC LIMIT 3")
    found = rows(job.pid, sql.format(DEVICE))
    check("tensors that are kept", found and found[0]["function_name"] == "keep"
          and abs(found[0]["mb"] - 8 * count) < 2 * count, found)
    if DEVICE == "cuda":
        look_at_history(job, losses)
    probing(job.pid, "config", "probing.memory.sampling=off")


def cuda_rows(job):
    return rows(job.pid, "SELECT function_name, round(sum(allocated_bytes) / 1048576) AS mb, count(*) AS n, "
                         "count(freed) AS freed, min(device) AS device FROM memory_allocations "
                         "WHERE kind = 'cuda' GROUP BY ALL ORDER BY mb DESC")


def look_at_history(job, losses):
    """What torch's GPU allocator has given out and is alive, by its memory history, which is on only where it is asked
    for."""
    check("no memory history where none is asked for", ask(job, "torch._C._cuda_isHistoryEnabled()") is False, "")
    probing(job.pid, "config", "probing.memory.sampling=on,cuda=history")
    time.sleep(3)
    told, imported = probing(job.pid, "probes"), ask(job, "'torch._inductor' in sys.modules")  # compile may have
    check("torch._inductor is not imported for it", imported or "needs torch._inductor" in told,
          f"imported: {imported}")
    ask(job, "bool(__import__('torch._inductor'))")
    end = time.monotonic() + 15
    while not ask(job, "torch._C._cuda_isHistoryEnabled()") and time.monotonic() < end:
        time.sleep(0.2)
    before, count = ask(job, "len(kept)"), ask(job, "keep(20)")
    same, end = [], time.monotonic() + 22
    while time.monotonic() < end:  # two looks
        same.append(ask(job, "train(100)")["losses"] == losses)
    check("losses beside the memory history", all(same), f"{len(same)} trainings")
    print(f"note live blocks of the GPU's allocator: {cuda_rows(job)[:4]}")
    found = [each for each in cuda_rows(job) if each["function_name"] == "keep"]
    check("live blocks by the function that keeps them",
          found and found[0]["mb"] == 8 * (count - before) and found[0]["freed"] == 0, found)
    ask(job, "kept.clear()")
    stepped = [ask(job, "timed(300)")]
    time.sleep(11)
    found = [each for each in cuda_rows(job) if each["function_name"] == "keep"]
    check("and when they are freed", found and found[0]["freed"] == found[0]["n"] == count - before, found)
    probing(job.pid, "config", "probing.memory.sampling=on")
    end = time.monotonic() + 15
    while ask(job, "torch._C._cuda_isHistoryEnabled()") and time.monotonic() < end:
        time.sleep(0.2)
    check("the memory history is off afterwards", ask(job, "torch._C._cuda_isHistoryEnabled()") is False, "")
    stepped.append(ask(job, "timed(300)"))
    print(f"note a small step: {stepped[0]:.3f} ms with the memory history, {stepped[1]:.3f} without")
    probing(job.pid, "config", "probing.memory.sampling=on,cuda=history")
    time.sleep(3)
    ask(job, "torch.cuda.memory._record_memory_history(max_entries=1000)")
    until = time.monotonic() + 13
    while time.monotonic() < until:
        ask(job, "train(20)")
    check("and it is said", "records its own memory history" in probing(job.pid, "probes"), "")
    probing(job.pid, "config", "probing.memory.sampling=off")
    time.sleep(1.5)
    left = ask(job, "history_of_the_job()")
    check("a history of the program's own is left alone", left["on"] and left["entries"] == 1000 and left["frames"],
          left)
    ask(job, "torch.cuda.memory._record_memory_history(None)")


def look_at_modules(job, losses, allocated_mb):
    """What a module adds to the GPU's memory, and the norms of gradients, while it trains."""
    told = rows(job.pid, "SELECT count(*) AS n, count(DISTINCT module) AS modules, max(allocated) AS mb, "
                         "max(allocated_delta) AS more FROM python.torch_trace "
                         "WHERE stage = 'forward' AND allocated IS NOT NULL")[0]
    check("memory of modules", told["modules"] == 25 and 0.3 * allocated_mb < told["mb"] < 3 * allocated_mb + 64
          and told["more"] > 0, told)
    job.stdin.write("train(100)['losses'] + train(400)['losses'][:0]\n")
    job.stdin.flush()
    time.sleep(0.5)
    norms = rows(job.pid, "SELECT count(*) AS n, count(grad_norm) AS known, min(grad_norm) AS least, max(grad_norm) AS "
                          "most FROM python.tensors WHERE name IS NOT NULL AND requires_grad")[0]
    check("losses while norms of gradients are taken", json.loads(job.stdout.readline()) == losses, "the same")
    if DEVICE == "cuda":  # reading them would wait for the GPU
        why = rows(job.pid, "SELECT message FROM probing.log WHERE message LIKE 'grad_norm is NULL%'")
        check("no norms of gradients, with the reason", norms["known"] == 0 and why and "device" in why[-1]["message"],
              why)
    else:
        check("norms of gradients", norms["known"] > 0 and norms["least"] >= 0 and 0 < norms["most"] < 1e3, norms)


def look(job):
    before = ask(job, "train(100)")
    graphs = [ask(job, "graph()"), ask(job, "graph_beside()")] if DEVICE == "cuda" else [True, []]
    switch(job, True)
    after = ask(job, "train(100)")
    check("losses are the same, bit for bit", before["losses"] == after["losses"], f"last {after['losses'][-1]}")
    ask(job, "train(40)")  # a later step reads what the GPU has passed
    steps = rows(job.pid, "SELECT count(*) AS n, median(duration_ms) AS ms FROM python.torch_step")[0]
    check("steps", steps["n"] >= 99, steps)
    calls = rows(job.pid, "SELECT count(DISTINCT module) AS n FROM python.torch_trace WHERE stage = 'forward' AND "
                          "model = 'Sequential'")[0]["n"]
    check("modules of the model", calls == 1 + 4 * 6, calls)
    if DEVICE == "cuda":
        seen = rows(job.pid, "SELECT stage, count(*) AS n, count(DISTINCT module) AS modules, median(gpu_ms) AS "
                             "gpu_ms, max(allocated_mb) AS allocated_mb, "
                             "max(reserved_mb) AS reserved_mb FROM python.torch_gpu GROUP BY stage")
        found = {row["stage"]: row for row in seen}
        check("stages with GPU time", sorted(found) == ["backward", "forward", "optimizer", "step"],
              {stage: row["n"] for stage, row in found.items()})
        whole = found.get("step", {"gpu_ms": 0, "allocated_mb": 0})
        check("GPU time of a step", abs(whole["gpu_ms"] - after["gpu_ms"]) < 0.15 * after["gpu_ms"],
              f"{whole['gpu_ms']:.3f} ms, the job's events {after['gpu_ms']:.3f}")
        same = [(row["gpu_ms"], min(after["steps"], key=lambda step: abs(step[0] - row["at"]))[1]) for row in
                rows(job.pid, "SELECT epoch_us(timestamp) / 1e6 AS at, gpu_ms FROM python.torch_gpu WHERE stage = "
                              "'step' ORDER BY timestamp")]
        print("note GPU time of the same steps, ours and the job's events: "
              + " ".join("%.3f/%.3f" % pair for pair in same))
        check("modules with GPU time", found.get("forward", {}).get("modules") == 25, found.get("forward"))
        check("memory of a step", abs((whole["allocated_mb"] or 0)
                                      - after["allocated_mb"]) < 0.3 * after["allocated_mb"] + 32,
              f"{whole['allocated_mb']} MB, torch {after['allocated_mb']:.1f}")
        inside = rows(job.pid, "SELECT median(a.gpu_ms / b.gpu_ms) AS share FROM python.torch_gpu a JOIN (SELECT step, "
                               "sum(gpu_ms) AS gpu_ms FROM python.torch_gpu "
                               "WHERE stage <> 'step' AND module IN ('Sequential', 'backward', 'optimizer') GROUP BY "
                               "1) b USING (step) WHERE a.stage = 'step'")[0]["share"]
        check("phases make up the step", inside is not None and 0.95 < inside < 1.6, inside)
        look_at_modules(job, before["losses"], after["allocated_mb"])
        check("a graph is captured and replayed", graphs[0] and ask(job, "graph()"), "equal")
        beside = ask(job, "graph_beside()")
        check("graphs captured beside a training", len(beside) <= len(graphs[
            1]), f"{len(beside)} of 30 failed, without the probe {len(graphs[1])} {beside[:1]}")
    check("fullgraph compile", ask(job, "compiled()"), "equal")
    on = [ask(job, "timed(300)")]
    switch(job, False)
    off = [ask(job, "timed(300)")]
    switch(job, True)
    on.append(ask(job, "timed(300)"))
    print(f"note a small step: {off[0]:.3f} ms off, {on[0]:.3f} and {on[1]:.3f} on "
          f"({(min(on) / off[0] - 1) * 100:+.1f}%)")
    plain = ask(job, "ddp(30)")
    switch(job, False)
    bare = ask(job, "ddp(30)")
    check("DDP: losses are the same", plain["losses"] == bare["losses"], f"last {bare['losses'][-1]}")
    seen = rows(job.pid, "SELECT op, count(*) AS n, max(bytes) AS bytes, max(tensor_dtype) AS dtype FROM "
                         "python.comm_collective GROUP BY op ORDER BY n DESC")
    check("collectives of one rank", any(row["op"] == "allreduce" and row["n"] >= 29 and row["bytes"] for row in seen),
          seen)
    look_at_allocations(job, before["losses"])
    probing(job.pid, "detach")
    again = ask(job, "train(100)")
    check("losses after detach", again["losses"] == before["losses"], "the same")


def main():
    job = subprocess.Popen([sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           universal_newlines=True)
    try:
        assert job.stdout.readline() == "ready\n", "torch has no GPU here"
        look(job)
    finally:
        job.kill()
        job.wait()
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
