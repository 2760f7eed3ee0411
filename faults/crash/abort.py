"""One rank ends itself by abort(), as a failed check in a C++ library does."""
TRUTH = {"kind": "rank_gone", "cause": ["signal", "killed"], "function": ["check_shape", "main"],
         "not": ["oom", "deadlock"]}
NAMES = {"check_shape": ["check_shape", "verify", "run_kernel"]}
PROBE = "catch"
import os
import kit


def check_shape():
    os.abort()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            check_shape()
        kit.train_step(net, optimizer)


main()
