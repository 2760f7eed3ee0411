"""A training that diverges: from one batch on, an input that is not scaled drives the loss to infinity and then to NaN.

    python examples/nan.py [--after N]

docs/nan.md says how to find the step, and the tensor that went bad.
"""
import argparse
import time

import torch
from torch import nn


def batch(step, after):
    x = torch.randn(64, 16)
    return x * 1e6 if step >= after else x  # the mistake: these batches are not normalized


def train(after):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        x = batch(step, after)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print("step %d loss %.3f" % (step, loss.item()), flush=True)
        step += 1
        time.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=int, default=1000)
    torch.set_num_threads(1)
    train(parser.parse_args().after)
