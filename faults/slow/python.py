"""One rank spends its time in Python code of its own, between the steps."""
TRUTH = {"kind": "slow_rank", "cause": ["python", "host"], "function": "count_words", "not": ["leak", "nan", "loop"]}
NAMES = {"count_words": ["count_words", "log_histogram", "make_mask"]}
PROBE = "torch"
import kit


def count_words(rows):
    seen = {}
    for n in range(rows):  # <- here
        seen[n % 97] = seen.get(n % 97, 0) + 1  # <- here
    return seen


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    rows = job.random.randrange(300_000, 600_000)
    for step in job.steps():
        if job.since(step):
            count_words(rows)
        kit.train_step(net, optimizer)


main()
