"""One rank opens a FIFO for reading that no process opens for writing."""
TRUTH = {"kind": "blocked_call", "cause": "fifo", "function": "open_commands", "not": ["deadlock", "loop"]}
NAMES = {"open_commands": ["open_commands", "read_control", "load_overrides"]}
import os
import kit


def open_commands(path):
    with open(path) as commands:  # <- here
        return commands.read()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            path = job.folder / job.name("control", "commands", "overrides.pipe")
            os.mkfifo(path)
            open_commands(path)
        kit.train_step(net, optimizer)


main()
