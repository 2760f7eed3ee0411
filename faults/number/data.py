"""One rank's batch has a nan. The loss of that rank is nan, and a step later all ranks' are."""
TRUTH = {"kind": "nan", "cause": "data", "function": ["loss_of", "main", "load"], "not": ["leak", "slow_rank"]}
NAMES = {"loss_of": ["loss_of", "criterion"], "load": ["load", "read_batch"]}
PROBE = "torch"
import torch
import kit


def load(bad):
    batch = torch.randn(8, 16)
    if bad:
        batch[3, 5] = float("nan")  # <- here
    return batch


def loss_of(net, batch):
    return net(batch).square().mean()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        loss = loss_of(net, load(job.now(step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
