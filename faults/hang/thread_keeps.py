"""One rank raised. Its process stands because a thread that is no daemon runs on, so nobody notices that it failed."""
TRUTH = {"kind": "left_loop", "cause": ["thread", "atexit", "exception", "main_ended"],
         "function": ["keep_uploading", "work"], "not": ["deadlock", "loop"]}
NAMES = {"keep_uploading": ["keep_uploading", "send_metrics", "mirror"], "work": ["work", "one_step"]}
import threading
import time
import kit


def keep_uploading():
    while True:
        time.sleep(0.5)  # <- here


def work(job, step, net, optimizer):
    if job.now(step):
        raise KeyError("label")  # <- here
    kit.train_step(net, optimizer)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    threading.Thread(target=keep_uploading, name=job.name("uploader", "metrics")).start()
    for step in job.steps():
        work(job, step, net, optimizer)


main()
