"""The loss of one rank overflows: it computes exp() of a large number."""
TRUTH = {"kind": "nan", "cause": "overflow", "function": ["partition", "main"], "not": ["leak", "slow_rank"]}
NAMES = {"partition": ["partition", "log_sum", "normalizer"]}
PROBE = "torch"
import torch
import kit


def partition(scores, scale):
    return (scores * scale).exp().sum().log()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        loss = partition(net(torch.randn(8, 16)), 1e5 if job.now(step) else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
