"""Data parallel training on the CPU, two ranks or more: collectives to look at.

    torchrun --nproc-per-node 2 examples/ddp.py [--steps N]

docs/torch.md says what to ask of it.
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn


def train(steps):
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.randn(32, 256)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print("step %d loss %.3f" % (step, mean.item() / dist.get_world_size()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000000)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(parser.parse_args().steps)
    dist.destroy_process_group()
