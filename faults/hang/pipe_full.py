"""One rank writes into a pipe that nobody reads: the pipe is full, and the write waits for ever."""
TRUTH = {"kind": "blocked_call", "cause": "pipe", "function": "write_metrics", "not": ["deadlock", "loop"]}
NAMES = {"write_metrics": ["write_metrics", "report", "emit_log"]}
import os
import kit


def write_metrics(pipe, line):
    while True:
        os.write(pipe, line)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    reader, writer = os.pipe()
    for step in job.steps():
        if job.now(step):
            write_metrics(writer, b"loss\n" * job.random.randrange(10, 400))
        kit.train_step(net, optimizer)


main()
