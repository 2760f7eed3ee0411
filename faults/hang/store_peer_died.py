"""The rank that should set a key of the store was killed; the others wait for the key."""
TRUTH = {"kind": ["rank_gone", "store_key"], "cause": ["killed", "signal", None], "function": None,
         "not": ["deadlock", "loop", "oom"]}
import os
import signal
import torch.distributed as dist
import kit


def main():
    job = kit.start()
    if job.bad == 0:
        job.bad = 1
    store = dist.distributed_c10d._get_default_store()
    for step in job.steps():
        if job.now(step):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == job.at:
            store.get(job.name("shards", "vocab", "plan"))


main()
