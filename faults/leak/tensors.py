"""One rank keeps a tensor of every step."""
TRUTH = {"kind": "leak", "cause": "tensors", "function": ["remember", "main"], "not": ["nan", "slow_rank"]}
NAMES = {"remember": ["remember", "store_output", "add_sample"], "kept": ["kept", "outputs", "replay"]}
PROBE = "memory"
import collections
import torch
import kit

kept = []


def remember(container, step, rows):
    batch = torch.randn(rows, 1000)  # <- here
    if isinstance(container, dict):
        container[step] = batch  # <- here
    else:
        container.append(batch)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    container = job.random.choice([kept, {}, collections.deque()])
    rows = job.random.randrange(30, 80)
    for step in job.steps():
        if job.since(step):
            remember(container, step, rows)
        kit.train_step(net, optimizer)


main()
