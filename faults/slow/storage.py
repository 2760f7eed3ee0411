"""One rank writes its log through to the disk in every step."""
TRUTH = {"kind": "slow_rank", "cause": "storage", "function": "append_log", "not": ["leak", "nan", "loop"]}
NAMES = {"append_log": ["append_log", "save_step", "write_trace"]}
PROBE = "torch"
import os
import tempfile
import kit


def append_log(file, rows):
    for _ in range(rows):
        os.write(file, b"x" * 4096)  # <- here
        os.fsync(file)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    with tempfile.TemporaryFile(dir=os.environ.get("FAULT_DISK", "/var/tmp")) as file:
        rows = job.random.randrange(20, 40)
        for step in job.steps():
            if job.since(step):
                file.seek(0)
                append_log(file.fileno(), rows)
            kit.train_step(net, optimizer)


main()
