"""Other processes take the CPU that one rank runs on."""
TRUTH = {"kind": "slow_rank", "cause": ["cpu_neighbour", "cpu"], "function": None, "not": ["leak", "nan", "loop"]}
PROBE = "torch"
import os
import kit


def burn():
    while True:
        pass


def main():
    job = kit.start()
    net, optimizer = kit.model(job, 256)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:1] if job.mine() else cpus[1:] or cpus)
    for step in job.steps():
        if job.now(step):
            for _ in range(job.random.randrange(2, 4)):
                if os.fork() == 0:
                    burn()
        kit.train_step(net, optimizer, 256, 64)


main()
