"""One rank raises, catches everything, and waits for a person or a restart in its handler."""
TRUTH = {"kind": ["left_loop", "blocked_call"], "cause": ["swallowed", "sleep"], "function": "hold",
         "not": ["deadlock", "loop"]}
NAMES = {"hold": ["hold", "keep_for_debugging", "park"]}
import time
import kit


def hold(error, seconds):
    print("kept for debugging:", error)
    time.sleep(seconds)  # <- here


def work(job, step, net, optimizer):
    if job.now(step):
        raise ValueError("bad shape of batch")
    kit.train_step(net, optimizer)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    try:
        for step in job.steps():
            work(job, step, net, optimizer)
    except Exception as error:
        hold(error, job.random.randrange(2000, 4000))


main()
