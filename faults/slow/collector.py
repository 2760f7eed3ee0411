"""One rank has millions of objects and collects garbage in every step."""
TRUTH = {"kind": "slow_rank", "cause": "collector", "function": ["tidy", "main"], "not": ["leak", "nan", "loop"]}
NAMES = {"tidy": ["tidy", "clean_up", "free_memory"]}
PROBE = "torch"
import gc
import kit


def tidy():
    gc.collect()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    rows = [[n] for n in range(job.random.randrange(300_000, 600_000))] if job.mine() else []
    for step in job.steps():
        if job.since(step):
            tidy()
        kit.train_step(net, optimizer)
    return rows


main()
