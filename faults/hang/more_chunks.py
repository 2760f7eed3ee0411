"""A rank has a larger table than the others, and so sends one chunk of it more, for which the others do not wait."""
TRUTH = {"kind": "mismatch", "cause": ["operation", "site"], "function": "share", "not": ["deadlock", "loop"]}
NAMES = {"share": ["share", "sync_table", "send_parts"]}
import torch
import torch.distributed as dist
import kit


def share(table):
    for chunk in table.split(100):
        dist.all_reduce(chunk)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    rows = 100 * job.random.randrange(2, 5)
    for step in job.steps():
        kit.train_step(net, optimizer)
        share(torch.ones(rows + 100 if job.now(step) else rows))
        dist.broadcast(torch.ones(64), src=0)


main()
