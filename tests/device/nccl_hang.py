"""The checks of nccl_hang.sh: hangs of NCCL over four ranks, said with no agent in any of them, and in which time."""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks import PROGRAM, check, verdict

HERE, RANKS = Path(__file__).resolve().parent, 4
# What must be said of all ranks at once, and of one that waits, asked alone (by NCCL's RAS).
SAID = {
    "sleeps": (["rank 2: has not issued all_reduce number 6 of group 0",
                "load_next_batch"], "has launched 5 AllReduce"),
    "skips": (["rank 1: has not issued all_reduce number 6 of group 0"], "has launched 5 AllReduce"),
    "other": (["rank 2 has issued broadcast instead of all_reduce"], "has launched 5 AllReduce"),
    "size": (["rank 3 has issued [[1000]] instead of [[2000]]"], None),
    # NCCL's RAS itself waits some seconds for a rank that was stopped just now.
    "stopped": (["rank 2: the process is stopped", "rank 2 has not issued it"], None),
    "killed": (["rank 0: group 0 stands at all_reduce number 6", "not asked, or ended: 2"], None),
    "storage": (["wait_for_storage"], None),
}


def start(case, folder, port):
    ranks = []
    os.mkfifo(folder / "fifo")
    for rank in range(RANKS):
        env = dict(os.environ,
                   RANK=str(rank),
                   WORLD_SIZE=str(RANKS),
                   LOCAL_RANK="0",
                   NCCL_HOSTID=f"host{rank}",
                   NCCL_SOCKET_IFNAME="lo",
                   NCCL_IB_DISABLE="1",
                   MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port),
                   OMP_NUM_THREADS="2")
        with open(folder / f"log-{rank}", "w") as log:
            ranks.append(
                subprocess.Popen([sys.executable, HERE / "nccl_hang_job.py", folder, case],
                                 env=env,
                                 stdout=log,
                                 stderr=subprocess.STDOUT))
    return ranks


def ask(*words):
    begun = time.time()
    done = subprocess.run([PROGRAM, *map(str, words)],
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT,
                          universal_newlines=True,
                          timeout=60)
    return done.stdout, time.time() - begun


def hang(case, port):
    folder = Path(tempfile.mkdtemp(prefix=f"hang-{case}-"))
    ranks = start(case, folder, port)
    try:
        end = time.time() + 60
        while time.time() < end and len(list(folder.glob("ready-*"))) < RANKS:
            time.sleep(0.1)
        time.sleep(2)
        both, alone = SAID[case]
        text, took = ask("-t", folder, "--all", "backtrace", "--merge")
        check(f"{case}, all ranks, {took:.2f} s", took < 2 and all(each in text for each in both), text[:1500])
        if alone:
            text, took = ask(ranks[0].pid, "backtrace")
            check(f"{case}, one rank, {took:.2f} s", took < 2 and alone in text, text[:700])
        names = [
            Path(f"/proc/{rank.pid}/task/{each}/comm").read_text() for rank in ranks if rank.poll() is None
            for each in os.listdir(f"/proc/{rank.pid}/task")
        ]
        check(f"{case}, no agent", not any(name.startswith("probing") for name in names), len(names))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    for number, each in enumerate(SAID):
        try:
            hang(each, 29700 + number)
        except Exception as error:
            check(each, False, repr(error)[:1000])
    sys.exit(verdict())
