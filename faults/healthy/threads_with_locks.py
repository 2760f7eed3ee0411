"""Threads that wait at queues, and one that holds a lock for its lifetime."""
TRUTH = {"kind": None}
import queue
import threading
import kit

owned = threading.Lock()


def own(rows):
    with owned:
        rows.get()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for target, words in [(own, (queue.Queue(),)), (queue.Queue().get, ())]:
        threading.Thread(target=target, args=words, daemon=True).start()
    for step in job.steps():
        if step == job.at:
            job.begins()
        kit.train_step(net, optimizer)


main()
