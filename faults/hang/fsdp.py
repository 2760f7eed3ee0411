"""A model sharded by FSDP: one rank waits at a lock, the others wait in all_gather for its parameters."""
TRUTH = {"kind": ["deadlock", "lock_held"], "cause": ["lock", "self", None], "function": "update_state",
         "not": ["loop"]}
NAMES = {"update_state": ["update_state", "track", "note_step"]}
import threading
import torch
from torch.distributed.fsdp import fully_shard
import kit

lock = threading.Lock()


def update_state():
    lock.acquire()
    lock.acquire()  # <- here


def main():
    job = kit.start()
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))
    mesh = torch.distributed.init_device_mesh("cpu", (job.world,))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in job.steps():
        if job.now(step):
            update_state()
        kit.train_step(net, optimizer)


main()
