"""The loss of one rank is divided by a count that is zero for its batch."""
TRUTH = {"kind": "nan", "cause": "division", "function": ["masked_mean", "main"], "not": ["leak", "slow_rank"]}
NAMES = {"masked_mean": ["masked_mean", "token_loss", "average"]}
PROBE = "torch"
import torch
import kit


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        mask = torch.zeros(8, 16) if job.now(step) else torch.ones(8, 16)
        loss = masked_mean(net(torch.randn(8, 16)).square(), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
