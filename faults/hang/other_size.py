"""One rank gathers a batch of another size; the others wait for bytes that never come."""
TRUTH = {"kind": "mismatch", "cause": "size", "function": "gather", "not": ["deadlock", "loop"]}
NAMES = {"gather": ["gather", "collect", "all_outputs"]}
import torch
import torch.distributed as dist
import kit


def gather(part):
    dist.broadcast(part, src=0)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    if job.bad == 0:
        job.bad = 1
    rows = job.random.randrange(100, 300)
    for step in job.steps():
        kit.train_step(net, optimizer)
        gather(torch.ones(rows + 100 if job.now(step) else rows))


main()
