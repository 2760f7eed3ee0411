"""A path with an error never gives its place of a semaphore back; after some errors nobody gets one."""
TRUTH = {"kind": "queue_empty", "cause": ["semaphore", "condition", None], "function": "download", "not": ["loop",
         "deadlock"]}
NAMES = {"download": ["download", "fetch", "open_part"]}
import threading
import kit

places = threading.Semaphore(4)


def download(fails):
    places.acquire()  # <- here
    if fails:
        return None
    places.release()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            for _ in range(5):
                download(True)
        download(False)
        kit.train_step(net, optimizer)


main()
