"""A worker of a pool was killed in the middle of its task; the rank waits for the result that nobody computes."""
TRUTH = {"kind": ["worker_gone", "future_unset", "queue_empty"], "cause": ["killed", "pool", "condition",
         "event", None],
         "function": "tokenize_all", "not": ["loop", "deadlock"]}
NAMES = {"tokenize_all": ["tokenize_all", "hash_all", "resize_all"]}
import multiprocessing
import os
import signal
import kit


def work(n):
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def tokenize_all(pool, count):
    return pool.map(work, range(count), chunksize=1)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            tokenize_all(multiprocessing.Pool(2), job.random.randrange(8, 30))
        kit.train_step(net, optimizer)


main()
