"""A second thread of one rank computes in Python, and the stepping thread waits for the GIL again and again."""
TRUTH = {"kind": "slow_rank", "cause": "gil", "function": "rank_documents", "not": ["leak", "nan", "loop"]}
NAMES = {"rank_documents": ["rank_documents", "score_all", "build_index"]}
PROBE = "torch"
import threading
import kit


def rank_documents():
    total = 0
    while True:  # <- here
        total = (total * 31 + 7) % 1000003  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            threading.Thread(target=rank_documents, name=job.name("indexer", "scorer"), daemon=True).start()
        kit.train_step(net, optimizer)


main()
