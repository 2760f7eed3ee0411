"""One rank ends by exit with a status that is not zero, from a check of its own."""
TRUTH = {"kind": "rank_gone", "cause": "exit", "function": ["stop_if_full", "main"], "not": ["oom", "deadlock"]}
NAMES = {"stop_if_full": ["stop_if_full", "check_quota", "guard"]}
PROBE = "agent"
import sys
import kit


def stop_if_full(status):
    sys.exit(status)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            stop_if_full(job.random.randrange(2, 90))
        kit.train_step(net, optimizer)


main()
