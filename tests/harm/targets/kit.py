"""What a target of the harm suite checks of itself. CPython 3.6 and later, standard library only.

    while kit.going():      # at this point the program has nothing under way: no child, no thread, no open file of a
    round
        kit.work()          # the same computation each time
        kit.say()           # the next line of output, which the runner knows too

The first rounds run before the program is probed, and show what is usual. Then going() waits until the
runner has looked (folder REPORT.ready, answered by REPORT.go), rounds go on until there is REPORT.stop, and the
findings are written to REPORT, where the program waits for REPORT.end.

Lines of the report, with tabs between: `complaint TIME TEXT`, `gap START SECONDS`, `late CALL START SECONDS`, `calm GAP LATE` (the worst of both before anybody probed), `rounds N`. Times are of CLOCK_MONOTONIC, less what the thread waited for a CPU: that is the machine's, not a probe's.
"""
import atexit
import errno
import os
import resource
import signal
import sys
import threading
import time
import zlib

REPORT = os.environ.get("HARM_REPORT", "")  # none where the runner imports this
CALM_SECONDS = float(os.environ.get("HARM_CALM", "0.3"))
PROFILES = int(os.environ.get("HARM_PROFILES", "0"))  # each leaves an empty place among the functions of atexit
RAW = bool(os.environ.get("HARM_RAW"))  # the wait for a CPU counts too: a probe may not take the only one
SLOW = int(os.environ.get("PROBING_SLOW", 1))  # times slower than a machine of today
LONGEST = 1800  # seconds: the runner is gone then
NOTED = 0.010  # gaps from here on are worth a line

lines = []
complaints = {}
rounds = said = 0
began = ready_at = last = last_delay = sum_of_work = before = None
calm = calm_late = 0.0

if "TSAN_OPTIONS" in os.environ:  # ThreadSanitizer has a thread of its own from the program's first on
    first = threading.Thread(target=int)
    first.start()
    first.join()


def complain(text):
    """Each once: when it was first, and how often."""
    first, n = complaints.get(text, (time.monotonic(), 0))
    complaints[text] = first, n + 1


def run_delay():
    """Seconds for which this thread could have run and had no CPU."""
    if RAW:
        return 0.0
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 100).split()[1]) * 1e-9
    finally:
        os.close(fd)


def beat():
    global last, last_delay, calm
    now, delay = time.monotonic(), run_delay()
    if last is not None:
        gap = now - last - (delay - last_delay)
        if ready_at is None:
            calm = max(calm, gap)
        elif gap > NOTED:
            lines.append("gap\t%f\t%f" % (last, gap))
    last, last_delay = now, delay


class timed:
    """A wait of so many seconds: never early; how much later it was is for the runner to judge."""

    def __init__(self, call, seconds):
        self.call, self.seconds = call, seconds

    def __enter__(self):
        self.delay, self.start = run_delay(), time.monotonic()

    def __exit__(self, *_):
        global calm_late
        took = time.monotonic() - self.start
        if took < self.seconds - 0.001:
            complain("%s ended early" % self.call)
        late = took - self.seconds - (run_delay() - self.delay)
        if ready_at is None:
            calm_late = max(calm_late, late)
        elif late > NOTED:
            lines.append("late\t%s\t%f\t%f" % (self.call, self.start, late))


def work(size=1500, odd=None):
    """A computation whose result is known: its first one. odd: an argument for those that look at arguments."""
    global sum_of_work
    x, total = 0.5, 0
    for i in range(size):
        x = 3.9 * x * (1.0 - x)
        total = (total * 31 + int(x * 1e9)) & 0xFFFFFFFF
    result = (size, total, x)
    if sum_of_work is None:
        sum_of_work = result
    elif size == sum_of_work[0] and result != sum_of_work:
        complain("a computation gave another result")
    return total


def line(number):
    return "step %d %08x" % (number, zlib.crc32(b"%d" % number))


def say():
    global said
    print(line(said))
    said += 1


