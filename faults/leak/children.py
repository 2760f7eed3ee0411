"""One rank starts a child in every few steps, and the children never end."""
TRUTH = {"kind": "leak", "cause": "children", "function": None, "not": ["nan", "slow_rank"]}
NAMES = {"start_helper": ["start_helper", "run_hook", "notify"]}
PROBE = "torch"
import subprocess
import kit


def start_helper(seconds):
    return subprocess.Popen(["sleep", str(seconds)])  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    kept, every = [], job.random.randrange(8, 14)
    for step in job.steps():
        if job.since(step) and step % every == 0:
            kept.append(start_helper(job.random.randrange(2000, 4000)))
        kit.train_step(net, optimizer)


main()
