"""One rank waits until a queue is worked off; the thread that should do it has died of an exception."""
TRUTH = {"kind": ["queue_empty", "left_loop"], "cause": None, "function": ["flush"], "not": ["loop", "deadlock", "mismatch"]}
NAMES = {"flush": ["flush", "drain", "finish_writes"], "write_all": ["write_all", "consume", "save_rows"]}
import queue
import threading
import kit


def write_all(rows):
    while True:
        row = rows.get()
        if row is None:
            raise ValueError("no row")
        rows.task_done()


def flush(rows):
    rows.join()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    rows = queue.Queue()
    threading.Thread(target=write_all, args=(rows,), name=job.name("writer", "sink"), daemon=True).start()
    for step in job.steps():
        rows.put(step)
        if job.now(step):
            rows.put(None)
            rows.put(step)
            flush(rows)
        kit.train_step(net, optimizer)


main()
