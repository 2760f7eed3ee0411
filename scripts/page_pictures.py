"""Pictures of the page, for whoever writes about it (the repository keeps none): build/venv/bin/python scripts/page_pictures.py [FOLDER]

A training job of three ranks, one of which is slow now and then, is started, probed and recorded, and the page of a service of its own is
looked at in Chromium. Only the view is in a picture: what else runs on the machine is nobody's business.
"""
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
from jobs import PROGRAM  # noqa: E402
from serve_kit import service  # noqa: E402

JOB = """
import time
import torch
import torch.distributed as dist
from torch import nn

def fetch(rank, step):
    if rank == 2 and step % 17 == 0:
        time.sleep(0.4)
    return torch.randn(16, 64)

def train():
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10**9):
        x = fetch(rank, step)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)

torch.set_num_threads(1)
dist.init_process_group("gloo")
print("ready", flush=True)
train()
"""


def probing(*words):
    subprocess.run([PROGRAM, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def main():
    to = Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "build/pictures").resolve()
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["PROBING_DIR"] = folder
        script = Path(folder) / "train.py"
        script.write_text(JOB)
        env = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
        ranks = [stack.enter_context(subprocess.Popen([sys.executable, "train.py"], cwd=folder, env={**env, "RANK": str(n), "LOCAL_RANK": str(n)}, stdout=subprocess.PIPE, text=True)) for n in range(3)]
        for rank in ranks:
            stack.callback(rank.kill)
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            probing("-t", rank.pid, "inject")
            probing("-t", rank.pid, "config", "probing.torch.profiling=on")
        probing("-t", ranks[0].pid, "track", "loss@train", "lr")
        probing("-t", "train.py", "--all", "record", "--background")
        s = stack.enter_context(service(Path(folder) / "r"))
        time.sleep(40)
        every, one = "target=train.py&all=1", f"target={ranks[2].pid}"
        views = {"now": f"#/now?{every}", "activity": f"#/activity?{every}&threads=all", "flame": f"#/flame?{one}&from=record", "torch": f"#/torch?{every}", "step": f"#/torch?{one}",
                 "inspect": f"#/inspect?{every}&tab=ranks&name=rank", "memory": f"#/memory?{one}", "training": f"#/training?target={ranks[0].pid}"}
        steps = [step for name, at in views.items() for step in (["open", at], ["find", ".foot"], ["sleep", 4], ["picture", name, "main"])]
        for scheme in ("light", "dark"):
            plan = Path(folder) / "plan"
            plan.write_text(json.dumps({"chromium": "/usr/bin/chromium", "modules": str(TOP / "web/package.json"), "url": f"http://{s.address}/?token={s.token}", "steps": steps, "scheme": scheme,
                                        "pictures": folder, "width": 1180, "height": 620}))
            subprocess.run(["node", TOP / "tests/integration/page_kit.mjs", plan], check=True, stdout=subprocess.DEVNULL)
            for name in views:
                (Path(folder) / f"{name}.png").rename(to / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
