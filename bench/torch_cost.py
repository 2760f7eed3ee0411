"""What the torch probe costs a training, in two ways: ns for a call times the calls of a step, and on against off, end to end.

    build/venv/bin/python bench/torch_cost.py [PART...]     parts: calls transformer sampled resnet ddp collective off attach memory
        peers

End to end means one process in which the probe is switched on and off in blocks of steps, off on on off; a pair is two neighbouring blocks. Given are
the median over PAIRS (100) of the CPU time of a step, its 95% interval (order statistics), and the same for off against off. These machines change by 10%
within a second: where it can be, a block is one step and there are STEPS (4000) pairs (Swapped), and what threads of the agent do is told apart.
"""
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

TOP = Path(__file__).resolve().parent.parent
PROGRAM = TOP / "build/release/bin/probing"
PAIRS, BLOCK = int(os.environ.get("PAIRS", 100)), int(os.environ.get("BLOCK", 8))
STEPS = int(os.environ.get("STEPS", 4000))
SETTLE = 4  # steps after a switch that are not counted
TP_CALL = 128  # where a type has its tp_call
sys.path.insert(0, str(TOP / "examples"))


def probing(*words, pid=None, check=True):
    return subprocess.run([PROGRAM, "-t", str(pid or os.getpid()), *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True).stdout


def rows(sql, pid=None):
    return json.loads(probing("query", "--format", "json", sql, pid=pid))


def slot():
    return ctypes.c_void_p.from_address(id(nn.Module) + TP_CALL).value


BARE = slot()


def wait_for_slot(is_in):
    end = time.monotonic() + 20
    while (slot() != BARE) != is_in:
        if time.monotonic() > end:
            raise TimeoutError("the probe is not %s: %s" % ("in" if is_in else "out", probing("probes", check=False)))
        time.sleep(0.002)  # gives up the GIL
    time.sleep(0.05)


class Probe:
    """The probe of this process, switched by the command line; what it was started with counts from then on."""

    def __init__(self, *settings):
        self.settings = settings

    def on(self):
        probing("probes", "start", "torch", *self.settings)
        wait_for_slot(True)

    def off(self):
        if slot() != BARE:
            probing("probes", "stop", "torch")
        wait_for_slot(False)


def word(address):
    return ctypes.c_void_p.from_address(address)


def family(kind):
    return [kind] + [each for below in type.__subclasses__(kind) for each in family(below)]


class Swapped:
    """The probe stays on; what it has put into torch (the slot of modules' classes, the method of backward, hooks of optimizers) is taken out and put
    back from here, in microseconds: so neighbouring steps can be compared. Marks of autograd that it has asked for in a step stay (1/2000 of a step)."""

    def __init__(self, step, *settings):
        backward = word(word(id(torch._C._ImperativeEngine.run_backward) + 40).value + 8)  # PyMethodDef.ml_meth
        bare = backward.value
        optimizers = sys.modules["torch.optim.optimizer"]
        self.probe = Probe(*settings)
        self.probe.on()
        for _ in range(300):
            step()
        self.places = [(word(id(kind) + TP_CALL), slot(), BARE) for kind in dict.fromkeys(family(nn.Module)) if word(id(kind) + TP_CALL).value == slot()]
        self.places.append((backward, backward.value, bare))
        self.hooks = [(held, dict(held)) for held in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)]
        assert backward.value != bare and all(len(held) == 1 for held, _ in self.hooks), "the probe is not in all its places"

    def switch(self, is_on):
        for place, ours, bare in self.places:
            place.value = ours if is_on else bare
        for held, items in self.hooks:
            held.clear()
            if is_on:
                held.update(items)

    def on(self):
        self.switch(True)

    def off(self):
        self.switch(False)

    def is_as_switched(self, is_on):
        """Once a second the probe looks for new classes, and puts its own back in."""
        return (slot() != BARE) == is_on

    def end(self):
        self.on()
        self.probe.off()


