"""One rank polls a flag in a Python loop with short sleeps; nobody ever sets the flag."""
TRUTH = {"kind": ["loop", "blocked_call"], "cause": ["python", "sleep", "polling"], "function": ["wait_until_done",
         "done"],
         "not": ["deadlock"]}
NAMES = {"wait_until_done": ["wait_until_done", "until_ready", "poll_writer"]}
SETTLE = 12
import time
import kit


class Writer:
    finished = False


def done(writer):
    return writer.finished  # <- here


def wait_until_done(writer, pause):
    while not done(writer):  # <- here
        time.sleep(pause)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            wait_until_done(Writer(), job.random.uniform(0.01, 0.2))
        kit.train_step(net, optimizer)


main()
