"""One rank has fewer batches. It leaves the loop and goes to the barrier at the end; the others are in a step."""
TRUTH = {"kind": ["mismatch", "left_loop"], "cause": "operation", "function": ["main", "finish"],
         "not": ["deadlock", "loop"]}
NAMES = {"finish": ["finish", "end_epoch", "wrap_up"]}
import torch.distributed as dist
import kit


def finish():
    dist.barrier()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            break
        kit.train_step(net, optimizer)
    finish()


main()
