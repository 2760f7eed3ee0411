"""A job that a person holds with `probing pause` on one rank."""
TRUTH = {"kind": None, "held": True}
PROBE = "agent"
DO = ["-t", "{pid}", "pause"]
import kit


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if step == job.at:
            job.begins()
        kit.train_step(net, optimizer)


main()