class Nothing:
    def end(self):
        pass

    def switch(self, is_on):
        pass

    def is_as_switched(self, is_on):
        return True

    def on(self):
        time.sleep(0.05)

    off = on


class Attached:
    """An agent with everything off, against none."""

    def on(self):
        probing("inject")
        time.sleep(0.1)

    def off(self):
        probing("detach", check=False)  # also where none is in yet
        time.sleep(0.1)


class Profiler:
    def on(self):
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self.profile.start()

    def off(self):
        if getattr(self, "profile", None):
            self.profile.stop()
        self.profile = None


def clocks():
    return time.process_time_ns(), time.perf_counter_ns()


def time_block(step, n):
    for _ in range(SETTLE):  # what the switch left in caches, and what the probe does once
        step()
    before = clocks()
    for _ in range(n):
        step()
    return [(b - a) / n / 1e6 for a, b in zip(before, clocks())]


def interval(values):
    """Median and its 95% interval."""
    values, n = sorted(values), len(values)
    half = 0.98 * n ** 0.5
    return statistics.median(values), values[max(0, int(n / 2 - half))], values[min(n - 1, int(n / 2 + half))]


def compare(switch, step, pairs=None, block=None):
    """Per cent that a step takes longer while the switch is on: (CPU, wall), each with its interval; and ms of a step that is off."""
    found, ms = [[], []], []
    pairs, block = pairs or PAIRS, block or BLOCK
    switch.off()
    is_on, times = False, {}
    for pair in range(pairs):
        for turn in ((False, True) if pair % 2 == 0 else (True, False)):
            if turn != is_on:
                (switch.on if turn else switch.off)()
                is_on = turn
            times[turn] = time_block(step, block)
        ms.append(times[False][0])
        for clock in (0, 1):
            found[clock].append((times[True][clock] / times[False][clock] - 1) * 100)
    switch.off()
    return [interval(each) for each in found], statistics.median(ms)


def compare_steps(switch, step):
    """The same with blocks of one step."""
    found, ms = [[], []], []
    for pair in range(STEPS):
        times, good = {}, True
        for turn in ((False, True) if pair % 2 == 0 else (True, False)):
            switch.switch(turn)
            before = clocks()
            step()
            times[turn] = [b - a for a, b in zip(before, clocks())]
            good = good and switch.is_as_switched(turn)
        if not good:
            continue
        ms.append(times[False][0] / 1e6)
        for clock in (0, 1):
            found[clock].append((times[True][clock] / times[False][clock] - 1) * 100)
    switch.end()
    return [interval(each) for each in found], statistics.median(ms)


def cpu_of_others():
    """ns of this process's other threads so far."""
    return sum(int(Path("/proc/self/task", tid, "schedstat").read_text().split()[0]) for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid())


def threads_share(step, steps=300, turns=5):
    """Per cent of a step that threads of the agent take more while the probe is on."""
    probe, took = Probe("budget=off"), {False: [], True: []}
    for turn in [False, True] * turns:
        (probe.on if turn else probe.off)()
        before, begun = cpu_of_others(), time.process_time_ns()
        for _ in range(steps):
            step()
        others = cpu_of_others() - before
        took[turn].append(others / (time.process_time_ns() - begun - others) * 100)
    probe.off()
    return statistics.median(took[True]) - statistics.median(took[False])


def tell(what, result, ms, must=""):
    (cpu, low, high), (wall, wall_low, wall_high) = result
    print("%-52s CPU %+.2f%% [%+.2f, %+.2f], wall %+.2f%% [%+.2f, %+.2f]; a step %.2f ms%s" % (
        what, cpu, low, high, wall, wall_low, wall_high, ms, "; must be " + must if must else ""), flush=True)


