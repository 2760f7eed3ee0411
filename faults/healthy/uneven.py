"""Every rank is slow now and then, by chance: uneven, but fair."""
TRUTH = {"kind": None}
PROBE = "torch"
import random
import time
import kit


def load(chance):
    time.sleep(chance.expovariate(50))


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    chance = random.Random(job.rank + 100 * job.at)
    for step in job.steps():
        if step == job.at:
            job.begins()
        load(chance)
        kit.train_step(net, optimizer)


main()
