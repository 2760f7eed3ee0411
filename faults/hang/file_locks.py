"""Two ranks lock two files in opposite order."""
TRUTH = {"kind": "deadlock", "cause": ["file_lock", "file_locks", None], "rank": "any", "function": "lock_both",
         "not": ["loop"]}
NAMES = {"lock_both": ["lock_both", "update_index", "merge_shards"]}
import fcntl
import time
import kit


def lock_both(first, second):
    with open(first, "w") as one, open(second, "w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        time.sleep(0.5)
        fcntl.flock(two, fcntl.LOCK_EX)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    paths = [str(job.folder / "index.lock"), str(job.folder / "shards.lock")]
    other = (job.bad + 1) % job.world
    for step in job.steps():
        if step == job.at and job.rank in (job.bad, other):
            job.begins()
            lock_both(*(paths if job.rank == other else reversed(paths)))
        kit.train_step(net, optimizer)


main()
