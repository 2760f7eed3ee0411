"""One rank waits for the result of a pool of processes, one of which is stopped."""
TRUTH = {"kind": ["worker_stopped", "stopped"], "cause": None, "function": None,
         "not": ["loop", "deadlock", "mismatch"]}
import concurrent.futures
import os
import signal
import time
import kit


def tokenize(n):
    time.sleep(0.01)
    return os.getpid()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    pool = concurrent.futures.ProcessPoolExecutor(1) if job.mine() else None
    for step in job.steps():
        if job.mine():
            child = pool.submit(tokenize, step).result()
        if job.now(step):
            os.kill(child, signal.SIGSTOP)
            pool.submit(tokenize, step).result()
        kit.train_step(net, optimizer)


main()
