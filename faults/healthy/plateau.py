"""Memory grows until a replay buffer is full, and then stays."""
TRUTH = {"kind": None}
PROBE = "torch"
import collections
import torch
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    replay = collections.deque(maxlen=job.random.randrange(150, 250))
    for step in job.steps():
        if step == job.at:
            job.begins()
        replay.append(torch.randn(50, 1000))
        kit.train_step(net, optimizer)


main()