def is_standard(name):
    """Of the standard library: which an eval may have imported, and which stays."""
    module = sys.modules.get(name)
    path = getattr(getattr(module, "__spec__", None), "origin", None) or "built-in"
    return path in ("built-in",
                    "frozen") or path.startswith(os.path.dirname(os.__file__)) and "site-packages" not in path


def state():
    """What a program can see of its interpreter. Ids stand for objects that live all the time."""
    import builtins
    import gc
    import warnings
    return {
        "sys.stdout": (id(sys.stdout), type(sys.stdout).__name__),
        "sys.stderr": (id(sys.stderr), type(sys.stderr).__name__),
        "sys.stdin": id(sys.stdin), "sys.displayhook": id(sys.displayhook), "sys.excepthook": id(sys.excepthook),
        "sys.modules": sorted(name for name in sys.modules if not is_standard(name)), "sys.path": list(sys.path),
        "sys.meta_path": len(sys.meta_path),
        "threads": sorted(thread.name for thread in threading.enumerate()), "main thread": id(threading.main_thread()),
        "builtins": sorted(vars(builtins)), "__main__": sorted(set(vars(sys.modules["__main__"]))
                                                               - {"__warningregistry__"}),
        "trace": (sys.gettrace(), sys.getprofile()), "switch interval": sys.getswitchinterval(),
        "recursion limit": sys.getrecursionlimit(), "gc": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "warnings": len(warnings.filters), "atexit": atexit._ncallbacks(), "environment": sorted(os.environ.items()),
        "handlers": [str(signal.getsignal(n)) for n in range(1, 32)], "wakeup": wakeup_fd(),
        "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_STACK,
                                                   resource.RLIMIT_CORE)],
        "directory": os.getcwd(), "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    }


def wakeup_fd():
    if threading.current_thread() is not threading.main_thread():
        return None
    fd = signal.set_wakeup_fd(-1)
    if fd != -1:
        signal.set_wakeup_fd(fd)
    return fd


def compare(old, new):
    for key in sorted(old):
        # ours, once and a profile: docs/safety.md
        if old[key] == new[key] or key == "atexit" and old[key] < new[key] <= old[key] + 1 + PROFILES:
            continue
        if isinstance(old[key], list) and all(isinstance(item, str) for item in old[key] + new[key]):
            complain("%s: more %s, less %s" % (key, [x for x in new[key] if x not in old[key]],
                                               [x for x in old[key] if x not in new[key]]))
        else:
            complain("%s: %s became %s" % (key, old[key], new[key]))


def is_import(link):
    """A module that code of an eval imports just now: read by Python itself, in the program's name (docs/safety.md)."""
    return link.startswith(os.path.dirname(os.__file__))


def touch(path):
    os.mkdir(path)  # a file would be open for a moment, in which the runner may look at our descriptors


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.002)


def going():
    global began, ready_at, last, before, rounds
    beat()
    rounds += 1
    now = time.monotonic()
    if began is None:
        began = now
    if now - began > LONGEST:
        os._exit(98)
    if ready_at is None and now - began > CALM_SECONDS:
        before = state()
        sys.stdout and sys.stdout.flush()
        touch(REPORT + ".ready")
        wait_for(REPORT + ".go")
        ready_at, last, rounds = time.monotonic(), None, 0
    elif ready_at is not None and os.path.exists(REPORT + ".stop"):
        compare(before, state())
        finish()
        return False
    return True


def finish():
    sys.stdout and sys.stdout.flush()
    out = ["complaint\t%f\t%s%s" % (first, text, " (%d times)" % n if n > 1 else "")
           for text, (first, n) in complaints.items()]
    out += lines[:2000] + ["calm\t%f\t%f" % (calm, calm_late), "rounds\t%d" % rounds, "said\t%d" % said]
    with open(REPORT + ".new", "w") as file:
        file.write("\n".join(out) + "\n")
    os.rename(REPORT + ".new", REPORT)
    wait_for(REPORT + ".end")


def descriptors():
    """{number: what it is}; without the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError as e:
            if e.errno != errno.ENOENT:
                raise
    return found
