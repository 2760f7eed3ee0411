"""One rank's data loader has one worker, which is slow: its batches are never ready."""
TRUTH = {"kind": "slow_rank", "cause": "data", "function": ["__getitem__", "crop", "main"],
         "not": ["leak", "nan", "blocked_call"]}
NAMES = {"crop": ["crop", "augment", "resize"]}
PROBE = "torch"
import time
import torch
import kit


class Rows(torch.utils.data.Dataset):
    def __init__(self, delay):
        self.delay = delay

    def __len__(self):
        return 10**6

    def crop(self):
        time.sleep(self.delay)  # <- here

    def __getitem__(self, n):
        self.crop()
        return torch.randn(16)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    delay = job.random.uniform(0.02, 0.04) if job.mine() else 0.0001
    batches = iter(torch.utils.data.DataLoader(Rows(delay), 4, num_workers=1))
    for step in job.steps():
        if step == job.at:
            job.begins()
        next(batches)  # <- here
        kit.train_step(net, optimizer)


main()
