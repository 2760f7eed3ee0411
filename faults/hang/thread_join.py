"""One rank waits for a thread of its own to end, which reads from a server that never answers."""
TRUTH = {"kind": "blocked_call", "cause": ["socket", "thread"], "function": ["fetch_all"], "not": ["loop", "deadlock", "mismatch"]}
NAMES = {"fetch_all": ["fetch_all", "pull_rows", "mirror_part"]}
import socket
import threading
import kit


def fetch_all(address):
    with socket.create_connection(address) as peer:
        peer.recv(4096)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    server = job.silent_server()
    for step in job.steps():
        if job.now(step):
            thread = threading.Thread(target=fetch_all, args=(server,), name=job.name("fetcher", "loader"))
            thread.start()
            thread.join()
        kit.train_step(net, optimizer)


main()