def tell_steps(what, step, must):
    tell(what, *compare_steps(Swapped(step, "budget=off"), step), must)
    tell("  off against off", *compare_steps(Nothing(), step))
    print("%-52s %+.2f%% of a step, in addition" % ("  threads of the agent", threads_share(step)), flush=True)


# --- what is trained -----------------------------------------------------------------------------------

def stepper(model, optimizer, batch, loss_of):
    def step():
        optimizer.zero_grad()
        loss_of(model(batch())).backward()
        optimizer.step()
    for _ in range(20):
        step()
    return step


def transformer():
    import transformer as example
    torch.manual_seed(0)
    model, tokens = example.Transformer(), torch.randint(0, 64, (8, 32))
    return model, stepper(model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda: tokens,
                          lambda out: nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten()))


def resnet():
    import imagenet as example
    torch.manual_seed(0)
    model, images, labels = example.ResNet(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return model, stepper(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), lambda: images,
                          lambda out: nn.functional.cross_entropy(out, labels))


class Empty(nn.Module):
    def forward(self, x):
        return x


class Around(nn.Module):
    def __init__(self, n=1000):
        super().__init__()
        self.inside = nn.ModuleList(Empty() for _ in range(n))

    def forward(self, x):
        for module in self.inside:
            x = module(x)
        return x


def calls_of(model, step):
    """Calls of modules in a step, as hooks count them."""
    counted = []
    hooks = [each.register_forward_pre_hook(lambda *_: counted.append(1)) for each in model.modules()]
    step()
    for hook in hooks:
        hook.remove()
    return len(counted)


# --- ns for a call -------------------------------------------------------------------------------------

def least(action, n, rounds=7):
    best = []
    for _ in range(rounds):
        begun = time.process_time_ns()
        for _ in range(n):
            action()
        best.append((time.process_time_ns() - begun) / n)
    return min(best)


def ns_of(action, n, *settings, turns=7):
    """What the probe adds to it: the median over turns of (off, on), each the least of some rounds."""
    probe, added, bare = Probe("budget=off", *settings), [], []
    for _ in range(turns):
        probe.off()
        off = least(action, n)
        probe.on()
        least(action, n, 2)  # names are found
        added.append(least(action, n) - off)
        bare.append(off)
    probe.off()
    return statistics.median(added), statistics.median(bare)


def per_call(*settings):
    around = Around()
    added, bare = ns_of(lambda: around(1), 20, *settings)
    return added / 1001, bare / 1001


def per_step():
    """Of the phases of a step: backward, and an optimizer without parameters to change."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    loss = weight.sum()

    def phases():
        loss.backward(retain_graph=True)
        optimizer.step()
    return ns_of(phases, 500)[0]


def by_calls(name, make, must, *settings):
    call, bare = per_call(*settings)
    phases = per_step()
    model, step = make()
    n = calls_of(model, step)
    ms = statistics.median(time_block(step, 10)[0] for _ in range(10))
    print("%-52s %.0f ns a call (of %.0f), %d calls, phases %.0f ns: %.3f%% of a step of %.2f ms; must be %s" % (
        name + ", by calls", call, bare, n, phases, (call * n + phases) / ms / 1e4, ms, must), flush=True)


# --- parts ---------------------------------------------------------------------------------------------

def part_calls():
    by_calls("transformer, every module, every step", transformer, "< 1%")


def part_transformer():
    tell_steps("transformer, every module, every step", transformer()[1], "< 1%, interval below 2%")


def part_sampled():
    by_calls("transformer, sample_rate=0.05", transformer, "< 0.3%", "sample_rate=0.05")


def part_resnet():
    by_calls("ResNet", resnet, "< 0.5%")
    tell_steps("ResNet, end to end", resnet()[1], "< 0.5%")


def part_off():
    _, step = transformer()
    tell("attached and everything off, against no agent", *compare(Attached(), step), "0 within the noise")
    tell("  off against off", *compare(Nothing(), step))


def part_peers():
    _, step = transformer()
    tell("torch.profiler, CPU", *compare(Profiler(), step, 20))
    tell("ours beside it", *compare(Probe("budget=off"), step, 20))
    if subprocess.run([sys.executable, "-c", "import memray"], stderr=subprocess.DEVNULL).returncode:
        print("memray: not installed", flush=True)
        return
    import memray

    class Memray:
        tracker = None

        def on(self):
            self.file = tempfile.mktemp()
            self.tracker = memray.Tracker(self.file)
            self.tracker.__enter__()

        def off(self):
            if self.tracker:
                self.tracker.__exit__(None, None, None)
                os.unlink(self.file)
            self.tracker = None
    tell("memray", *compare(Memray(), step, 20))


DDP = """
import os, sys, time
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch, torch.distributed as dist
import torch_cost as bench
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(bench.transformer()[0])
tokens = torch.randint(0, 64, (8, 32))
step = bench.stepper(model, torch.optim.AdamW(model.parameters()), lambda: tokens, lambda out: torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten()))
class Both:
    def __init__(self, switch): self.switch = switch
    def on(self): self.switch.on(); dist.barrier()
    def off(self): self.switch.off(); dist.barrier()
