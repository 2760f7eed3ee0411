"""All ranks are slow for one reason: they wait for each other at the lock of one file."""
TRUTH = {"kind": ["slow_job", "slow_rank"], "cause": ["file_lock", "storage", "python", "host"], "rank": "any",
         "function": "count_step",
         "not": ["leak", "nan"]}
NAMES = {"count_step": ["count_step", "bump", "update_progress"]}
PROBE = "torch"
SETTLE = 20
import fcntl
import time
import kit


def count_step(path, pause):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # <- here
        time.sleep(pause)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    pause = job.random.uniform(0.03, 0.06)
    for step in job.steps():
        if step >= job.at:
            job.begins()
            count_step(job.folder / "progress", pause)
        kit.train_step(net, optimizer)


main()
