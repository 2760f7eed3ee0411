"""The thread that fills a queue died of an exception; the main thread waits for the next entry."""
TRUTH = {"kind": "queue_empty", "cause": ["queue", None], "function": "next_batch", "not": ["loop", "deadlock"]}
NAMES = {"next_batch": ["next_batch", "take", "receive"]}
import queue
import threading
import kit


def produce(batches, last):
    for n in range(last):
        batches.put(n)
    raise ValueError("bad record")


def next_batch(batches):
    return batches.get()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    batches = queue.Queue(8)
    threading.Thread(target=produce, args=(batches, job.at), name=job.name("prefetch", "reader"), daemon=True).start()
    for step in job.steps():
        if step == job.at:
            job.begins()
        if job.mine():
            next_batch(batches)
        kit.train_step(net, optimizer)


main()
