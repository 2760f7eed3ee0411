"""One rank's loader thread raised; the main thread then fails on what the thread did not deliver."""
TRUTH = {"kind": "rank_gone", "cause": "exception", "function": ["read_ahead", "main"], "not": ["oom", "deadlock"]}
NAMES = {"read_ahead": ["read_ahead", "fill", "stage_rows"]}
PROBE = "agent"
import queue
import threading
import kit


def read_ahead(rows, last):
    for n in range(10**6):
        rows.put({"x": n} if n < last else {}["x"])  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    rows = queue.Queue(4)
    threading.Thread(target=read_ahead, args=(rows, job.at if job.mine() else 10**6), daemon=True).start()
    for step in job.steps():
        if step == job.at:
            job.begins()
        rows.get(timeout=1)  # <- here
        kit.train_step(net, optimizer)


main()
