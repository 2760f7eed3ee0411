"""Two threads of one rank take two locks in opposite order."""
TRUTH = {"kind": "deadlock", "cause": ["locks", "lock", None], "function": ["save_state", "write_behind"],
         "not": ["loop"]}
NAMES = {"save_state": ["save_state", "snapshot"], "write_behind": ["write_behind", "flush_cache"]}
import threading
import time
import kit

cache_lock, file_lock = threading.Lock(), threading.Lock()


def write_behind(pause):
    with file_lock:
        time.sleep(pause)
        with cache_lock:  # <- here
            pass


def save_state(pause):
    with cache_lock:
        time.sleep(pause)
        with file_lock:  # <- here
            pass


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            pause = job.random.uniform(0.2, 0.5)
            threading.Thread(target=write_behind, args=(pause,), name=job.name("writer", "cache"), daemon=True).start()
            save_state(pause)
        kit.train_step(net, optimizer)


main()
