"""Calls return at once, and the ranks look again and again whether theirs has ended: one rank has not issued it."""
TRUTH = {"kind": "blocked_call", "cause": ["sleep", None], "function": ["fetch_shard"],
         "not": ["deadlock", "loop", "mismatch"]}
NAMES = {"fetch_shard": ["fetch_shard", "warm_up", "lay_out"]}
import time
import torch
import torch.distributed as dist
import kit


def fetch_shard(seconds):
    time.sleep(seconds)  # <- here


def main():
    job = kit.start()
    value = torch.ones(8)
    for step in job.steps():
        if job.now(step):
            fetch_shard(job.random.randrange(1000, 9000))
        work = dist.all_reduce(value, async_op=True)
        while not work.is_completed():
            time.sleep(0.01)


main()
