"""One rank was killed by SIGKILL, which somebody sent; memory was not short. The others die of the lost connection."""
TRUTH = {"kind": "rank_gone", "cause": ["killed", "signal"], "function": None,
         "not": ["oom", "out of memory", "deadlock"]}
PROBE = "agent"
import os
import signal
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            os.kill(os.getpid(), signal.SIGKILL)
        kit.train_step(net, optimizer)


main()
