"""A signal arrives while the main thread holds a lock, and the handler takes the same lock."""
TRUTH = {"kind": ["deadlock", "lock_held"], "cause": ["signal", "lock", "self", None],
         "function": ["on_preempt", "log_metrics"], "not": ["loop"]}
NAMES = {"on_preempt": ["on_preempt", "on_usr1", "save_soon"], "log_metrics": ["log_metrics", "append_row"]}
import os
import signal
import threading
import kit

lock = threading.Lock()


def on_preempt(number, frame):
    with lock:  # <- here
        print("preempted")


def log_metrics():
    with lock:
        os.kill(os.getpid(), signal.SIGUSR1)  # <- here
        print("a row")


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    signal.signal(signal.SIGUSR1, on_preempt)
    for step in job.steps():
        if job.now(step):
            log_metrics()
        kit.train_step(net, optimizer)


main()
