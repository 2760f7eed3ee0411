"""A pipeline of four stages: one stage waits for a file server, the stages after it wait for its output."""
TRUTH = {"kind": "blocked_call", "cause": "socket", "function": "look_up", "not": ["deadlock", "loop"]}
NAMES = {"look_up": ["look_up", "read_embedding", "load_expert"]}
import socket
import torch
import torch.distributed as dist
import kit


def look_up(address):
    with socket.create_connection(address) as peer:
        return peer.recv(64)  # <- here


def stage(job, hidden, step, server):
    if job.rank > 0:
        dist.recv(hidden, src=job.rank - 1)
    if job.now(step):
        look_up(server)
    hidden = torch.tanh(hidden + 1)
    if job.rank < job.world - 1:
        dist.send(hidden, dst=job.rank + 1)


def main():
    job = kit.start()
    server = job.silent_server()
    for step in job.steps():
        stage(job, torch.zeros(64), step, server)


main()
