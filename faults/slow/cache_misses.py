"""One rank computes a table again in every step, because a cache is smaller than what goes round in it."""
TRUTH = {"kind": "slow_rank", "cause": ["python", "cache_miss", "host"], "function": "rope_table",
         "not": ["leak", "nan", "loop"]}
NAMES = {"rope_table": ["rope_table", "mask_for", "positions"]}
PROBE = "torch"
import functools
import kit


@functools.lru_cache(maxsize=4)
def rope_table(length):
    return [n * 0.5 % 7 for n in range(length)]  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    lengths = [job.random.randrange(200_000, 400_000) for _ in range(5 if job.mine() else 3)]
    for step in job.steps():
        if step == job.at:
            job.begins()
        rope_table(lengths[step % len(lengths)])
        kit.train_step(net, optimizer)


main()
