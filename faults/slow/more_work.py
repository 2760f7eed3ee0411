"""One rank gets larger batches than the others."""
TRUTH = {"kind": "slow_rank", "cause": "more_work", "function": None, "not": ["leak", "nan", "blocked_call"]}
PROBE = "torch"
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job, 256)
    rows = job.random.randrange(20, 40)
    for step in job.steps():
        if step == job.at:
            job.begins()
        kit.train_step(net, optimizer, 256, rows * 300 if job.mine() else rows)


main()
