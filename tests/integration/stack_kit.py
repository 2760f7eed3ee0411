"""What the tests of the stack reader share: the reader as a program of its own (targets/stack_driver.c), and a program
whose stacks can be judged: 200 functions, 30 of them generators, each with one caller and one line that calls it."""
import json
import random
import subprocess
from pathlib import Path

from jobs import probe

TOP = Path(__file__).resolve().parent.parent.parent
TARGETS = Path(__file__).resolve().parent / "targets"
LIBRARIES = [TOP / f"build/release/libpb_{name}.a" for name in ("remote", "control", "table", "base")]


def build(source, where):
    """Compiles a program of targets/ with the reader in it."""
    binary = where / Path(source).stem
    subprocess.run(["cc", "-std=gnu17", "-O2", "-g", "-D_GNU_SOURCE", f"-I{TOP / 'src'}", "-o", binary,
                    TARGETS / source, *LIBRARIES, "-ldl"],
                   check=True)
    return binary


class Tree:
    """A program as text, and what its stacks can be."""

    def __init__(self, functions=200, generators=30, seed=7):
        chance = random.Random(seed)
        self.parent = {0: None}
        depth = {0: 1}
        for i in range(1, functions):
            candidates = [k for k in range(max(0, i - 40), i) if depth[k] < 25] or [0]
            self.parent[i] = chance.choice(candidates)
            depth[i] = depth[self.parent[i]] + 1
        self.is_generator = set(chance.sample(range(1, functions), generators))
        self.call_line = {}  # of a function: the line in its caller
        self.lines = {}  # of a function: first and last line
        self.text = self.write(functions)

    def name(self, i):
        return f"g{i}" if i in self.is_generator else f"f{i}"

    def write(self, functions):
        out = []
        for i in range(functions):
            first = len(out) + 1
            out.append(f"def {self.name(i)}():")
            out.append("    x = 1")
            for child in (c for c in self.parent if self.parent[c] == i):
                if child in self.is_generator:
                    out.append(f"    for x in {self.name(child)}():")
                    self.call_line[child] = len(out)
                    out.append("        x += 1")
                else:
                    out.append(f"    {self.name(child)}()")
                    self.call_line[child] = len(out)
                if i in self.is_generator:
                    out.append("    yield x")
            out.append("    yield x" if i in self.is_generator else "    return x")
            self.lines[i] = (first, len(out))
        out += ["def main():", "    while True:", "        f0()"]
        self.call_line[0] = len(out)
        self.main_line = len(out) + 2
        return "\n".join([*out, "print('ready', flush=True)", "main()", ""])

    def wrong(self, stack):
        """Why a stack, "name:line name:line ..", cannot be; None where it can."""
        frames = [(name, int(line)) for name, line in (word.rsplit(":", 1) for word in stack.split())]
        if not frames or frames[0] != ("<module>", self.main_line):
            return "the root is not the module"
        if len(frames) == 1:
            return None
        if frames[1][0] != "main":
            return "main is missing"
        above = None
        for depth, (name, line) in enumerate(frames[2:], 2):
            i = int(name[1:])
            if self.parent[i] != above:
                return f"{name} is not called by {frames[depth - 1][0]}"
            if frames[depth - 1][1] != self.call_line[i]:
                return f"{name} is not called in line {frames[depth - 1][1]}"
            above = i
        # Instructions that the compiler added, as at the start of a generator, have no line.
        if above is not None and frames[-1][1] and not self.lines[above][0] <= frames[-1][1] <= self.lines[above][1]:
            return f"line {frames[-1][1]} is not in {frames[-1][0]}"
        return None


def backtrace(pid, *options):
    """The process as JSON has it."""
    done = probe("-t", pid, "backtrace", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def by_name(process):
    return {thread["name"]: thread for thread in process["threads"]}


def functions(thread):
    """Innermost first, without the qualifying part, which 3.6 to 3.10 do not have."""
    return [frame["name"] for frame in thread["frames"]]


HELD = """
import ctypes, threading, time
def hold():
    ctypes.PyDLL(None).sleep(1000)
print("ready", flush=True)
threading.Thread(target=hold, name="holder").start()
time.sleep(0.5)
"""
SUBINTERPRETER = """
import sys, threading, time
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def run():
    interpreters.run_string(interpreters.create(), "import time\\ndef inside():\\n    time.sleep(1000)\\ninside()")
threading.Thread(target=run, daemon=True).start()
time.sleep(0.5)
print("ready", flush=True)
time.sleep(1000)
"""
