"""The checks of gpu_doing.sh: what gpu_metrics says that the GPU is doing, in states that are known."""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks import check, probing, rows, verdict

STATES = {
    "computing": "x = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
    "while True:\n  for _ in range(20): y = x @ x\n  torch.cuda.synchronize()",
    "copying": "x = torch.empty(1 << 28, pin_memory=True); y = torch.empty(1 << 28, device='cuda')\n"
    "while True:\n  y.copy_(x, non_blocking=True); torch.cuda.synchronize()",
    "idle": "x = torch.randn(64, 64, device='cuda'); torch.cuda.synchronize(); time.sleep(1000)",
}
LOADER = ("x = torch.randn(4096, 4096, device='cuda')\nwhile True:\n  time.sleep(0.2)\n  y = x @ x\n"
          "  torch.cuda.synchronize()")


def seen(pid):
    probing(pid, "record", "--duration", "4")
    return [row["doing"] for row in rows(pid, "SELECT doing FROM gpu_metrics ORDER BY timestamp")][1:]


def alone(what, code, doing):
    job = subprocess.Popen([sys.executable, "-c", "import torch, time\n" + code])
    try:
        time.sleep(6)
        found = seen(job.pid)
        check(what, len(found) >= 2 and all(each == doing for each in found), found)
    finally:
        job.kill()
        job.wait()


def late_peer():
    """Three ranks wait in an all_reduce for the fourth."""
    folder, ranks = Path(tempfile.mkdtemp(prefix="doing-")), []
    os.mkfifo(folder / "fifo")
    for rank in range(4):
        env = dict(os.environ,
                   RANK=str(rank),
                   WORLD_SIZE="4",
                   LOCAL_RANK="0",
                   NCCL_HOSTID=f"host{rank}",
                   NCCL_SOCKET_IFNAME="lo",
                   NCCL_IB_DISABLE="1",
                   MASTER_ADDR="127.0.0.1",
                   MASTER_PORT="29799")
        ranks.append(
            subprocess.Popen(
                [sys.executable, Path(__file__).with_name("nccl_hang_job.py"), folder, "sleeps"],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL))
    try:
        end = time.time() + 60
        while time.time() < end and len(list(folder.glob("ready-*"))) < 4:
            time.sleep(0.1)
        time.sleep(2)
        found = seen(ranks[0].pid)
        check("all_reduce with a late peer", len(found) >= 2 and all(each == "waiting" for each in found), found)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    for state, program in STATES.items():
        alone(state, program, state)
    alone("waits for its data loader", LOADER, "idle")
    late_peer()
    sys.exit(verdict())
