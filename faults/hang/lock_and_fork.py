"""A child is forked while another thread holds a lock. In the child nobody can release it, and the parent waits."""
TRUTH = {"kind": ["deadlock", "blocked_call", "lock_held"], "cause": ["fork", "child", "lock", None],
         "function": ["in_child", "convert_apart"], "not": ["loop"]}
NAMES = {"in_child": ["in_child", "convert", "encode"], "convert_apart": ["convert_apart", "run_apart", "spawn_job"]}
import os
import threading
import time
import kit

lock = threading.Lock()


def keep_writing(pause):
    while True:
        with lock:
            time.sleep(pause)


def in_child():
    with lock:  # <- here
        os._exit(0)


def convert_apart():
    child = os.fork()
    if child == 0:
        in_child()
    os.waitpid(child, 0)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    threading.Thread(target=keep_writing, args=(0.2,), name=job.name("writer", "log"), daemon=True).start()
    for step in job.steps():
        if job.now(step):
            while not lock.locked():
                time.sleep(0.01)
            convert_apart()
        kit.train_step(net, optimizer)


main()
