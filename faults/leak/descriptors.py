"""One rank opens a file or a socket in every step and keeps it."""
TRUTH = {"kind": "leak", "cause": "descriptors", "function": None, "not": ["nan", "slow_rank"]}
NAMES = {"open_shard": ["open_shard", "connect", "open_part"]}
PROBE = "torch"
import os
import socket
import kit


def open_shard(kind):
    if kind == "file":
        return open(os.devnull)  # <- here
    return socket.socket()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    kind, kept = job.random.choice(["file", "socket"]), []
    for step in job.steps():
        if job.since(step):
            kept.append(open_shard(kind))
        kit.train_step(net, optimizer)


main()
