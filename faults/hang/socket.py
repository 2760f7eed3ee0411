"""One rank reads from a server that accepted the connection and never answers."""
TRUTH = {"kind": "blocked_call", "cause": "socket", "function": "read_metadata", "not": ["deadlock", "loop"]}
NAMES = {"read_metadata": ["read_metadata", "ask_registry", "pull_batch"]}
import socket
import kit


def read_metadata(address):
    with socket.create_connection(address) as peer:
        peer.sendall(b"GET /metadata\n")
        return peer.recv(4096)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    server = job.silent_server()
    for step in job.steps():
        if job.now(step):
            read_metadata(server)
        kit.train_step(net, optimizer)


main()
