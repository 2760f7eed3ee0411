"""As lock_kept, with acquire() and without `with`; the holder waits for a socket."""
TRUTH = {"kind": ["lock_held", "blocked_call"], "cause": ["lock", "socket", None], "function": "refresh",
         "not": ["loop", "deadlock"]}
NAMES = {"refresh": ["refresh", "renew", "reload_table"]}
import socket
import threading
import time
import kit


class Table:
    def __init__(self, server):
        self.guard, self.server = threading.Lock(), server

    def refresh(self):
        self.guard.acquire()
        try:
            with socket.create_connection(self.server) as peer:
                peer.recv(1)  # <- here
        finally:
            self.guard.release()

    def get(self):
        self.guard.acquire()
        self.guard.release()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    table = Table(job.silent_server())
    for step in job.steps():
        if job.now(step):
            threading.Thread(target=table.refresh, name=job.name("renewer", "sync"), daemon=True).start()
            time.sleep(0.3)
            table.get()
        kit.train_step(net, optimizer)


main()
