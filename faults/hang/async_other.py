"""Calls return at once, and one rank has issued another one; all look again and again whether theirs has ended."""
TRUTH = {"kind": "mismatch", "cause": "operation", "function": ["exchange", "main"], "not": ["deadlock", "loop"]}
NAMES = {"exchange": ["exchange", "share", "reduce_all"]}
import time
import torch
import torch.distributed as dist
import kit


def exchange(value, alone):
    if alone:
        work = dist.broadcast(value, src=0, async_op=True)
    else:
        work = dist.all_reduce(value, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)  # <- here


def main():
    job = kit.start()
    # The root of a broadcast needs nobody, so the odd one is another rank.
    bad = max(job.bad, 1)
    value = torch.ones(job.random.randrange(8, 64))
    for step in job.steps():
        if job.rank == bad and step == job.at:
            job.begins()
        exchange(value, job.rank == bad and step == job.at)


main()
