"""One rank waits on a condition; it was notified before the wait began, so nobody notifies again."""
TRUTH = {"kind": "queue_empty", "cause": ["condition", None], "function": "until_loaded", "not": ["loop", "deadlock"]}
NAMES = {"until_loaded": ["until_loaded", "wait_for_rows", "when_filled"]}
import threading
import time
import kit


def fill(loaded):
    with loaded:
        loaded.notify_all()


def until_loaded(loaded):
    with loaded:
        loaded.wait()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            loaded = threading.Condition()
            threading.Thread(target=fill, args=(loaded,)).start()
            time.sleep(0.3)
            until_loaded(loaded)
        kit.train_step(net, optimizer)


main()
