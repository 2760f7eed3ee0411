"""One rank saves a checkpoint and calls a barrier in it, which no other rank calls."""
TRUTH = {"kind": "mismatch", "cause": ["operation", "site"], "function": "save_checkpoint", "not": ["deadlock", "loop"]}
NAMES = {"save_checkpoint": ["save_checkpoint", "write_state", "export"]}
import torch
import torch.distributed as dist
import kit


def save_checkpoint(net, path):
    torch.save(net.state_dict(), path)
    dist.barrier()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)
        if job.now(step):
            save_checkpoint(net, job.folder / "weights")


main()
