"""A child process was killed while it held a lock that the rank shares with it."""
TRUTH = {"kind": ["lock_held", "queue_empty", "worker_gone"], "cause": None, "function": ["write_index"],
         "not": ["loop", "mismatch"]}
NAMES = {"write_index": ["write_index", "append_rows", "update_table"], "shared": ["shared", "guard", "table_lock"]}
import multiprocessing
import os
import signal
import time
import kit


def hold(shared, holds):
    shared.acquire()
    holds.set()
    time.sleep(10000)


def write_index(shared):
    with shared:  # <- here
        pass


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    shared, holds = multiprocessing.Lock(), multiprocessing.Event()
    for step in job.steps():
        if job.now(step):
            child = multiprocessing.Process(target=hold, args=(shared, holds), name=job.name("indexer", "writer"))
            child.start()
            holds.wait()
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            write_index(shared)
        kit.train_step(net, optimizer)


main()
