"""A pipeline in which one stage receives from the wrong stage."""
TRUTH = {"kind": ["mismatch", "deadlock"], "cause": ["peer", "operation"], "function": "stage", "not": ["loop"]}
NAMES = {"stage": ["stage", "forward_part", "run_chunk"]}
import torch
import torch.distributed as dist
import kit


def stage(job, hidden, wrong):
    if job.rank > 0:
        dist.recv(hidden, src=(job.rank + 1) % job.world if wrong else job.rank - 1)  # <- here
    hidden = torch.tanh(hidden + 1)
    if job.rank < job.world - 1:
        dist.send(hidden, dst=job.rank + 1)


def main():
    job = kit.start()
    if job.bad == 0:
        job.bad = 1
    for step in job.steps():
        stage(job, torch.zeros(64), job.now(step))
        dist.barrier()


main()
