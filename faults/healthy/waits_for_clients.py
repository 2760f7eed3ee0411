"""Tensor-parallel inference without a request: rank 0 waits for clients, the others for what it will broadcast."""
TRUTH = {"kind": None}
SETTLE = 8
import socket
import torch
import torch.distributed as dist
import kit


def answer(listener, tokens):
    client, _ = listener.accept()
    with client:
        tokens.fill_(len(client.recv(64)))
    return tokens


def main():
    job = kit.start()
    tokens = torch.zeros(4)
    listener = socket.create_server(("127.0.0.1", 0))
    dist.barrier()
    if job.rank == 0:
        job.begins()
    while True:
        if job.rank == 0:
            answer(listener, tokens)
        dist.broadcast(tokens, src=0)


main()
