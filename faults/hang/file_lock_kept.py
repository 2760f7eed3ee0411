"""A rank waits for the lock of a file that another rank holds while it sleeps."""
TRUTH = {"kind": ["lock_held", "blocked_call"], "cause": ["file_lock", "sleep", None], "function": "convert_once",
         "not": ["loop", "deadlock"]}
NAMES = {"convert_once": ["convert_once", "build_cache", "tokenize_all"]}
import fcntl
import time
import kit


def convert_once(path, mine, seconds):
    with open(path, "w") as lock:
        if not mine:
            time.sleep(0.3)
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(seconds)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if step == job.at:
            if job.mine():
                job.begins()
            convert_once(str(job.folder / "cache.lock"), job.mine(), job.random.randrange(2000, 4000))
        kit.train_step(net, optimizer)


main()
