"""One rank waits for a future of a request whose answer was dropped: nobody will set it."""
TRUTH = {"kind": "future_unset", "cause": ["future", "concurrent", "condition", None], "function": "await_reply",
         "not": ["loop", "deadlock"]}
NAMES = {"await_reply": ["await_reply", "result_of", "collect"]}
import concurrent.futures
import kit


def await_reply(pending):
    return pending.result()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            await_reply(concurrent.futures.Future())
        kit.train_step(net, optimizer)


main()
