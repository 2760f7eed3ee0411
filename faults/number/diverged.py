"""The weights of one rank are not those of the others: it changed them outside of the optimizer."""
TRUTH = {"kind": "diverged", "cause": None, "function": None, "not": ["leak", "slow_rank", "nan"]}
PROBE = "torch"
import torch
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            with torch.no_grad():
                for weight in net.parameters():
                    weight.mul_(job.random.uniform(3, 5))
        kit.train_step(net, optimizer)


main()
