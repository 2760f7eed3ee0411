"""Only one rank evaluates, and its evaluation gathers the results of all ranks."""
TRUTH = {"kind": "mismatch", "cause": ["operation", "site"], "function": "evaluate", "not": ["deadlock", "loop"]}
NAMES = {"evaluate": ["evaluate", "validate", "run_eval"]}
import torch
import torch.distributed as dist
import kit


def evaluate(net, world):
    with torch.no_grad():
        score = net.module(torch.randn(8, 16)).mean()
    scores = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(scores, score)  # <- here
    return scores


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)
        if job.now(step):
            evaluate(net, job.world)


main()
