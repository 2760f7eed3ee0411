"""A rank that stops: after some steps the last rank waits in code of its own, and the others wait for it in a collective.

    torchrun --nproc-per-node 2 examples/hang.py [--after N] [--seconds S]

docs/torch.md says how to find the rank, and the line that it waits in.
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


def wait_for_a_lock(seconds):
    time.sleep(seconds)  # stands for a lock that is never released, or a file server that is down


def train(after, seconds):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(after + 1):
        if step == after and dist.get_rank() == dist.get_world_size() - 1:
            print("rank %d stops at step %d" % (dist.get_rank(), step), flush=True)
            wait_for_a_lock(seconds)
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3600)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args.after, args.seconds)
    dist.destroy_process_group()
