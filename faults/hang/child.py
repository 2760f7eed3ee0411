"""One rank waits for a command that does not end."""
TRUTH = {"kind": "blocked_call", "cause": "child", "function": "upload", "not": ["deadlock", "loop"]}
NAMES = {"upload": ["upload", "sync_bucket", "run_hook"]}
import subprocess
import kit


def upload(seconds):
    subprocess.run(["sleep", str(seconds)], check=True)  # <- here


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            upload(job.random.randrange(2000, 4000))
        kit.train_step(net, optimizer)


main()
