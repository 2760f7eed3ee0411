"""A job in plain Python that fails: after some seconds it meets a record that is too short.

    python examples/crash.py [--after SECONDS]

docs/crash.md says how to see the frame that failed after the process is gone.
"""
import argparse
import time


def parse(record):
    return record["tokens"][0], record["tokens"][-1]


def load(records):
    return [parse(record) for record in records]


def main(after):
    print("ready", flush=True)
    deadline = time.monotonic() + after
    shard = 0
    while True:
        records = [{"name": "shard-%d/%d" % (shard, i), "tokens": list(range(8))} for i in range(4)]
        if time.monotonic() > deadline:
            records[2]["tokens"] = []  # the record that nobody expected
        load(records)
        shard += 1
        time.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--after", type=float, default=10)
    main(parser.parse_args().after)
