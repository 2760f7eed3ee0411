"""How long it takes from nothing to a program that stands at a breakpoint with its stack told to the client: `probing debug` and debugpy's attach by
pid, with the same client (tests/integration/dap_kit.py), alternating. And what a breakpoint that is never hit costs a function beside it.

    build/venv/bin/python bench/dap.py [rounds]
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "tests")]
from dap_kit import Client  # noqa: E402

PROBING = str(ROOT / "build/release/bin/probing")
ROUNDS, PEER_ROUNDS, MUST_MS = 15, 5, 300

# Always busy, like a training loop: it holds the GIL, and a debugger has to ask for it.
PROGRAM = """
import sys, time
def work(n):
    total = 0
    for i in range(50):
        total += i * n
    return total
def other(n):
    return n + 1
def train():
    step, last, count = 0, time.perf_counter(), 0
    print("ready", flush=True)
    while True:
        step += 1
        work(step)
        count += 1
        now = time.perf_counter()
        if now - last > 0.2:
            print("rate", count / (now - last), flush=True)
            last, count = now, 0
train()
"""
LINE = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "work(step)" in line)
OTHER = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "return n + 1" in line)


def start(path, python):
    target = subprocess.Popen([python, str(path)], stdout=subprocess.PIPE, universal_newlines=True)
    assert target.stdout.readline() == "ready\n"
    time.sleep(0.1)
    return target


def stand(address, path):
    """Waits until the stack of the stop has come."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client = Client(address, attach=False)
            break
        except OSError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.002)
    client.ask("initialize", adapterID="bench", linesStartAt1=True, columnsStartAt1=True, pathFormat="path")
    attached = client.send("attach", name="bench", request="attach", justMyCode=True)
    client.wait("initialized", 30)
    client.stop_at(path, LINE)
    client.ask("configurationDone")
    client.result(attached, 30)
    assert client.stopped()["frames"][0]["name"] == "train"
    return client


def measure_ours(target, path):
    began = time.perf_counter()
    done = subprocess.run([PROBING, "-t", str(target.pid), "debug"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
    host, _, port = done.stdout.strip().rpartition(":")
    client = stand((host, int(port)), path)
    took = time.perf_counter() - began
    client.ask("disconnect")
    return took * 1000


def measure_debugpy(target, path):
    port = 20000 + (os.getpid() + target.pid) % 20000
    began = time.perf_counter()
    tool = subprocess.Popen([sys.executable, "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--pid", str(target.pid)],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = stand(("127.0.0.1", port), path)
    took = time.perf_counter() - began
    client.socket.close()
    tool.wait()
    return took * 1000


def rates(target, count):
    """Steps a second of the next windows of 0.2 s; the first is left out."""
    found = [float(target.stdout.readline().split()[1]) for _ in range(count + 1)]
    return found[1:]


def measure_cost(path, python):
    """The rate with a breakpoint in another function, and after the client has left, as shares of the rate before."""
    target = start(path, python)
    try:
        before = statistics.median(rates(target, 5))
        done = subprocess.run([PROBING, "-t", str(target.pid), "debug"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
        host, _, port = done.stdout.strip().rpartition(":")
        with Client((host, int(port))) as client:
            client.stop_at(path, OTHER)
            rates(target, 2)
            beside = statistics.median(rates(target, 5))
            client.ask("disconnect")
        rates(target, 2)
        return beside / before, statistics.median(rates(target, 5)) / before
    finally:
        target.kill()
        target.wait()


def spread(values):
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f} (least {ordered[0]:.0f}, most {ordered[-1]:.0f}, {len(ordered)} times)"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    found = {"probing": [], "debugpy": []}
    with tempfile.TemporaryDirectory(prefix="probing-bench-") as where:
        path = Path(where) / "train.py"
        path.write_text(PROGRAM)
        for turn in range(rounds):
            for name, measure in (("probing", measure_ours), ("debugpy", measure_debugpy)):
                if name == "debugpy" and turn >= min(rounds, PEER_ROUNDS):
                    continue
                target = start(path, sys.executable)
                try:
                    found[name].append(measure(target, path))
                finally:
                    target.kill()
                    target.wait()
        costs = {}
        for python in dict.fromkeys([sys.executable, *sys.argv[2:]]):
            costs[python] = [measure_cost(path, python) for _ in range(3)]
    print(f"milliseconds from nothing to stopped at a breakpoint, in a program that computes; load {os.getloadavg()[0]:.1f}")
    for name, values in found.items():
        print(f"{name:8} p50 {spread(values)}")
    print(f"debugpy / ours: {statistics.median(found['debugpy']) / statistics.median(found['probing']):.1f}")
    for python, values in costs.items():
        beside, after = (statistics.median(each) for each in zip(*values))
        print(f"{python}: with a breakpoint in another function {beside:.0%} of the steps a second, after disconnect {after:.0%}")
    missed = statistics.median(found["probing"]) > MUST_MS
    print(f"must be <= {MUST_MS}: {'missed' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
