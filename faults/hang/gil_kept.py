"""One rank calls a C function that blocks and does not give the GIL away."""
TRUTH = {"kind": "gil_held", "cause": ["native", "sleep", None], "function": "read_device", "not": ["deadlock"]}
NAMES = {"read_device": ["read_device", "query_driver", "get_counters"]}
import ctypes
import threading
import time
import kit


def read_device(seconds):
    ctypes.PyDLL(None).sleep(seconds)  # <- here


def heartbeat():
    while True:
        time.sleep(0.1)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    threading.Thread(target=heartbeat, name="heartbeat", daemon=True).start()
    for step in job.steps():
        if job.now(step):
            read_device(job.random.randrange(2000, 4000))
        kit.train_step(net, optimizer)


main()
