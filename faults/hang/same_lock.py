"""One rank takes a lock that it already holds: the method that it calls under the lock takes the lock again."""
TRUTH = {"kind": ["deadlock", "lock_held"], "cause": ["lock", "self", None], "function": ["size", "put"],
         "not": ["loop"]}
NAMES = {"size": ["size", "count", "used"], "put": ["put", "store", "insert"]}
import threading
import kit


class Cache:
    def __init__(self):
        self.lock, self.rows = threading.Lock(), {}

    def size(self):
        with self.lock:  # <- here
            return len(self.rows)

    def put(self, key, row):
        with self.lock:
            self.rows[key] = row
            return self.size()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    cache = Cache()
    for step in job.steps():
        if job.now(step):
            cache.put(step, "row")
        kit.train_step(net, optimizer)


main()