for name, switch, must in (("DDP, 2 ranks, gloo, all collectives", bench.Probe("budget=off"), "< 1%"), ("  off against off", bench.Nothing(), "")):
    result = bench.compare(Both(switch), step)
    if rank == 0: bench.tell(name, *result, must)
    dist.barrier()
# ns for a collective: those of one rank, so that nobody is waited for
alone = [dist.new_group([each]) for each in range(2)][rank]
x = torch.zeros(1)
if rank == 0:
    added, bare = bench.ns_of(lambda: dist.all_reduce(x, group=alone), 300, turns=3)
    print("%-52s %.0f ns (of %.0f)" % ("a collective of one rank, by calls", added, bare), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def part_ddp():
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "ddp.py"
        script.write_text(DDP)
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29533", str(script), str(TOP / "bench"),
                        str(TOP / "examples")], check=True, stderr=subprocess.DEVNULL)


class EmptyKernel:
    """A kernel in Python that only passes the operation on, at the key where the probe's is."""
    handle = None

    def on(self):
        operation = torch.ops.c10d.allreduce_.default
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self.handle = torch._C._dispatch_library("IMPL", "c10d", "", "<bench>", 1)
        self.handle.impl("allreduce_", "BackendSelect", lambda keys, *given: operation.redispatch(keys & after, *given), True)

    def off(self):
        self.handle = None


def part_collective():
    """CPU time of the thread that issues it: of this, what torch's dispatcher takes for any kernel in Python."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
    x, rounds = torch.ones(4), {}
    switches = {"off": Nothing(), "an empty kernel": EmptyKernel(), "the probe": Probe("budget=off")}
    for _ in range(15):
        for name, switch in switches.items():
            switch.on()
            for n in (50, 400):  # the first round fills caches
                began = time.thread_time_ns()
                for _ in range(n):
                    torch.distributed.all_reduce(x)
            rounds.setdefault(name, []).append((time.thread_time_ns() - began) / n / 1e3)
            switch.off()
    for name, took in rounds.items():
        print("%-52s least %.1f us, median %.1f" % ("all_reduce of one rank, " + name, min(took), statistics.median(took)), flush=True)
    torch.distributed.destroy_process_group()


BIG = """
import sys, time
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch, torch_cost as bench
torch.set_num_threads(1)
held = [[i] for i in range(1000000)]
_, step = bench.transformer()
print("ready", flush=True)
times = []
for _ in range(int(sys.argv[3])):
    begun = time.clock_gettime_ns(time.CLOCK_REALTIME)
    step()
    times.append((begun, time.clock_gettime_ns(time.CLOCK_REALTIME) - begun))
