"""One rank caches by a key that is new in every step."""
TRUTH = {"kind": "leak", "cause": ["cache", "objects", "heap"], "function": ["features", "main"],
         "not": ["nan", "slow_rank"]}
NAMES = {"features": ["features", "encode", "parse_record"]}
PROBE = "memory"
import functools
import kit


@functools.lru_cache(maxsize=None)
def features(key, count):
    return [str(key + n) for n in range(count)]  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    count = job.random.randrange(4000, 9000)
    for step in job.steps():
        if job.since(step):
            features(step, count)
        kit.train_step(net, optimizer)


main()
