"""One rank skips an all_reduce where its batch is empty, and goes on to the next collective, which is another."""
TRUTH = {"kind": "mismatch", "cause": "operation", "function": "share_stats", "not": ["deadlock", "loop"]}
NAMES = {"share_stats": ["share_stats", "sync_buffers", "publish"]}
import torch
import torch.distributed as dist
import kit


def mean_loss(loss):
    dist.all_reduce(loss)


def share_stats(stats):
    dist.broadcast(stats, src=0)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    stats = torch.zeros(job.random.randrange(2, 200))
    for step in job.steps():
        loss = kit.train_step(net, optimizer).detach()
        if not job.now(step):
            mean_loss(loss)
        if step >= job.at:
            share_stats(stats)


main()
