"""The process that fills a queue was killed; the rank waits for the next entry."""
TRUTH = {"kind": ["queue_empty", "worker_gone"], "cause": ["mp_queue", "queue", "killed", None],
         "function": "next_batch", "not": ["loop", "deadlock"]}
NAMES = {"next_batch": ["next_batch", "take", "receive"]}
import multiprocessing
import os
import signal
import time
import kit


def produce(batches):
    while True:
        batches.put([1, 2, 3])
        time.sleep(0.005)


def next_batch(batches):
    return batches.get()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    if job.mine():
        batches = multiprocessing.Queue(4)
        producer = multiprocessing.Process(target=produce, args=(batches,), name=job.name("producer", "decoder"))
        producer.start()
    for step in job.steps():
        if job.now(step):
            os.kill(producer.pid, signal.SIGKILL)
        if job.mine():
            next_batch(batches)
        kit.train_step(net, optimizer)


main()
