"""A data loader with workers that have nothing to do, because their batches are ready."""
TRUTH = {"kind": None}
PROBE = "torch"
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
    batches = iter(torch.utils.data.DataLoader(Rows(), 4, num_workers=1))
    for step in job.steps():
        if step == job.at:
            job.begins()
        next(batches)
        kit.train_step(net, optimizer)


main()
