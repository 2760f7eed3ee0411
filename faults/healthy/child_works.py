"""Rank 0 has a program of another kind pack its data, for many seconds; the others wait in a barrier."""
TRUTH = {"kind": None}
SETTLE = 8
import subprocess
import torch.distributed as dist
import kit


def pack(folder, quiet):
    subprocess.run(["sh", "-c", "n=0; while [ $n -lt 100000000 ]; do n=$((n + 1)); done"], cwd=folder, check=True,
                   capture_output=quiet)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        kit.train_step(net, optimizer)
        if step == job.at:
            if job.rank == 0:
                job.begins()
                pack(job.folder, job.random.random() < 0.5)
            dist.barrier()


main()
