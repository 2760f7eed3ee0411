"""A small training job to attach to: a tiny transformer where PyTorch is installed, gradient descent in plain Python
otherwise. `train` has what one asks a live job for: `step`, `loss` and the `job` with its model or weights.

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


class TorchJob:
    """Predicts the next of 64 symbols in sequences that count upwards: learnable, so that the loss falls."""

    def __init__(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(32, nhead=2, dim_feedforward=64, batch_first=True, dropout=0.0)
        self.model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.TransformerEncoder(layer, num_layers=2),
                                         torch.nn.Linear(32, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def advance(self):
        tokens = (torch.randint(0, 64, (8, 1)) + torch.arange(17)) % 64
        logits = self.model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class PlainJob:
    """Fits a cubic to a sine over 200 points by gradient descent."""

    def __init__(self):
        random.seed(0)
        self.weights = [0.0] * 4
        self.points = [random.uniform(-1, 1) for _ in range(200)]

    def advance(self):
        loss = 0.0
        for x in self.points:
            powers = [x ** n for n in range(4)]
            error = sum(w * p for w, p in zip(self.weights, powers)) - math.sin(3 * x)
            self.weights = [w - 0.01 * error * p for w, p in zip(self.weights, powers)]
            loss += error * error / len(self.points)
        return loss


def train(job, seconds):
    deadline = time.monotonic() + seconds
    step = 0
    while time.monotonic() < deadline:
        loss = job.advance()
        step += 1
        if step % 500 == 1:
            print("step %d  loss %.4f" % (step, float(loss)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--plain", action="store_true", help="without PyTorch even where it is installed")
    options = parser.parse_args()
    train(PlainJob() if torch is None or options.plain else TorchJob(), options.seconds)


if __name__ == "__main__":
    main()
