"""What sampling allocations (probing.memory.sampling) costs: build/venv/bin/python bench/allocations.py

By calls: ns for an allocation of Python's and for a tensor, with the probe off and on in turns, in this process. End to end: the small transformer of
bench/torch_cost.py, switched in blocks of steps. Beside it tracemalloc, which traces every allocation.
"""
import os
import sys
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
from torch_cost import compare, probing, tell, transformer


class Sampling:
    def on(self):
        probing("config", "probing.memory.sampling=on")
        end = time.monotonic() + 20
        while "one in" not in probing("probes"):
            assert time.monotonic() < end
        time.sleep(1.1)  # until torch is found

    def off(self):
        probing("config", "probing.memory.sampling=off")
        time.sleep(0.1)


class Tracemalloc:
    def on(self):
        tracemalloc.start(1)

    def off(self):
        tracemalloc.stop()


def allocate(n):
    for _ in range(n):
        [None] * 40  # a list and its memory: two blocks, and their ends


def make_tensors(n, zero=torch.zeros(1)):
    for _ in range(n):
        zero + 1


def cost_of(switch, action, n, turns=5, rounds=20):
    """ns of a round with it off, and how many more with it on: of each the least of many short rounds, which is what others on the machine disturb least."""
    took = {}
    for _ in range(turns):
        for turn in ("off", "on"):
            getattr(switch, turn)()
            action(n)
            for _ in range(rounds):
                begun = time.perf_counter_ns()
                action(n)
                took[turn] = min(took.get(turn, 1e12), (time.perf_counter_ns() - begun) / n)
    switch.off()
    return took["off"], took["on"] - took["off"]


def main():
    torch.set_num_threads(1)
    for name, switch in (("sampling", Sampling()), ("tracemalloc", Tracemalloc())):
        for what, action in (("a list of 40 (2 blocks)", allocate), ("a tensor", make_tensors)):
            base, more = cost_of(switch, action, 5000)
            print(f"{name}, {what}: {more:+.0f} ns to {base:.0f}", flush=True)
    _, step = transformer()
    tell("transformer, sampling", *compare(Sampling(), step, pairs=int(os.environ.get("PAIRS", 30)), block=40))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
