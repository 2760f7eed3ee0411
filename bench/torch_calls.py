"""What the torch probe costs a module's call: 100 empty modules inside another, switched on and off in blocks, in one process.

    build/venv/bin/python bench/torch_calls.py
"""
import os
import statistics
import subprocess
import time
from pathlib import Path

import torch

PROGRAM = Path(__file__).resolve().parent.parent / "build/release/bin/probing"
CALLS, INSIDE, BLOCKS = 200, 100, 9


class Empty(torch.nn.Module):
    def forward(self, x):
        return x


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = torch.nn.ModuleList(Empty() for _ in range(INSIDE))

    def forward(self, x):
        for module in self.inside:
            x = module(x)
        return x


def block(module):
    begun = time.perf_counter_ns()
    for _ in range(CALLS):
        module(1)
    return (time.perf_counter_ns() - begun) / CALLS / (INSIDE + 1)


def switch(word):
    subprocess.run([PROGRAM, "-t", str(os.getpid()), "probes", word, "torch", *(["budget=off"] if word == "start" else [])], check=True, stdout=subprocess.DEVNULL)
    time.sleep(0.6)  # until its thread had the GIL


def main():
    module, found = Around(), {"stop": [], "start": []}
    switch("start")
    for _ in range(BLOCKS):
        for word, times in found.items():
            switch(word)
            block(module)
            times.append(min(block(module) for _ in range(3)))
    off, on = (statistics.median(found[word]) for word in ("stop", "start"))
    print("an empty module, every step recorded: %.0f ns off, %.0f ns on: %+.0f ns a call; 41 calls of a step of 9.5 ms: %.3f%%" % (
        off, on, on - off, (on - off) * 41 / 9.5e6 * 100))


if __name__ == "__main__":
    main()
