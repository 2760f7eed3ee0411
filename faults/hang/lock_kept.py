"""The main thread waits for a lock that a thread of its rank holds while it copies to a place that takes no more."""
TRUTH = {"kind": ["lock_held", "blocked_call"], "cause": ["lock", "pipe", None], "function": "copy_out",
         "not": ["loop", "deadlock"]}
NAMES = {"copy_out": ["copy_out", "drain", "push_rows"], "cache_lock": ["cache_lock", "state_lock", "guard"]}
import os
import threading
import time
import kit

cache_lock = threading.Lock()


def copy_out(pipe):
    with cache_lock:
        while True:
            os.write(pipe, b"row" * 1000)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    reader, writer = os.pipe()
    for step in job.steps():
        if job.now(step):
            threading.Thread(target=copy_out, args=(writer,),
                             name=job.name("ckpt-writer", "exporter"), daemon=True).start()
            time.sleep(0.3)
            with cache_lock:
                pass
        kit.train_step(net, optimizer)


main()
