"""More work than CPUs: every rank has threads that compute, on one CPU."""
TRUTH = {"kind": None}
PROBE = "torch"
import os
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job, 256)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    for step in job.steps():
        if step == job.at:
            job.begins()
        kit.train_step(net, optimizer, 256, 64)


main()
