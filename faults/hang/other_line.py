"""One rank calls a barrier that the others do not have. It pairs with the next barrier of the others; from then on
the rank is one call behind; the job hangs at the end of the epoch."""
TRUTH = {"kind": "mismatch", "cause": ["site", "operation"], "function": ["save", "end_epoch", "main"],
         "not": ["deadlock", "loop"]}
NAMES = {"save": ["save", "write_checkpoint", "dump_weights"], "end_epoch": ["end_epoch", "after_epoch"]}
import torch
import torch.distributed as dist
import kit


def save():
    dist.barrier()


def end_epoch():
    dist.barrier()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)
        if job.now(step):
            save()
        if step == job.at:
            end_epoch()
            dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(64), src=0)


main()
