"""One rank sleeps for an hour before it goes on, as a retry without a limit does. The others wait for it."""
TRUTH = {"kind": "blocked_call", "cause": "sleep", "function": "fetch_with_retry", "not": ["deadlock", "loop"]}
NAMES = {"fetch_with_retry": ["fetch_with_retry", "get_shard", "reconnect"]}
import time
import kit


def fetch_with_retry(delay):
    time.sleep(delay)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            fetch_with_retry(job.random.randrange(2000, 4000))
        kit.train_step(net, optimizer)


main()
