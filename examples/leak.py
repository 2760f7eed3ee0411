"""A training with a memory leak: it keeps a copy of each batch, and each loss with its whole graph.

    python examples/leak.py [--steps N]

docs/torch.md says how to find the line.
"""
import argparse
import time

import torch
from torch import nn


def remember(history, batch, loss):
    history.append((batch.clone(), loss))  # the mistake: loss.item() is enough, and the batch is not needed


def train(steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        batch = torch.randn(64, 128)
        time.sleep(0.005)  # as if it had been read from somewhere
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        remember(history, batch, loss)
        if step % 100 == 0:
            print("step %d loss %.3f" % (step, loss.item()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10000)
    torch.set_num_threads(1)
    train(parser.parse_args().steps)
