"""A worker of a rank's data loader was stopped; the rank waits for its batch."""
TRUTH = {"kind": ["worker_stopped", "stopped"], "cause": ["stopped", None], "function": None, "not": ["deadlock",
         "loop"]}
import os
import signal
import torch
import kit


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, n):
        return torch.randn(16)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    batches = iter(torch.utils.data.DataLoader(Rows(), 4, num_workers=job.random.choice([1, 2])))
    for step in job.steps():
        if job.now(step):
            os.kill(batches._workers[0].pid, signal.SIGSTOP)
        next(batches)
        kit.train_step(net, optimizer)


main()
