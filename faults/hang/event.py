"""One rank waits for an event that its thread should have set; the thread died before."""
TRUTH = {"kind": "queue_empty", "cause": ["event", "condition", None], "function": "until_saved", "not": ["loop",
         "deadlock"]}
NAMES = {"until_saved": ["until_saved", "wait_for_save", "flush"]}
import threading
import kit


def save(done):
    with open("/nonexistent/checkpoint", "w"):
        done.set()


def until_saved(done):
    done.wait()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            done = threading.Event()
            threading.Thread(target=save, args=(done,), name=job.name("saver", "async-ckpt")).start()
            until_saved(done)
        kit.train_step(net, optimizer)


main()
