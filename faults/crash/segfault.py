"""One rank reads at address zero in C."""
TRUTH = {"kind": "rank_gone", "cause": ["signal", "killed"], "function": ["peek", "main"], "not": ["oom", "deadlock"]}
NAMES = {"peek": ["peek", "read_header", "native_op"]}
PROBE = "catch"
import ctypes
import kit


def peek(address):
    return ctypes.string_at(address, 16)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            peek(8 * job.random.randrange(1, 100))
        kit.train_step(net, optimizer)


main()
