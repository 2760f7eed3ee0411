"""One rank waits at a barrier of its threads; one thread has ended early, so that it never fills."""
TRUTH = {"kind": "queue_empty", "cause": None, "function": ["meet"], "not": ["loop", "deadlock", "mismatch"]}
NAMES = {"meet": ["meet", "sync_threads", "line_up"]}
import threading
import kit


def meet(barrier):
    barrier.wait()  # <- here


def work(barrier, rounds):
    for _ in range(rounds):
        barrier.wait()


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    barrier = threading.Barrier(3)
    for rounds in (job.at, 10**9) if job.mine() else ():
        threading.Thread(target=work, args=(barrier, rounds), daemon=True).start()
    for step in job.steps():
        if job.now(step):
            meet(barrier)
        elif job.mine():
            barrier.wait()
        kit.train_step(net, optimizer)


main()
