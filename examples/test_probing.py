"""A training that records spans, logs and tables of its own, and then queries them.

    PROBE=1 python examples/test_probing.py          # where the package is installed
    probing launch -- python examples/test_probing.py

It needs nothing but the package; with PyTorch, and PROBING_TORCH_PROFILING=on, its modules are recorded too.
"""
import math

import probing

try:
    import torch
except ImportError:
    torch = None


def steps_of_torch(steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 4)
    for _ in range(steps):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def steps_of_numbers(steps):
    weight = 5.0
    for _ in range(steps):
        weight -= 0.1 * 2 * (weight - 1)
        yield math.pow(weight - 1, 2)


def train(epochs=3, steps=20):
    for epoch in range(epochs):
        with probing.span("epoch", phase="train", epoch=epoch):
            for step, loss in enumerate(steps_of_torch(steps) if torch else steps_of_numbers(steps)):
                probing.log(epoch=epoch, step=step, loss=loss)
    return loss


def main():
    loss = train()
    print("loss %.4f" % loss)
    for row in probing.query("SELECT epoch, count(*) AS steps, min(loss) AS least FROM training_logs GROUP BY epoch ORDER BY epoch"):
        print("epoch %d: %d steps, loss %.4f" % (row["epoch"], row["steps"], row["least"]))


if __name__ == "__main__":
    main()
