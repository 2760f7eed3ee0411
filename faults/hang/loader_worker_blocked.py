"""A worker of a rank's data loader waits for a server that does not answer; the rank waits for its batch."""
TRUTH = {"kind": "blocked_call", "cause": ["socket", "worker", None], "function": ["read_row", "__getitem__"],
         "not": ["deadlock", "loop"]}
NAMES = {"read_row": ["read_row", "fetch_image", "load_sample"]}
import socket
import torch
import kit


class Rows(torch.utils.data.Dataset):
    def __init__(self, last, server):
        self.last, self.server = last, server

    def __len__(self):
        return 10**6

    def read_row(self):
        with socket.create_connection(self.server) as peer:
            return peer.recv(64)  # <- here

    def __getitem__(self, n):
        if n > self.last:
            self.read_row()
        return torch.randn(16)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    last = 4 * job.at if job.mine() else 10**6
    batches = iter(torch.utils.data.DataLoader(Rows(last, job.silent_server()), 4,
                                               num_workers=job.random.choice([1, 2])))
    for step in job.steps():
        if step == job.at:
            job.begins()
        next(batches)
        kit.train_step(net, optimizer)


main()
