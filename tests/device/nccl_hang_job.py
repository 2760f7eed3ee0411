"""A rank of a job of NCCL that hangs in a known way, for nccl_hang.py."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

folder, case = sys.argv[1], sys.argv[2]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
x = torch.ones(1 << 18, device="cuda")
for _ in range(5):
    dist.all_reduce(x)
torch.cuda.synchronize()
open(f"{folder}/ready-{rank}", "w").close()


def load_next_batch():
    time.sleep(1000)


def wait_for_storage():
    os.open(f"{folder}/fifo", os.O_RDONLY)


if case == "sleeps" and rank == 2:
    load_next_batch()
if case == "skips" and rank == 1:
    time.sleep(1000)
if case == "stopped" and rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
if case == "killed" and rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if case == "storage":
    wait_for_storage()
if case == "other" and rank == 2:
    dist.broadcast(x, 2)
    time.sleep(1000)
dist.all_reduce(x[:1000 if case == "size" and rank == 3 else 2000])
torch.cuda.synchronize()
time.sleep(1000)
