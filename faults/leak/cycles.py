"""One rank makes cycles of objects while the collector is off."""
TRUTH = {"kind": "leak", "cause": ["cycles", "objects", "heap"], "function": ["link", "main"],
         "not": ["nan", "slow_rank"]}
NAMES = {"link": ["link", "add_node", "make_tree"]}
PROBE = "memory"
import gc
import kit


class Node:
    pass


def link(size):
    one, two = Node(), Node()
    one.other, two.other = two, one  # <- here
    one.data = bytearray(size)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    gc.disable()
    size = job.random.randrange(200_000, 400_000)
    for step in job.steps():
        if job.since(step):
            link(size)
        kit.train_step(net, optimizer)


main()
