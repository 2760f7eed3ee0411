"""A small training job to attach to: a tiny transformer where PyTorch is installed, gradient descent in plain Python
otherwise. Both loops have the locals `step` and `loss` to ask for.

    python examples/train.py [--seconds N] [--plain]
"""
import argparse
import math
import random
import time

try:
    import torch
except ImportError:
    torch = None


def report(step, loss):
    if step % 500 == 1:
        print("step %d  loss %.4f" % (step, loss), flush=True)


def make_model():
    layer = torch.nn.TransformerEncoderLayer(32, nhead=2, dim_feedforward=64, batch_first=True, dropout=0.0)
    return torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.TransformerEncoder(layer, num_layers=2),
                               torch.nn.Linear(32, 64))


def train(seconds):
    """Predicts the next of 64 symbols in sequences that count upwards: learnable, so that the loss falls."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    deadline = time.monotonic() + seconds
    step = 0
    while time.monotonic() < deadline:
        tokens = (torch.randint(0, 64, (8, 1)) + torch.arange(17)) % 64
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        report(step, loss.item())


def train_plain(seconds):
    """Fits a cubic to a sine, point by point."""
    random.seed(0)
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    loss = 1.0
    deadline = time.monotonic() + seconds
    step = 0
    while time.monotonic() < deadline:
        x = random.uniform(-1, 1)
        error = a + b * x + c * x ** 2 + d * x ** 3 - math.sin(3 * x)
        a -= 0.01 * error
        b -= 0.01 * error * x
        c -= 0.01 * error * x ** 2
        d -= 0.01 * error * x ** 3
        loss = 0.999 * loss + 0.001 * error ** 2
        time.sleep(0.0005)
        step += 1
        report(step, loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--plain", action="store_true", help="without PyTorch even where it is installed")
    options = parser.parse_args()
    (train_plain if torch is None or options.plain else train)(options.seconds)


if __name__ == "__main__":
    main()
