"""One rank passes a subgroup, and so waits for fewer ranks than those that wait for it."""
TRUTH = {"kind": ["mismatch"], "cause": ["group", "operation"], "function": "mean", "not": ["deadlock", "loop"]}
NAMES = {"mean": ["mean", "reduce_metric", "average"]}
import torch
import torch.distributed as dist
import kit


def mean(value, group):
    dist.all_reduce(value, group=group)  # <- here
    return value


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    half = dist.new_group([job.bad, (job.bad + 1) % job.world])
    for step in job.steps():
        kit.train_step(net, optimizer)
        mean(torch.ones(job.random.randrange(1, 9)), half if job.now(step) else None)


main()
