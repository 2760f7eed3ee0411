"""Four ranks that train and have nothing wrong."""
TRUTH = {"kind": None}
PROBE = "torch"
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if step == job.at:
            job.begins()
        kit.train_step(net, optimizer)


main()
