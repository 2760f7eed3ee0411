"""One rank starts a thread in every few steps, and the threads never end."""
TRUTH = {"kind": "leak", "cause": "threads", "function": ["start_writer", "drain", "main"],
         "not": ["nan", "slow_rank", "queue_empty"]}
NAMES = {"start_writer": ["start_writer", "log_async", "watch"], "drain": ["drain", "consume"]}
PROBE = "torch"
import queue
import threading
import kit


def drain(rows):
    rows.get()  # <- here


def start_writer(name):
    threading.Thread(target=drain, args=(queue.Queue(),), name=name, daemon=True).start()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    every = job.random.randrange(2, 5)
    for step in job.steps():
        if job.since(step) and step % every == 0:
            start_writer(job.name("async-log", "writer"))
        kit.train_step(net, optimizer)


main()
