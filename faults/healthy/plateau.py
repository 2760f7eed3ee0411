"""Memory grows until a replay buffer holds what it keeps, the last eight seconds, and then stays."""
TRUTH = {"kind": None}
PROBE = "memory"
SETTLE = 30
import collections
import time
import torch
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    replay, rows = collections.deque(), job.random.randrange(30, 60)
    for step in job.steps():
        if step == job.at:
            job.begins()
        replay.append((time.monotonic(), torch.randn(rows, 1000)))
        while replay[0][0] < time.monotonic() - 8:
            replay.popleft()
        kit.train_step(net, optimizer)


main()
