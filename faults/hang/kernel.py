"""One rank is in the kernel's D state, where no signal reaches it, as with a file server that is down.

posix_spawn waits in that state until the child has started its program; the child waits at a FIFO without a writer."""
TRUTH = {"kind": "blocked_call", "cause": ["disk", "child", "other"], "function": "start_tool", "not": ["deadlock",
         "loop"]}
NAMES = {"start_tool": ["start_tool", "convert", "launch_helper"]}
import os
import kit


def start_tool(path):
    actions = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            path = str(job.folder / "input")
            os.mkfifo(path)
            start_tool(path)
        kit.train_step(net, optimizer)


main()
