"""One rank was stopped by SIGSTOP, as a terminal or an operator does."""
TRUTH = {"kind": "stopped", "cause": ["stopped", "signal", None], "function": None, "not": ["deadlock", "loop"]}
import os
import signal
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            os.kill(os.getpid(), job.random.choice([signal.SIGSTOP, signal.SIGTSTP]))
        kit.train_step(net, optimizer)


main()
