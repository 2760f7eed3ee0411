"""What the programs of this collection share: a group of ranks, a small model, and what was drawn for this run.

The programs look like training scripts. Nothing of this file is on the stack while a fault lasts, so a tool sees the
program's own lines. FAULT_SEED decides everything that is drawn; all ranks draw the same.
"""
import datetime
import os
import random
import socket
import time
from pathlib import Path


class Job:
    """One rank of a job. `bad` is the rank that has the fault, `at` the step at which it begins."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.folder = Path(os.environ.get("FAULT_FOLDER", "."))
        self.random = random.Random(int(os.environ.get("FAULT_SEED", 0)))
        self.bad = self.random.randrange(self.world)
        if os.environ.get("FAULT_RANK"):
            self.bad = int(os.environ["FAULT_RANK"])
        self.at = self.random.randrange(6, 14)
        self.pace = self.random.uniform(0.005, 0.02)
        self.probed = float(os.environ.get("FAULT_WAIT", 0))

    def begins(self):
        """Marks the moment at which the fault begins, for faults/run."""
        (self.folder / "begins").touch()

    def mine(self):
        return self.rank == self.bad

    def now(self, step):
        """Whether the fault begins here: on the drawn rank at the drawn step."""
        if self.mine() and step == self.at:
            self.begins()
            return True
        return False

    def since(self, step):
        """As now(), from that step on."""
        if step == self.at:
            self.begins()
        return self.mine() and step >= self.at

    def steps(self):
        """Numbers of steps for ever, `pace` seconds each, which stand for the work. With FAULT_WAIT=1 the third step
        waits for a file that faults/run writes when a tool has been attached to all ranks."""
        step = 0
        while True:
            if step == 3:
                (self.folder / f"ready.{self.rank}").touch()
                while self.probed and not (self.folder / "go").exists():
                    time.sleep(0.05)
            time.sleep(self.pace)
            yield step
            step += 1

    def name(self, *names):
        return self.random.choice(names)

    def silent_server(self):
        """The address of a server of this process that accepts and never answers."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        return self.listener.getsockname()


def start(group=True):
    """Joins the group of ranks, where there is more than one."""
    job = Job()
    if group and job.world > 1:
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo", timeout=datetime.timedelta(hours=2))
    return job


def model(job, width=16):
    """A small model, in DDP where there are ranks, and its optimizer."""
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, width))
    if job.world > 1:
        net = torch.nn.parallel.DistributedDataParallel(net)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def train_step(net, optimizer, width=16, rows=8):
    """Forward, backward and update. It returns the loss."""
    import torch
    loss = net(torch.randn(rows, width)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
