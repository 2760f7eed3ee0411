"""A job that has just started: rank 0 reads its files, the others wait for it in the first barrier."""
TRUTH = {"kind": None}
SETTLE = 0.2
import time
import torch.distributed as dist
import kit


def read_files(count):
    for n in range(count):
        time.sleep(0.01)


def main():
    job = kit.start()
    job.begins()
    if job.rank == 0:
        read_files(400)
    dist.barrier()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)


main()
