"""One rank makes a block of shared memory in every step and does not unlink it."""
TRUTH = {"kind": "leak", "cause": "shared_memory", "function": None, "not": ["nan", "slow_rank"]}
NAMES = {"share": ["share", "hand_over", "publish_batch"]}
PROBE = "torch"
import mmap
import kit


def share(size):
    block = mmap.mmap(-1, size)  # <- here
    block.write(b"x" * size)  # <- here
    return block


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    size, kept = job.random.randrange(50, 90) * 4096, []
    for step in job.steps():
        if job.since(step):
            kept.append(share(size))
        kit.train_step(net, optimizer)


main()
