"""One rank reads the output of a child that prints nothing and does not end."""
TRUTH = {"kind": "blocked_call", "cause": ["pipe", "child"], "function": "disk_usage", "not": ["deadlock", "loop"]}
NAMES = {"disk_usage": ["disk_usage", "read_version", "query_node"]}
import subprocess
import kit


def disk_usage(seconds):
    with subprocess.Popen(["sleep", str(seconds)], stdout=subprocess.PIPE) as child:
        return child.stdout.read()  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            disk_usage(job.random.randrange(2000, 4000))
        kit.train_step(net, optimizer)


main()
