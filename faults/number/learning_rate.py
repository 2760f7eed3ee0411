"""The learning rate is far too high from a step on: the loss of all ranks grows until it is not finite."""
TRUTH = {"kind": "nan", "cause": "learning_rate", "rank": "any", "function": None, "not": ["leak", "slow_rank", "data"]}
PROBE = "torch"
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if step == job.at:
            job.begins()
            optimizer.param_groups[0]["lr"] = job.random.choice([30.0, 100.0])
        kit.train_step(net, optimizer)


main()
