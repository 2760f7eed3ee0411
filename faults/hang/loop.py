"""One rank is in a Python loop whose condition never becomes false."""
TRUTH = {"kind": "loop", "cause": "python", "function": "search", "not": ["deadlock", "blocked_call"]}
NAMES = {"search": ["search", "find_split", "balance"]}
SETTLE = 12
import kit


def search(low, high):
    while low < high:  # <- here
        middle = (low + high) // 2  # <- here
        if middle * middle > 2:  # <- here
            high = middle + 1  # <- here
        else:
            low = middle  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            search(0, job.random.randrange(100, 1000))
        kit.train_step(net, optimizer)


main()
