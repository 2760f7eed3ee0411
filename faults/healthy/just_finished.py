"""A job that ended well a moment ago."""
TRUTH = {"kind": None}
PROBE = "agent"
import torch.distributed as dist
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if step == job.at:
            break
        kit.train_step(net, optimizer)
    dist.barrier()
    job.begins()
    dist.destroy_process_group()


main()