print("\\n".join("%d %d" % each for each in times), flush=True)
sys.stdin.read()
"""


def attach_once():
    job = subprocess.Popen([sys.executable, "-c", BIG, str(TOP / "bench"), str(TOP / "examples"), "500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           universal_newlines=True)
    try:
        assert job.stdout.readline() == "ready\n"
        time.sleep(1)
        asked = time.clock_gettime_ns(time.CLOCK_REALTIME)
        probing("config", "probing.torch.profiling=on", pid=job.pid)
        times = [tuple(map(int, job.stdout.readline().split())) for _ in range(500)]
        first = rows("SELECT epoch_ns(min(timestamp)) AS first FROM python.torch_trace", pid=job.pid)[0]["first"]
    finally:
        job.stdin.close()
        job.kill()
        job.wait()
    before = [took for begun, took in times if begun < asked - 10 ** 8]
    around = [took for begun, took in times if asked - 10 ** 8 <= begun < asked + 2 * 10 ** 9]
    return (first - asked) / 1e6, statistics.median(before) / 1e6, max(before) / 1e6, max(around) / 1e6


def part_attach():
    found = [attach_once() for _ in range(5)]
    first, usual, before, longest = (statistics.median(column) for column in zip(*found))
    print("%-52s %.0f ms (%s) until the first row of torch_trace, a step is %.1f ms; the longest step beside it %.1f ms, without us %.1f; must be <= a step + 200 ms, "
          "no pause over 50 ms" % ("attach to 1,000,000 objects", first, " ".join("%.0f" % each[0] for each in found), usual, longest, before), flush=True)


TINY = """
import sys, torch
torch.set_num_threads(1)
class Pass(torch.nn.Module):
    def forward(self, x): return x
# As many calls of modules in a step as the small transformer makes, in a hundredth of its time.
model = torch.nn.Sequential(torch.nn.Linear(4, 4), *(Pass() for _ in range(39)))
optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(2, 4)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
train(1000)
for line in sys.stdin:
    train(int(line))
    print(open("/proc/self/statm").read().split()[1], flush=True)
"""


FIVE_MINUTES = 31579  # steps of 9.5 ms


def part_memory():
    job = subprocess.Popen([sys.executable, "-c", TINY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True, bufsize=1)

    def train(steps):
        job.stdin.write("%d\n" % steps)
        return int(job.stdout.readline()) * os.sysconf("SC_PAGESIZE") / 1e6
    try:
        train(5000)
        before = train(5000)
        probing("probes", "start", "torch", "budget=off", pid=job.pid)
        time.sleep(1)
        train(FIVE_MINUTES)
        held = rows("SELECT count(DISTINCT step) AS n FROM python.torch_trace", pid=job.pid)[0]["n"]
        after = train(100000 - FIVE_MINUTES)
        steps = rows("SELECT max(step) + 1 AS n FROM python.torch_step", pid=job.pid)[0]["n"]
        late = rows("SELECT count(DISTINCT step) AS n FROM python.torch_trace", pid=job.pid)[0]["n"]
    finally:
        job.kill()
        job.wait()
    print("%-52s %+.1f MB (%.1f to %.1f) after %d steps; must be <= 50 MB" % ("memory of the agent and its tables", after - before, before, after, steps), flush=True)
    print("%-52s modules of %d steps after %d of them, of %d after all: %.0f and %.0f s at 9.5 ms a step; must be 300 s" % (
        "  what the tables hold, 41 calls a step", held, FIVE_MINUTES, late, held * 0.0095, late * 0.0095), flush=True)


def main():
    parts = {name[5:]: part for name, part in globals().items() if name.startswith("part_")}
    torch.set_num_threads(1)
    for name in sys.argv[1:] or parts:
        if name not in parts:
            raise SystemExit("torch_cost: no part '%s'; there are %s" % (name, " ".join(parts)))
        parts[name]()


if __name__ == "__main__":
    main()
