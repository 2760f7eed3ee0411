"""A rank of the job of nccl.py: DDP over all ranks, tensor parallelism by hand in pairs, transfers, a captured graph.

Several ranks share the one GPU, each told that it is another host (NCCL_HOSTID). Words in the file WORD say what comes
next.
"""
import json
import os
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
import torch.distributed as dist
import torch.nn as nn

word, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
torch.use_deterministic_algorithms(True)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = pairs[rank // 2]
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda(),
                                          device_ids=[0],
                                          bucket_cap_mb=2)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
x = torch.randn(256, 512, device="cuda")
part, whole = torch.randn(64, 512, device="cuda"), torch.empty(128, 512, device="cuda")
losses, times = [], []


def says(what):
    with open(word) as file:
        return what in file.read()


def step(more):
    begun = time.perf_counter()
    dist.all_gather_into_tensor(whole, part, group=pair)
    dist.reduce_scatter_tensor(part, whole / 2, group=pair)
    if more:
        if rank % 2 == 0:
            dist.send(part, rank + 1)
        else:
            dist.recv(part, rank - 1)
        beside = torch.empty_like(part)
        for each in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, part, (rank + 1) % world),
             dist.P2POp(dist.irecv, beside, (rank - 1) % world)]):
            each.wait()
        dist.broadcast(part, 0)
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.detach())
    torch.cuda.synchronize()
    times.append((time.time(), time.perf_counter() - begun))


def profiled(n):
    dist.barrier()
    torch.cuda.synchronize()
    time.sleep(0.3)
    begun = time.time()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(n):
            step(True)
    ended = time.time()
    profile.export_chrome_trace(f"{out}/trace-{rank}.json")
    with open(f"{out}/trace-{rank}.json") as file:
        events = json.load(file)["traceEvents"]
    os.unlink(f"{out}/trace-{rank}.json")
    kernels = sorted(
        (e["ts"], e["dur"] / 1e3, e["name"]) for e in events if e.get("cat") == "kernel" and "nccl" in e["name"])
    return {"begun": begun, "ended": ended, "kernels": kernels}


for _ in range(5):
    step(True)
told = {}
open(f"{out}/ready-{rank}", "w").close()
while not says("go"):
    time.sleep(0.05)
dist.barrier()
if steps:
    for _ in range(steps):
        step(False)
else:
    told.update(profiled(20))
    flag = torch.zeros(1, device="cuda")
    while flag.item() == 0:  # until it is told to end, all ranks at the same step
        step(True)
        flag.fill_(1.0 if rank == 0 and says("end") else 0.0)
        dist.broadcast(flag, 0)
    stale = dist.new_group([0, 1, 2, 3])
    dist.all_reduce(part, group=stale)
    torch.cuda.synchronize()
    dist.destroy_process_group(stale)
    from torch._C._distributed_c10d import _dump_nccl_trace_json
    time.sleep(1.5)
    entries = json.loads(_dump_nccl_trace_json(includeCollectives=True, onlyActive=False))["entries"]
    told["timed"] = ["duration_ms" in each for each in entries[-8:]]
told["losses"] = [each.item() for each in losses]
told["times"] = times
with open(f"{out}/told-{rank}.json", "w") as file:
    json.dump(told, file)
open(f"{out}/done-{rank}", "w").close()
while not says("exit"):
    time.sleep(0.05)
dist.destroy_process_group()
