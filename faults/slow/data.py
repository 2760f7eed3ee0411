"""One rank reads its data slowly, in its main process."""
TRUTH = {"kind": "slow_rank", "cause": ["data", "storage", "python"], "function": ["read_row", "__getitem__"],
         "not": ["leak", "nan", "blocked_call"]}
NAMES = {"read_row": ["read_row", "decode", "open_image"]}
PROBE = "torch"
import time
import torch
import kit


class Rows(torch.utils.data.Dataset):
    def __init__(self, delay):
        self.delay = delay

    def __len__(self):
        return 10**6

    def read_row(self):
        time.sleep(self.delay)  # <- here

    def __getitem__(self, n):
        self.read_row()
        return torch.randn(16)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    delay = job.random.uniform(0.01, 0.03) if job.mine() else 0.0001
    batches = iter(torch.utils.data.DataLoader(Rows(delay), 4))
    for step in job.steps():
        if step == job.at:
            job.begins()
        next(batches)
        kit.train_step(net, optimizer)


main()
