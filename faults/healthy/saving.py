"""Rank 0 saves a checkpoint piece by piece while the others wait in a barrier. It moves, and takes seconds."""
TRUTH = {"kind": None}
import time
import torch
import torch.distributed as dist
import kit


def save(net, path, pieces):
    for n in range(pieces):
        torch.save(net.state_dict(), f"{path}.{n % 7}")
        time.sleep(0.02)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)
        if step == job.at:
            job.begins()
            if job.rank == 0:
                save(net, job.folder / "weights", 1500)
            dist.barrier()


main()
