"""One rank waits a little in every step, as with a metrics server that answers slowly."""
TRUTH = {"kind": "slow_rank", "cause": ["python", "host", "sleep", "socket"], "function": "send_metrics",
         "not": ["leak", "nan", "blocked_call"]}
NAMES = {"send_metrics": ["send_metrics", "log_step", "push"]}
PROBE = "torch"
import time
import kit


def send_metrics(delay):
    time.sleep(delay)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    delay = job.random.uniform(0.05, 0.1)
    for step in job.steps():
        if job.since(step):
            send_metrics(delay)
        kit.train_step(net, optimizer)


main()
