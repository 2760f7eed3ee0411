"""Pictures of the page: build/venv/bin/python scripts/page_pictures.py [--docs] [FOLDER [VIEW...]]

A training job of three ranks, one of which is slow now and then, is started, probed and recorded, and the page of a service of its own is
looked at in Chromium: every view, light, dark and on a phone, in FOLDER (build/pictures). --docs: those that the documents show are written
to docs/pictures too, with a palette, so that they stay small. Other jobs of the machine are nobody's business: they are left out.
"""
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
from jobs import PROGRAM  # noqa: E402
from page_kit import CHROMIUM  # noqa: E402
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
    kept = []
    for step in range(10**9):
        x = fetch(rank, step)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(bytearray(100_000))
        time.sleep(0.1)

torch.set_num_threads(1)
dist.init_process_group("gloo")
print("ready", flush=True)
train()
"""
SECONDS = 30  # of training before the first picture
SIZES = {"light": (1180, 640), "dark": (1180, 640), "phone": (390, 780)}
IN_DOCS = ("activity-light", "flame-dark", "torch-light", "memory-dark")


def probing(*words):
    subprocess.run([PROGRAM, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


# --- a picture with a palette ---

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pixels(png):
    """Width, height and the rows, three or four bytes a pixel, of a PNG as Chromium writes it: 8 bits, not interlaced."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", png[at + 8:at + 18])
        elif kind == b"IDAT":
            data += png[at + 8:at + 8 + size]
        at += 12 + size
    assert bits == 8 and colour in (2, 6)
    each, rows, raw = 4 if colour == 6 else 3, [], zlib.decompress(data)
    above = bytearray(width * each)
    for y in range(height):
        begin = y * (width * each + 1)
        how, line = raw[begin], bytearray(raw[begin + 1:begin + 1 + width * each])
        for i in range(len(line) if how else 0):
            left, up, corner = line[i - each] if i >= each else 0, above[i], above[i - each] if i >= each else 0
            if how == 4:
                guess = left + up - corner
                a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
                add = left if a <= b and a <= c else up if b <= c else corner
            else:
                add = (0, left, up, (left + up) // 2)[how]
            line[i] = line[i] + add & 255
        rows.append(bytes(line))
        above = line
    return width, height, each, rows


def with_palette(png):
    """The same with 256 colours: the most frequent ones, others as the nearest of them."""
    width, height, each, rows = pixels(png)
    seen = Counter(row[i:i + 3] for row in rows for i in range(0, len(row), each))
    palette = [colour for colour, _ in seen.most_common(256)]
    index = {colour: i for i, colour in enumerate(palette)}
    for colour in seen:
        if colour not in index:
            index[colour] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(palette[i], colour)))
    data = b"".join(b"\0" + bytes(index[row[i:i + 3]] for i in range(0, len(row), each)) for row in rows)
    return (png[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) + chunk(b"PLTE", b"".join(palette)) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def main():
    words = [word for word in sys.argv[1:] if word != "--docs"]
    to = Path(words[0] if words else TOP / "build/pictures").resolve()
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["PROBING_DIR"] = folder
        script = Path(folder) / "pretrain.py"
        script.write_text(JOB)
        env = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
        ranks = [stack.enter_context(subprocess.Popen([sys.executable, "pretrain.py"], cwd=folder, env={**env, "RANK": str(n), "LOCAL_RANK": str(n)}, stdout=subprocess.PIPE, text=True)) for n in range(3)]
        for rank in ranks:
            stack.callback(rank.kill)
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            probing("-t", rank.pid, "inject")
            probing("-t", rank.pid, "config", "probing.torch.profiling=on")
        probing("-t", ranks[2].pid, "config", "probing.memory.sampling=on,interval=64KB")
        probing("-t", ranks[0].pid, "track", "loss@train", "lr")
        probing("-t", "pretrain.py", "--all", "record", "--background")
        s = stack.enter_context(service(Path(folder) / "r"))
        time.sleep(SECONDS)
        every, one = "target=pretrain.py&all=1", f"target={ranks[2].pid}"
        views = {"now": f"#/now?{every}", "activity": f"#/activity?{every}&threads=all", "flame": f"#/flame?{one}&from=record&idle=1", "torch": f"#/torch?{every}", "step": f"#/torch?{one}", "memory": f"#/memory?{one}",
                 "training": f"#/training?target={ranks[0].pid}", "sql": f"#/sql?{one}", "inspect": f"#/inspect?{every}&tab=ranks&name=rank", "frame": f"#/inspect?{one}&tab=frame", "prompt": f"#/prompt?{one}", "debug": f"#/debug?{one}",
                 "runs": "#/runs?find=pretrain.py", "settings": f"#/settings?{one}"}
        views = {name: at for name, at in views.items() if name in words[1:] or len(words) < 2}
        hide = "document.styleSheets[0].insertRule('.side h2, .side .job { display: none !important; }')"
        ready = {"activity": [["click", "[role=treeitem] .fn:text-is('train')"], ["find", ".source"]], "torch": [["find", "aside tr:has-text('allreduce')"], ["find", ".sq"]], "prompt": [["click", "textarea"], ["type", "step, loss"], ["press", "Control+Enter"]]}
        steps = [step for name, at in views.items() for step in (["open", at], ["find", ".foot"], *ready.get(name, []), ["sleep", 2], ["picture", name])]
        for kind, (width, height) in SIZES.items():
            plan = Path(folder) / "plan"
            plan.write_text(json.dumps({"chromium": CHROMIUM, "modules": str(TOP / "web/package.json"), "url": f"http://{s.address}/?token={s.token}", "steps": [["evaluate", hide], *steps],
                                        "scheme": "dark" if kind == "dark" else "light", "pictures": folder, "width": width, "height": height}))
            subprocess.run(["node", TOP / "tests/integration/page_kit.mjs", plan], check=True, stdout=subprocess.DEVNULL)
            for name in views:
                (Path(folder) / f"{name}.png").rename(to / f"{name}-{kind}.png")
    if "--docs" in sys.argv:
        (TOP / "docs/pictures").mkdir(exist_ok=True)
        for name in (name for name in IN_DOCS if (to / f"{name}.png").exists()):
            (TOP / f"docs/pictures/{name}.png").write_bytes(with_palette((to / f"{name}.png").read_bytes()))


if __name__ == "__main__":
    main()
