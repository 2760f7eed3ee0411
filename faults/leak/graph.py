"""One rank keeps every loss with its graph, as `history.append(loss)` does."""
TRUTH = {"kind": "leak", "cause": "graph", "function": ["log_loss", "main"], "not": ["nan", "slow_rank"]}
NAMES = {"log_loss": ["log_loss", "track_loss", "add_point"], "history": ["history", "losses", "curve"]}
PROBE = "memory"
import kit

history = []


def log_loss(loss):
    history.append(loss)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job, 128)
    rows = job.random.randrange(200, 400)
    for step in job.steps():
        loss = kit.train_step(net, optimizer, 128, rows)
        if job.since(step):
            log_loss(loss)


main()
