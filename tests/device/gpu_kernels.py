"""gpu profile against torch.profiler: the same kernels, its cost in blocks, losses bit for bit, and no harm. With
TORCH_PROBE=1 cost and harm alone, while the torch probe records."""
import collections
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback

from checks import PROGRAM, check, probing, rows, verdict

HERE = os.path.dirname(os.path.abspath(__file__))
QUICK = bool(os.environ.get("STAND_IN"))  # to try this script itself
STEPS = 10
REST = 1.3  # a recording waits for a second after the last
began = time.time()


class Job:

    def __init__(self):
        self.errors = open(f"/tmp/gpu-kernels-errors-{os.getpid()}-{id(self)}", "w+")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "gpu_kernels_job.py")],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        stderr=self.errors,
                                        universal_newlines=True)
        self.pid = self.process.pid

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the job has ended: " + self.said()[-2000:])
        return json.loads(line)

    def tell(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def ask(self, *words):
        self.tell(*words)
        return self.answer()

    def said(self):
        self.errors.seek(0)
        return self.errors.read()


def profile(job, seconds):
    return subprocess.Popen([PROGRAM, "-t", str(job.pid), "gpu", "profile", "--seconds", str(seconds)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def begin(job, ms):
    """A recording that nobody waits for."""
    return subprocess.run([PROGRAM, "-t", str(job.pid), "probes", "start", "gpu_profile", f"for={ms}ms"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True)


def is_on(job):
    done = subprocess.run([PROGRAM, "-t", str(job.pid), "probes", "--json"], stdout=subprocess.PIPE,
                          universal_newlines=True)
    return any(row["name"] == "gpu_profile" and row["state"] == "on" for row in json.loads(done.stdout or "[]"))


def wait_off(job):
    until = time.time() + 15
    while is_on(job) and time.time() < until:
        time.sleep(0.05)


def last(job):
    return rows(job.pid, "SELECT epoch(timestamp) AS begun, * FROM gpu.profiles ORDER BY timestamp DESC LIMIT 1")[0]


def recorded(job):
    """What gpu profile finds in STEPS steps, with nothing on the GPU before and after."""
    tool = profile(job, 3)
    time.sleep(1)
    times = job.ask("mixed", STEPS)
    out, err = tool.communicate(timeout=30)
    check("gpu profile ends well", tool.returncode == 0 and not err, err[-300:])
    print(out)
    begun = last(job)["begun"] - 0.001
    kernels = rows(job.pid, f"SELECT name, duration_us, epoch(timestamp) AS t FROM gpu.kernels WHERE epoch(timestamp) "
                   f">= {begun}")
    copies = rows(job.pid, f"SELECT count(*) AS n FROM gpu.copies WHERE epoch(timestamp) >= {begun}")[0]["n"]
    return times, kernels, copies, last(job)


def compare(what, ours, theirs):
    """Of lists of (name, us)."""
    a, b = collections.Counter(name for name, _ in ours), collections.Counter(name for name, _ in theirs)
    missing = sum((b - a).values())
    check(f"{what}: kernels that torch.profiler has", missing <= len(theirs) / 1000,
          f"{len(theirs) - missing} of {len(theirs)}, of {len(b)} names; ours {len(ours)}, only ours "
          f"{sum((a - b).values())}; missing {list((b - a).items())[:3]}, only ours {list((a - b).items())[:3]}")
    medians = {}
    for which, each in ((0, ours), (1, theirs)):
        times = collections.defaultdict(list)
        for name, us in each:
            times[name].append(us)
        for name, us in times.items():
            medians.setdefault(name, [None, None])[which] = statistics.median(us)
    far = [(name[:60], x, y) for name, (x, y) in medians.items()
           if x is not None and y is not None and abs(x - y) > max(1, y * 0.02)]
    total = [sum(us for _, us in each) for each in (ours, theirs)]
    check(f"{what}: median of a kernel within 1 us or 2%", len(far) <= len(medians) / 20,
          f"{len(medians) - len(far)} of {len(medians)}; sums {total[0]:.0f} and {total[1]:.0f} us; far {far[:4]}")


def correctness(job):
    times, kernels, copies, row = recorded(job)
    check("none was lost or unfinished", row["lost"] == 0 and row["unfinished"] == 0, row)
    if kernels:
        early, late = min(k["t"] for k in kernels) - times["begun"], max(k["t"] for k in kernels) - times["ended"]
        check("kernels lie between the first launch and the last wait", early > -0.002 and late < 0.002,
              f"first {early * 1e3:+.3f} ms after, last {late * 1e3:+.3f} ms after")
    job.tell("profiled", STEPS)
    time.sleep(0.4)
    tool = profile(job, 0.1)
    refused = tool.communicate(timeout=30)[1]
    theirs = job.answer()
    check("beside torch.profiler it is refused", "torch.profiler is recording" in refused, refused.strip()[-200:])
    compare("first", [(k["name"], k["duration_us"]) for k in kernels], theirs["kernels"])
    check("copies and sets", copies == theirs["copies"], f"{copies}, torch.profiler {theirs['copies']}")
    _, kernels, copies, row = recorded(job)
    compare("after torch.profiler", [(k["name"], k["duration_us"]) for k in kernels], theirs["kernels"])
    check("copies and sets, after", copies == theirs["copies"], copies)
    before = job.said()
    again = job.ask("profiled", STEPS)
    compare("torch.profiler after ours", again["kernels"], theirs["kernels"])
    tool = profile(job, 6)
    time.sleep(0.5)
    within = job.ask("profiled", STEPS)
    says = tool.communicate(timeout=40)[1]
    compare("torch.profiler begun within ours", within["kernels"], theirs["kernels"])
    check("then ours says why it ended", "took CUPTI over" in says, says.strip()[-200:])
    print("     stderr of the job meanwhile:", job.said()[len(before):][-800:].strip())


def cost(job, kind, on_s, n):
    """Blocks with and without, one after the other: the median step of each block on, against its neighbours off."""
    answer = []
    reader = threading.Thread(target=lambda: answer.append(job.ask("pace", kind, (2 * on_s + REST) * n + on_s)))
    reader.start()
    time.sleep(on_s / 2)
    windows = []
    for _ in range(n):
        started = time.time()
        done = begin(job, int(on_s * 1000))
        if done.returncode:
            check(f"cost, {kind}", False, done.stderr)
        time.sleep(max(0, 2 * on_s + REST - (time.time() - started)))
    reader.join()
    for row in rows(job.pid, "SELECT epoch(timestamp) AS t, duration_ms, kernels, lost FROM gpu.profiles "
                    f"ORDER BY timestamp DESC LIMIT {n}")[::-1]:
        windows.append((row["t"], row["t"] + row["duration_ms"] / 1e3, row["kernels"], row["lost"]))
    steps = answer[0]
    blocks = []
    edges = [steps[0][0]] + [edge for w in windows for edge in w[:2]] + [steps[-1][0]]
    for i, (start, end) in enumerate(zip(edges, edges[1:])):
        inside = [took for ended, took in steps if ended - took > start + 0.05 and ended < end - 0.05]
        blocks.append((i % 2 == 1, statistics.median(inside) if len(inside) > 4 else None, len(inside)))
    ratios, apart = [], []
    for i in range(1, len(blocks) - 1):
        before, here, after = (blocks[i + k][1] for k in (-1, 0, 1))
        if blocks[i][0] and None not in (before, here, after):
            ratios.append(100 * (here / ((before + after) / 2) - 1))
            apart.append(100 * abs(before / after - 1))
    middle = statistics.median([b[1] for b in blocks if b[1]]) * 1e3 if ratios else 0
    most = 1 if kind == "big" else 5
    check(f"cost, {kind}: a step of {middle:.2f} ms", bool(ratios) and statistics.median(ratios) <= most,
          f"median {statistics.median(ratios or [0]):+.2f}% of {len(ratios)} blocks "
          f"{[round(r, 2) for r in ratios]}; blocks off differ by {statistics.median(apart or [0]):.2f}%; kernels "
          f"{[w[2] for w in windows][:4]}, lost {sum(w[3] for w in windows)}")
    wait_off(job)


def killed(job):
    answer = []
    reader = threading.Thread(target=lambda: answer.append(job.ask("pace", "small", 5)))
    reader.start()
    tool = profile(job, 1.5)
    time.sleep(0.8)
    tool.send_signal(signal.SIGKILL)
    tool.communicate()
    wait_off(job)
    row = last(job)
    count = rows(job.pid, "SELECT count(*) AS n FROM gpu.kernels")[0]["n"]
    time.sleep(0.7)
    later = rows(job.pid, "SELECT count(*) AS n FROM gpu.kernels")[0]["n"]
    check("the tool is killed: the recording ends by itself", row["kernels"] > 0 and count == later,
          f"{row['kernels']} kernels in {row['duration_ms']:.0f} ms; {later - count} more after its end")
    reader.join()


def harm(job):
    n = 40 if QUICK else 250
    quiet = job.ask("losses", n)
    quiet_again = job.ask("losses", n)
    before, stop, counts = job.ask("state"), threading.Event(), [0, 0]

    def windows():
        while not stop.is_set():
            done = begin(job, 20 + counts[0] * 7 % 60)
            counts[done.returncode != 0] += 1
            time.sleep(0.005)

    thread = threading.Thread(target=windows)
    thread.start()
    loud = []
    until = time.time() + (2 if QUICK else 12)
    while not loud or time.time() < until:
        loud.append(job.ask("losses", n))
    stop.set()
    thread.join()
    wait_off(job)
    after = job.ask("state")
    same = [each["losses"] == quiet["losses"] for each in loud]
    check("losses bit for bit, graphs captured and children forked beside", all(same) and quiet == quiet_again,
          f"{sum(same)} of {len(same)} trainings of {n} steps; without any: {quiet == quiet_again}")
    check("children", not any(sum(each["children"]) for each in loud),
          f"{len(loud) * len(quiet['children'])} ended well")
    made = rows(job.pid, "SELECT count(*) AS n, count(*) FILTER (why IS NULL) AS well, any_value(why) AS why, "
                "sum(lost) AS lost, sum(unfinished) AS unfinished FROM gpu.profiles")[0]
    check("recordings meanwhile", made["well"] > 5,
          f"started {counts[0]}, refused while one ran {counts[1]}; rows {made}")
    new = collections.Counter(after["threads"]) - collections.Counter(before["threads"])
    check("no thread, no mappings, no memory stay", not new and after["maps"] - before["maps"] < 60,
          f"threads {dict(new)}; mappings {before['maps']} -> {after['maps']}; mapped {before['mapped_mb']} -> "
          f"{after['mapped_mb']} MB; resident {before['resident_mb']} -> {after['resident_mb']} MB")


def ends(jobs):
    wanted = {"quietly": 0, "at-once": 3, "raise": 1, "busy": 0, "term": -15}
    seen = {}
    for job in jobs:
        job.answer()
    for how, job in zip(wanted, jobs):
        tool = profile(job, 8)
        time.sleep(1.2)
        if how == "term":
            job.tell("mixed", 1000)
            job.process.terminate()
        else:
            job.tell("mixed", 5)
            job.tell("exit", how)
        try:
            status = job.process.wait(30)
        except subprocess.TimeoutExpired:
            status = "hangs"
            job.process.kill()
        err = tool.communicate(timeout=40)[1]
        seen[how] = (status, tool.returncode, err.strip()[-80:])
    check("a job that ends within a recording ends as ever",
          all(seen[how][0] == code for how, code in wanted.items()), seen)
    for job in jobs:
        if "terminate called" in job.said() or "Segmentation" in job.said() or "CUPTI" in job.said():
            check("it says nothing new", False, job.said()[-500:])


def attempt(what, *words):
    try:
        what(*words)
    except Exception:  # the others are asked all the same
        check(what.__name__, False, traceback.format_exc()[-1500:])
    print(f"     {what.__name__}: at {time.time() - began:.0f} s", flush=True)


def paces(job, seconds):
    return {kind: statistics.median(took for _, took in job.ask("pace", kind, seconds)) for kind in ("big", "small")}


def compare_paces(what, before, after):
    check(what, after["big"] < before["big"] * 1.02 and after["small"] < before["small"] * 1.05,
          {kind: f"{before[kind] * 1e3:.3f} -> {after[kind] * 1e3:.3f} ms" for kind in before})


def clean():
    """The cost in a job that never used torch.profiler, and what stays of it."""
    job, seconds = Job(), 1 if QUICK else 3
    job.answer()
    print(f"     ready at {time.time() - began:.0f} s", flush=True)
    paces(job, seconds)  # it gets slower by itself at first
    bare = paces(job, seconds)
    compare_paces("steps with nothing, twice", bare, paces(job, seconds))
    probing("-t", job.pid, "inject")
    if os.environ.get("TORCH_PROBE"):
        probing("-t", job.pid, "config", "probing.torch.profiling=on")
    compare_paces("steps with the agent in it", bare, paces(job, seconds))
    begin(job, 50)
    wait_off(job)
    compare_paces("steps after one recording", bare, paces(job, seconds))
    attempt(cost, job, "big", 0.6 if QUICK else 0.8, 2 if QUICK else 10)
    attempt(cost, job, "small", 0.6 if QUICK else 0.6, 2 if QUICK else 14)
    attempt(killed, job)
    compare_paces("steps after all recordings", bare, paces(job, seconds))
    if os.environ.get("TORCH_PROBE"):
        attempt(harm, job)
        print(rows(job.pid, "SELECT count(*) AS marks, count(DISTINCT recording) AS recordings FROM gpu.marks"))
    job.process.stdin.close()
    check("the job ends well", job.process.wait(30) == 0, job.process.returncode)


def with_profiler():
    """Beside and after torch.profiler, and harm."""
    job, seconds = Job(), 1 if QUICK else 3
    job.answer()
    bare = paces(job, seconds)
    job.ask("profiled", 2)
    compare_paces("steps after torch.profiler alone", bare, paces(job, seconds))
    probing("-t", job.pid, "inject")
    injected = job.ask("state")
    attempt(correctness, job)
    attempt(harm, job)
    wait_off(job)
    compare_paces("steps after all that, against those before anything", bare, paces(job, seconds))
    left = job.ask("state")
    more = collections.Counter(left["threads"]) - collections.Counter(injected["threads"])
    print("     threads that CUPTI keeps:", dict(more), "mappings", injected["maps"], "->", left["maps"])
    print("     stderr of the job:", job.said()[-1500:])
    job.process.stdin.close()
    check("the job ends well", job.process.wait(30) == 0, job.process.returncode)


def main():
    attempt(clean)
    if not os.environ.get("TORCH_PROBE"):
        attempt(with_profiler)
    if not os.environ.get("TORCH_PROBE") and time.time() - began < 180:
        attempt(ends, [Job() for _ in range(5)])
    return verdict()


sys.exit(main())
