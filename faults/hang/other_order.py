"""One rank makes two collectives in the other order."""
TRUTH = {"kind": "mismatch", "cause": ["operation", "order"], "function": "sync_state", "not": ["deadlock", "loop"]}
NAMES = {"sync_state": ["sync_state", "exchange", "merge"]}
import torch
import torch.distributed as dist
import kit


def sync_state(flag, counts, swapped):
    if swapped:
        dist.barrier()  # <- here
        dist.all_reduce(counts)
    else:
        dist.all_reduce(counts)
        dist.barrier()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    flag, counts = torch.zeros(1), torch.zeros(job.random.randrange(4, 60))
    for step in job.steps():
        kit.train_step(net, optimizer)
        sync_state(flag, counts, job.now(step))


main()
