"""The sampler beside py-spy and austin: how many true stacks a second, how true and how unbiased they are, what they cost.

    build/venv/bin/python bench/sampler.py [ROW...]     rows: rate blocked impossible bias tiny idle taken100 taken1000
                                                        slowdown100 slowdown1000

The peers come with requirements/bench.txt; one that is not installed is said to be so and left out. Each row prints the
target's run delay: a target that waits for a CPU makes every reader look right and fast. Figures hold for a machine with
a free core. As root each row is taken a second time with everything in it without a capability, as an ordinary user has it (RIGHTS=root or
RIGHTS=ordinary: one of both); the bounds are root's. TURNS (20) is how often slowdown alternates, SAMPLES (20000) how many impossible looks at, of the VERSIONS named.
"""
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/integration"))
import jobs  # noqa: E402
import profile_kit  # noqa: E402
from interpreters import INTERPRETERS  # noqa: E402

PROBING = Path(os.environ.get("PROBING_PROGRAM", TOP / "build/release/bin/probing"))
PY_SPY, AUSTIN = (shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") for name in ("py-spy", "austin"))
ORDINARY = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
SECONDS = 4
TURNS = int(os.environ.get("TURNS", 20))
SAMPLES = int(os.environ.get("SAMPLES", 20000))
NEWEST = INTERPRETERS[-1]
missed = []

DEEP = """
import sys
def down(n):
    if n: return down(n - 1)
    while True: pass
print("ready", flush=True)
down(13)
"""
ASLEEP = """
import time
def down(n):
    if n: return down(n - 1)
    time.sleep(600)
print("ready", flush=True)
down(13)
"""
IDLE = """
import threading
for _ in range(160): threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
# Ten functions that do the same: each has a tenth of what they have together.
TINY = """
{functions}
print("ready", flush=True)
while True:
    {calls}
"""
# Steps of about 9.5 ms of torch on one thread; when each ended, in a ring in a file.
TRAINING = """
import itertools, mmap, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(8, 32, 128)
with open({file!r}, "r+b") as f:
    ends = memoryview(mmap.mmap(f.fileno(), 0)).cast("q")
def step():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
for _ in range(20): step()
print("ready", flush=True)
for n in itertools.count(1):
    step()
    ends[n % (len(ends) - 1) + 1] = time.monotonic_ns()
    ends[0] = n
"""
COMPUTING = """
import mmap, time
with open({file!r}, "r+b") as f:
    lost = memoryview(mmap.mmap(f.fileno(), 8)).cast("q")
def watch(clock, total):
    last = clock()
    while True:
        now = clock()
        if now - last > 1000:
            total += now - last
            lost[0] = total
        last = now
print("ready", flush=True)
watch(time.perf_counter_ns, 0)
"""


def check(row, ok, text):
    print(f"    {text}{'' if ok else '   <-- missed'}", flush=True)
    if not ok:
        missed.append(f"{row}: {text}")


@contextmanager
def delayed(row, pid):
    """Prints how long the target waited for a CPU meanwhile."""
    ran, waited = profile_kit.run_delay(pid)
    yield
    ran_after, waited_after = profile_kit.run_delay(pid)
    if ran_after > ran:
        print(f"    (target's run delay: {100 * (waited_after - waited) / (ran_after - ran + waited_after - waited):.1f}%)")


def cpu_of_children(function):
    """(what it returns, CPU seconds that its child processes took, wall seconds)."""
    before, start = os.times(), time.monotonic()
    result = function()
    after = os.times()
    return result, after.children_user + after.children_system - before.children_user - before.children_system, time.monotonic() - start


def run(*command, timeout=120):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, errors="replace", timeout=timeout)


def probing(pid, out, rate, seconds=SECONDS, *options):
    done = run(PROBING, "-t", pid, "flamegraph", "-o", out, "--rate", rate, "--duration", seconds, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(name, program):
    if not program:
        print(f"    {name}: not installed")
    return bool(program)


def py_spy(pid, out, rate, seconds=SECONDS, *options):
    """Whether there is a file now."""
    return installed("py-spy", PY_SPY) and run(PY_SPY, "record", "-p", pid, "-o", out, "-f", "raw", "-r", rate, "-d", seconds,
                                               *options).returncode == 0


def austin(pid, out, interval_us, seconds=SECONDS):
    return installed("austin", AUSTIN) and run(AUSTIN, "-i", interval_us, "-x", seconds, "-o", out, "-p", pid).returncode == 0


def austin_stacks(path):
    """Austin's lines as read_folded gives them: "P1;T0:1;file:function:line;... metric"."""
    stacks = []
    for row in Path(path).read_text(errors="replace").splitlines():
        if row.startswith("#") or " " not in row:
            continue
        frames = [f for f in row.rsplit(" ", 1)[0].split(";") if not re.match(r"^[PT]\d", f)]
        parts = [re.match(r"^(.*):([^:]*):(\d+)$", f) for f in frames]  # what it could not read is in another form
        stacks.append(([(m[2], int(m[3])) if m else ("?", None) for m in parts], 1))
    return stacks


def stacks_of(said):
    """Stacks that were read of one thread: a look that came late weighs as much as those that it stands for, refused or not, and is one."""
    samples, refused = int(re.search(r": (\d+) samples", said)[1]), int(re.search(r"; (\d+) refused", said)[1])
    late = re.search(r", (\d+) late", said)
    looks = samples + refused - int(late[1] if late else 0)
    return looks * samples / max(1, samples + refused)


def row_rate(where, row="rate", program=DEEP, must=10000):
    with jobs.python(program, interpreter=NEWEST) as job:
        with delayed(row, job.pid):
            said = probing(job.pid, where / "a.folded", 1000000)
        n = stacks_of(said)
        check(row, n / SECONDS >= must, f"probing {n / SECONDS:,.0f} true stacks/s, must be >= {must:,}; {said.splitlines()[1].strip()}")
        if py_spy(job.pid, where / "b.folded", 10000):
            n = sum(n for _, n in read_any(where / "b.folded"))
            print(f"    py-spy (-r 10000, stopping) {n / SECONDS:,.0f}/s")
        if austin(job.pid, where / "c.austin", 50):
            print(f"    austin (-i 50) {len(austin_stacks(where / 'c.austin')) / SECONDS:,.0f}/s")


def read_any(path):
    return profile_kit.read_folded(Path(path).read_text(errors="replace"), strict=False)


def row_blocked(where):
    row_rate(where, "blocked", ASLEEP, 100000)


def row_impossible(where):
    tree, only = profile_kit.Tree(), os.environ.get("VERSIONS", "").split()
    for version, interpreter, root in profile_kit.everywhere():
        if only and not any(version.startswith(v) for v in only):
            continue
        with profile_kit.started(tree.source, interpreter, root, where) as job:
            n, wrong, cut, _, delay, said = profile_kit.sample_tree(tree, job.pid, jobs.probe, SAMPLES, 30000, 110, where / "a.folded")
            check("impossible", wrong == 0 and cut <= n / 100, f"{version} probing: {wrong} impossible, {cut} not of full depth, of {n:,} "
                  f"(run delay {delay:.1%}); {said.splitlines()[1].strip()}")
            if SAMPLES <= 20000:
                show_peers(where, tree, version, job)


def show_peers(where, tree, version, job):
    for name, options in (("py-spy", []), ("py-spy --nonblocking", ["--nonblocking"])):
        if py_spy(job.pid, where / "b.folded", 1000, 2, *options):
            stacks = [([(f, None) for f, _ in s], c) for s, c in read_any(where / "b.folded")]
            print(f"    {version} {name}: {describe(tree, stacks)}")
    if austin(job.pid, where / "c.austin", 100, 2):
        stacks = [([(f, None) for f, _ in s], c) for s, c in austin_stacks(where / "c.austin")]
        print(f"    {version} austin: {describe(tree, stacks)}")


def describe(tree, stacks):
    """Peers' lines are not asked for: a stack counts as right when its functions are."""
    total = wrong = 0
    for stack, count in stacks:
        names = [name for name, _ in stack]
        total += count
        if not names or not re.fullmatch(r"f\d+|<module>", names[-1]):
            wrong += count
        elif names[-1] != "<module>" and names != [n for n, _ in tree.path(int(names[-1][1:]))]:
            wrong += count
    return f"{wrong} impossible or cut of {total}"


def row_bias(where):
    with profile_kit.shares(NEWEST) as (job, spent):
        for name, options in (("probing", []), ("probing --no-stop", ["--no-stop"])):
            before = spent()
            with delayed("bias", job.pid):
                probing(job.pid, where / "a.folded", 2000, SECONDS, *options)
            show_bias(name, before, spent(), read_any(where / "a.folded"), True)
        before = spent()
        if py_spy(job.pid, where / "b.folded", 1000):
            show_bias("py-spy", before, spent(), read_any(where / "b.folded"), False)
        before = spent()
        if austin(job.pid, where / "c.austin", 500):
            show_bias("austin", before, spent(), austin_stacks(where / "c.austin"), False)


def show_bias(name, before, after, stacks, ours):
    truth = {f"g{i}": b - a for i, (a, b) in enumerate(zip(before, after))}
    counts = {}
    for stack, n in stacks:
        if stack and stack[-1][0] in truth:
            counts[stack[-1][0]] = counts.get(stack[-1][0], 0) + n
    n = sum(counts.values())
    if not n:
        print(f"    {name}: no sample")
        return
    shares = [t / sum(truth.values()) for t in truth.values()]
    floor = sum((2 / 3.14159 * s * (1 - s) / n) ** 0.5 for s in shares) / 2
    found = profile_kit.distance(truth, counts)
    text = f"{name}: distance {found:.4f} from what the program measured, {n} samples, noise floor {floor:.4f}"
    if ours:
        check("bias", found <= 0.02 + floor, text)
    else:
        print(f"    {text}")


def row_tiny(where):
    functions = "\n".join(f"def t{i}():\n    x = 0\n    for k in range(12): x += k" for i in range(10))
    code = TINY.format(functions=functions, calls="; ".join(f"t{i}()" for i in range(10)))
    with jobs.python(code, interpreter=NEWEST) as job:
        for options in ([], ["--no-stop"]):
            with delayed("tiny", job.pid):
                probing(job.pid, where / "a.folded", 2000, SECONDS, *options)
            counts = {}
            for stack, n in read_any(where / "a.folded"):
                counts[stack[-1][0]] = counts.get(stack[-1][0], 0) + n
            own = [counts.get(f"t{i}", 0) for i in range(10)]
            off = max(abs(100 * c / sum(own) - 10) for c in own)
            check("tiny", off <= 2, f"probing {' '.join(options)}: functions of 1 us are at most {off:.1f} points off their tenth, must be <= 2")


SETTLE_S, WITH_S, WITHOUT_S = 0.5, 1.2, 0.8


class Training:
    """A job that trains: ms a step, of those that end within so many seconds."""
    code, unit = TRAINING, "ms a step"

    def __init__(self, file):
        self.file = file
        file.write_bytes(bytes(8 << 12))

    def measure(self, seconds):
        start = time.monotonic_ns()
        time.sleep(seconds)
        until = time.monotonic_ns()
        ring = struct.unpack(f"{1 << 12}q", self.file.read_bytes())
        ends = sorted(t for t in ring[1:] if start <= t <= until)
        return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e6

    @staticmethod
    def loss(without, under):
        return 100 * (under / without - 1)


class Computing:
    """A thread that only reads the clock: the share of time in which it did not run, in percent. This shows the cost of a sampler
    to a few hundredths of a percent, more precisely than the time of a step."""
    code, unit = COMPUTING, "% of the time is taken by others"

    def __init__(self, file):
        self.file = file
        file.write_bytes(bytes(8))

    def measure(self, seconds):
        before, start = int.from_bytes(self.file.read_bytes(), "little"), time.monotonic_ns()
        time.sleep(seconds)
        return 100 * (int.from_bytes(self.file.read_bytes(), "little") - before) / (time.monotonic_ns() - start)

    @staticmethod
    def loss(without, under):
        return under - without


def under(command, target):
    """The same while a command runs."""
    process = subprocess.Popen([str(w) for w in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(SETTLE_S)  # until it is at work
    assert process.poll() is None, f"{command[0]} has ended"
    result = target.measure(WITH_S)
    process.send_signal(signal.SIGINT)
    process.wait()
    time.sleep(0.1)
    return result


def slow_down(where, target, interpreter, hz, must):
    """Short turns without and with each tool, many times over: what the machine does meanwhile is in both."""
    with jobs.python(target.code.format(file=str(target.file)), interpreter=interpreter) as job, delayed("slowdown", job.pid):
        tools = {"probing": [PROBING, "-t", job.pid, "flamegraph", "-o", where / "x.folded", "-r", hz, "-d", 30]}
        if installed("py-spy", PY_SPY):
            tools["py-spy"] = [PY_SPY, "record", "-p", job.pid, "-o", where / "y.folded", "-f", "raw", "-r", hz, "-d", 30]
        losses, plain = {name: [] for name in tools}, [target.measure(WITHOUT_S)]
        for _ in range(TURNS):
            for name, command in tools.items():
                with_it = under(command, target)
                plain.append(target.measure(WITHOUT_S))
                losses[name].append(target.loss((plain[-2] + plain[-1]) / 2, with_it))
    low, middle, high = statistics.quantiles(plain)
    print(f"    {type(target).__name__.lower()}, {hz} Hz, {TURNS} turns: without, {middle:.2f} {target.unit} (quartiles {low:.2f} {high:.2f})")
    for name, values in losses.items():
        low, middle, high = statistics.quantiles(values)
        text = f"{name} {middle:+.2f}% (quartiles {low:+.2f} {high:+.2f})"
        if name == "probing":
            check(f"slowdown at {hz} Hz", middle < must, f"{text}, must be < {must}%")
        else:
            print(f"    {text}, {middle / max(statistics.median(losses['probing']), 0.01):.0f} x ours")


def row_taken(where, hz, must):
    slow_down(where, Computing(where / "lost"), NEWEST, hz, must)


def row_slowdown(where, hz, must):
    try:
        import torch  # noqa: F401
    except ImportError:
        print("    skipped: torch is not installed")
        return
    slow_down(where, Training(where / "steps"), sys.executable, hz, must)


def row_idle(where):
    with jobs.python(IDLE, interpreter=NEWEST) as job:
        _, cpu, wall = cpu_of_children(lambda: probing(job.pid, where / "a.folded", 100, 8, "--idle"))
        check("idle", cpu / wall < 0.05, f"160 idle threads at 100 Hz: probing takes {100 * cpu / wall:.1f}% of a core, must be < 5%")
        for name, peer in (("py-spy", lambda: py_spy(job.pid, where / "b.folded", 100, 5, "--idle")),
                           ("austin", lambda: austin(job.pid, where / "c.austin", 10000, 5))):
            there, cpu, wall = cpu_of_children(peer)
            if there:
                print(f"    {name} {100 * cpu / wall:.1f}% of a core")


ROWS = {"rate": row_rate, "blocked": row_blocked, "impossible": row_impossible, "bias": row_bias, "tiny": row_tiny,
        "idle": row_idle, "taken100": lambda where: row_taken(where, 100, 0.3), "taken1000": lambda where: row_taken(where, 1000, 1.5),
        "slowdown100": lambda where: row_slowdown(where, 100, 0.3), "slowdown1000": lambda where: row_slowdown(where, 1000, 1.5)}


def run_rows():
    with tempfile.TemporaryDirectory(prefix="probing-bench-") as where:
        for name in sys.argv[1:] or ROWS:
            print(f"{name}: load {os.getloadavg()[0]:.1f}", flush=True)
            ROWS[name](Path(where))
    print("missed: " + "; ".join(missed) if missed else "all bounds held", flush=True)
    return 1 if missed else 0


def main():
    rights = os.environ.get("RIGHTS", "")
    status = run_rows() if rights != "ordinary" else 0
    if os.geteuid() == 0 and rights != "root":
        print("as an ordinary user:", flush=True)
        subprocess.run([*ORDINARY, sys.executable, *sys.argv], env={**os.environ, "RIGHTS": "root"}, check=False)
    return status


if __name__ == "__main__":
    sys.exit(main())
