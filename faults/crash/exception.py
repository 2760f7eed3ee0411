"""One rank raises; the others die of the lost connection."""
TRUTH = {"kind": "rank_gone", "cause": "exception", "function": ["parse", "main"], "not": ["oom", "deadlock"]}
NAMES = {"parse": ["parse", "decode_row", "convert"]}
PROBE = "agent"
import kit


def parse(row):
    return int(row)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        parse("no number" if job.now(step) else "17")
        kit.train_step(net, optimizer)


main()
