"""All ranks but one wait for a key of the store; the rank that should set it sleeps."""
TRUTH = {"kind": ["store_key", "blocked_call"], "cause": ["store_key", "sleep"], "function": "prepare",
         "not": ["deadlock", "loop"]}
NAMES = {"prepare": ["prepare", "download_once", "unpack"], "rows-ready": ["rows-ready", "cache/done", "v1/tokens"]}
import time
import torch.distributed as dist
import kit


def prepare(seconds):
    time.sleep(seconds)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    store = dist.distributed_c10d._get_default_store()
    for step in job.steps():
        if step == job.at:
            if job.now(step):
                prepare(job.random.randrange(2000, 4000))
                store.set("rows-ready", "1")
            store.get("rows-ready")
        kit.train_step(net, optimizer)


main()
