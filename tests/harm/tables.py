"""The two tables of the harm suite: programs that notice harm, and commands that must do none.

A target's words: {python} is the interpreter, {c} the folder of compiled parts.
"""
import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BODIES = str(HERE / "targets/bodies.py")
TRAINING = str(HERE / "targets/training.py")


@dataclass
class Target:
    name: str
    words: list
    python: bool = True  # Python runs in it: eval and its like work
    modules: tuple = ()  # what it imports: runs with this interpreter only, and skips where one is missing
    since: tuple = (3, 6)  # the oldest CPython it is for
    until: tuple = (3, 99)  # the newest
    preload: tuple = ()  # libraries: the first that is there
    refuses: bool = False  # inject must refuse, in one line
    may_refuse: bool = False  # inject may refuse for the moment
    alone: bool = False  # its verdict depends on the machine's time most
    soak: bool = False  # in the long form only
    cgroup_mb: int = 0  # the memory it may use
    env: dict = field(default_factory=dict)
    tool_prefix: tuple = ()  # what the tool is started with
    gap: float = 0.05  # s: the longest that its heartbeat may wait
    only: tuple = ()  # commands that say something of it; all without
    extra: tuple = ()  # commands that are done to it in any case, undisturbed


def body(name, *words, **options):
    return Target(options.pop("label", "-".join([name, *words])), ["{python}", BODIES, name, *words], **options)


ALLOCATORS = {"jemalloc": ("/usr/lib/{machine}-linux-gnu/libjemalloc.so.2",),
              "tcmalloc": ("/usr/lib/{machine}-linux-gnu/libtcmalloc.so.4",
                           "/usr/lib/{machine}-linux-gnu/libtcmalloc_minimal.so.4")}
SAMPLERS = ("flamegraph", "flamegraph-native", "top", "record", "backtrace-native")
COME_AND_GO = ("inject", "detach") * 10
TORCH_COMES_AND_GOES = ("probes-torch", "track", "query-norms", "eval", "memory-on", "query-objects",
                        "probes-torch-off", "memory-off", "probes-torch", "memory-on", "detach") * 3
ALLOCATIONS = ("memory-on", "eval", "memory-off", "memory-on", "detach")
PROFILED = ("probes-torch", "torch-profile", "eval", "detach")
HOOKS = ("trace", "trace-stop")
PLACES = ("watch", "break-log", "break-stop")

FAILS = ("inject", "catch-quiet", "eval", "catch-stop", "catch-quiet", "detach")

TARGETS = [
    body("prints", env={"PYTHONUNBUFFERED": "1"}, extra=("eval",) * 40),
    body("prints", label="prints-buffered"),
    body("quiet", extra=HOOKS + PLACES),
    body("waits", extra=COME_AND_GO),
    # From 3.12 on os.fork warns where the process has a second thread, and the agent is one: docs/safety.md names it.
    body("forks", env={"PYTHONWARNINGS": "ignore::DeprecationWarning"}, extra=HOOKS + PLACES + ALLOCATIONS),
    # A library that no program has loaded: the child loads it.
    body("forks", "libBrokenLocale.so.1", label="forks-slow-locks", preload=("{c}/slow_locks.so",), gap=0.15,
         since=(3, 8), until=(3, 11), extra=("inject", "eval", "detach") * 5),
    # A round of it needs nine turns of the GIL. While our Python files are compiled, each of them may wait for one file
    # (docs/safety.md).
    body("threads", gap=0.2, extra=HOOKS + ALLOCATIONS),
    body("traces_memory", gap=0.1, extra=("eval",) * 10 + ALLOCATIONS),
    body("span_chains", since=(3, 7), env={"PROBING": "0"}, extra=COME_AND_GO),
    # The first hook has our Python files compiled (docs/safety.md).
    body("odd_arguments", gap=0.2, extra=HOOKS + ("watch-odd", "backtrace-locals")),
    # A thread that fails waits for its scene, and where that is cut off by a detach for up to half a second.
    body("fails", since=(3, 8), gap=1, only=FAILS, extra=FAILS * 3),
    # Each round has three tools one after the other, line by line.
    body("traced_by_others", gap=0.3, extra=(HOOKS + PLACES) * 3 + ("eval", "detach")),
    body("gives_rows", env={"PROBING": "0"},
         extra=("eval", "query-stuck", "query-waits", "query-loud") * 3 + ("detach",)),
    # It starts no agent itself: what comes and goes does so from outside.
    body("records", env={"PROBING": "0"}, extra=COME_AND_GO),
    body("many_threads", "500", label="500-threads"),
    body("many_threads", "5000", label="5000-threads", soak=True),
    body("asyncio_loop", extra=COME_AND_GO),
    body("uvloop_loop", modules=("uvloop",), extra=COME_AND_GO),
    body("greenlets", modules=("greenlet",), extra=ALLOCATIONS),
    body("gevent_loop", modules=("gevent",), extra=("eval-sleeps", "repl", "debug")),
    body("subinterpreters", since=(3, 12), extra=ALLOCATIONS),
    # Watched, its work runs line by line before 3.12, with a handler between many of them.
    body("signals", gap=0.1, extra=("catch", "catch-stop", "catch-quiet", *HOOKS)),
    body("storm", extra=("catch", "catch-quiet", "catch-stop", *HOOKS)),
    body("daemon"),
    body("closes", extra=("eval-prints", "eval")),
    body("closed_stdio"),
    body("few_descriptors", "9", may_refuse=True),
    body("few_descriptors", "40"),
    body("seccomp", "kill", "socket", refuses=True),
    body("seccomp", "kill", "memfd_create", "clone3", refuses=True, soak=True),
    body("seccomp", "kill", "flock", refuses=True, soak=True),
    body("seccomp", "errno", "socket", may_refuse=True),
    # Linux before 6.9 has no other way to an agent than a socket.
    body("seccomp", "errno", "socket", "pidfd_open", refuses=True),
    body("seccomp", "enosys", "clone3"),
    body("seccomp", "errno", "clone3", may_refuse=True, soak=True),
    body("seccomp", "errno", "memfd_create", may_refuse=True, soak=True),
    body("seccomp", "errno", "epoll_create1", "eventfd2", "fallocate", may_refuse=True, soak=True),
    body("has_a_tracer"),
    body("one_cpu", env={"HARM_RAW": "1"}, alone=True, tool_prefix=("taskset", "-c", "0"), only=SAMPLERS,
         extra=SAMPLERS),
    body("locked"),
    body("locals_seen"),
    # Two heaps, so that its own threads do not make more of them in the middle of the run.
    body("allocates", env={"MALLOC_ARENA_MAX": "2"}),
    body("allocates", label="jemalloc", preload=ALLOCATORS["jemalloc"]),
    body("allocates", label="tcmalloc", preload=ALLOCATORS["tcmalloc"]),
    # Each allocation writes a line. Our Python files are compiled with the GIL held, and take as many times longer.
    body("allocates", label="logging-malloc", preload=("{c}/slow_malloc.so",), may_refuse=True, gap=0.15),
    # Each of its threads is made with the GIL held, for milliseconds: while our Python files are compiled its heartbeat
    # loses one turn after the other (docs/safety.md names that).
    body("threads", label="big-tls", preload=("{c}/big_tls.so",), gap=0.2),
    body("loads", "{c}/slow_load.so", label="loads", may_refuse=True),
    body("quiet", label="cgroup-20-mb", cgroup_mb=20),
    Target("loader", ["{python}", TRAINING, "loader"], modules=("torch",), extra=TORCH_COMES_AND_GOES),
    Target("modes", ["{python}", TRAINING, "modes"], modules=("torch",),
           extra=TORCH_COMES_AND_GOES + ("track", "query-norms")),
    # torch warns of the hooks of a module whose arguments need no gradient.
    Target("ways", ["{python}", TRAINING, "ways"], modules=("torch",), gap=0.3, env={"PYTHONWARNINGS": "ignore"},
           extra=TORCH_COMES_AND_GOES),
    Target("ddp", ["{python}", TRAINING, "ddp"], modules=("torch",), extra=TORCH_COMES_AND_GOES),
    Target("ddp-static", ["{python}", TRAINING, "ddp_static"], modules=("torch",), extra=TORCH_COMES_AND_GOES),
    # The last word is the call that the main thread waits in: the one that is borrowed most.
    Target("c-waits-epoll", ["{c}/waits", "50", "0"], python=False, extra=COME_AND_GO),
    Target("c-waits-recv", ["{c}/waits", "50", "2"], python=False, extra=COME_AND_GO),
    Target("c-waits-semtimedop", ["{c}/waits", "50", "5"], python=False, extra=COME_AND_GO),
    Target("c-waits-2-ms", ["{c}/waits", "2", "1"], python=False, extra=("flamegraph-native",)),
    # The other end takes its time, so that the only thread is nearly always in a transfer, and once it does not, so
    # that one is nearly always under way.
    Target("c-transfers-slow", ["{c}/transfers", "300"], python=False, gap=5,
           extra=("inject", "detach") * 5 + ("backtrace-native", "flamegraph-native")),
    Target("c-transfers", ["{c}/transfers", "0"], python=False, gap=1,
           extra=("inject", "detach") * 5 + ("backtrace-native", "flamegraph-native") * 2),
    Target("c-transfers-apart", ["{c}/transfers", "300", "apart"], python=False, gap=5,
           extra=("inject", "detach") * 5 + ("backtrace-native", "flamegraph-native")),
    Target("c-native", ["{c}/native"], python=False),
    Target("c-jemalloc", ["{c}/native"], python=False, preload=ALLOCATORS["jemalloc"], soak=True),
    Target("c-tcmalloc", ["{c}/native"], python=False, preload=ALLOCATORS["tcmalloc"], soak=True),
    Target("c-ring", ["{c}/ring"], python=False, extra=("inject", "detach") * 3
           + ("backtrace-native", "flamegraph-native")),
    Target("c-setxid", ["{c}/setxid"], python=False, extra=("inject", "detach") * 10),
    Target("musl-setxid", ["{c}/musl-setxid"], python=False, extra=("inject", "detach") * 5),
    # As Java and Go do it too: every thread is stopped by a signal, and its stack is read.
    Target("c-collector", ["{c}/collector"], python=False,
           extra=("inject", "detach") * 5 + ("backtrace-native", "flamegraph-native")),
    Target("c-coroutine", ["{c}/coroutine"], python=False, extra=("inject", "detach") * 5),
    # What a thread waits for a CPU counts here: nothing of ours may have its priority.
    body("real_time", env={"HARM_RAW": "1"}, alone=True, only=("inject", "eval", "detach"), extra=("eval-busy",) * 3),
    # torch warns of the last module's output, which is a view there.
    Target("fsdp", ["{python}", TRAINING, "fsdp"], modules=("torch",), env={"PYTHONWARNINGS": "ignore"},
           extra=("probes-torch", "track", "query-norms", "query-objects", "detach") * 2),
    # torch's profiler has a pause of its own at its end (docs/torch.md).
    Target("profiled", ["{python}", TRAINING, "profiled"], modules=("torch",),
           env={"HARM_PROFILES": "20", "KINETO_LOG_LEVEL": "99"}, gap=0.5, only=PROFILED, extra=PROFILED * 2),
]
BY_NAME = {target.name: target for target in TARGETS}


@dataclass
class Command:
    name: str
    words: list  # {out} is a folder for what it writes
    says: str = None  # what it prints of a Python program when nothing disturbs it
    status: tuple = (0,)
    runs_code: bool = False  # a person's Python code takes part in the program meanwhile
    injects: bool = False
    target: bool = True
    script: str = None  # that runs it: a Python file beside this one, which gets the words of the command


COMMANDS = [
    Command("inject", ["inject"], injects=True),
    Command("eval", ["eval", "1+1"], says="2\n", injects=True, runs_code=True),
    Command("eval-prints", ["eval", "any(print(i) for i in range(20000))"],
            says="".join(f"{i}\n" for i in range(20000)) + "False\n", injects=True, runs_code=True),
    Command("eval-raises", ["eval", "1/0"], status=(1,), injects=True, runs_code=True),
    Command("eval-looks", ["eval", "__import__('threading').active_count() > 0"], says="True\n", injects=True,
            runs_code=True),
    Command("repl", ["repl"], injects=True, runs_code=True),
    Command("inspect", ["inspect", "--referrers", "__name__"], injects=True, runs_code=True),
    Command("show", ["show", "__name__"], injects=True, runs_code=True),
    Command("groups", ["groups"], injects=True, runs_code=True),
    Command("groups-raise", ["groups", "--raise", "100ms"], injects=True, runs_code=True),
    Command("continue", ["continue"], injects=True, runs_code=True),
    Command("debug", [], says="2\n", injects=True, runs_code=True, script="debug_session.py"),
    Command("execute", ["execute", "{out}/code.py"], says="11\n", injects=True, runs_code=True),
    Command("backtrace", ["backtrace"]),
    Command("backtrace-locals", ["backtrace", "--locals"]),
    Command("backtrace-native", ["backtrace", "--native"]),
    Command("backtrace-merge", ["backtrace", "--merge"]),
    Command("flamegraph", ["flamegraph", "--duration", "300ms", "-o", "{out}/x.svg"]),
    Command("flamegraph-native", ["flamegraph", "--native", "--rate", "1000", "--duration", "600ms", "-o",
                                  "{out}/x.folded"]),
    Command("top", ["top", "--count", "1", "--interval", "200ms"]),
    Command("record", ["record", "--duration", "300ms"]),
    Command("memory", ["memory"]),
    Command("report", ["report", "-o", "{out}/x.html"]),
    Command("query", ["query", "SELECT count(*) FROM memory_usage"], status=(0, 1)),
    Command("tables", ["tables"], status=(0, 1)),
    Command("config", ["config"]),
    Command("config-set", ["config", "probing.sample_rate=0.05"], injects=True),
    Command("probes", ["probes"], status=(0, 1)),
    Command("probes-start", ["probes", "start", "memory_usage", "interval=50ms"], injects=True),
    Command("probes-torch", ["probes", "start", "torch"], injects=True),
    Command("probes-torch-off", ["probes", "stop", "torch"], status=(0, 1)),
    Command("catch", ["catch"], injects=True, runs_code=True),
    Command("catch-quiet", ["catch", "--no-prompt"], injects=True, runs_code=True),
    Command("catch-stop", ["catch", "--stop"], status=(0, 1), runs_code=True),
    # Not every program has that function.
    Command("trace", ["trace", "kit:work", "--args", "--duration", "300ms"], status=(0, 1), injects=True,
            runs_code=True),
    Command("trace-stop", ["trace", "--stop"], injects=True, runs_code=True),
    Command("watch", ["watch", "result@kit:work", "--duration", "300ms"], status=(0, 1), injects=True, runs_code=True),
    Command("break-log", ["break", "kit.py:101", "--log", "{x}", "--duration", "300ms"], status=(0, 1), injects=True,
            runs_code=True),
    Command("break-stop", ["break", "--stop"], status=(0, 1), injects=True, runs_code=True),
    Command("list", ["list"], target=False),
    Command("doctor", ["doctor"], status=(0, 1)),
    Command("detach", ["detach"], status=(0, 1)),
]
COMMAND = {command.name: command for command in COMMANDS}
# Only where a target asks for it.
COMMAND["eval-busy"] = Command("eval-busy", ["eval", "sum(i * i for i in range(3000000)) > 0"], says="True\n",
                               injects=True, runs_code=True)
# A wait of the event loop that the program has patched in: in a thread of ours.
COMMAND["eval-sleeps"] = Command("eval-sleeps", ["eval", "__import__('time').sleep(0.05)"], says="", injects=True,
                                 runs_code=True)
COMMAND["watch-odd"] = Command("watch-odd", ["watch", "odd@kit:work", "--duration", "300ms"], injects=True,
                               runs_code=True)
COMMAND["memory-on"] = Command("memory-on", ["config", "probing.memory.sampling=on,interval=4KB"], injects=True)
COMMAND["memory-off"] = Command("memory-off", ["config", "probing.memory.sampling=off"], status=(0, 1), injects=True)
COMMAND["query-objects"] = Command("query-objects", ["query", "SELECT count(*) FROM python.tensors JOIN python.modules "
                                                              "USING (device) JOIN python.optimizers USING (device)"],
                                   status=(0, 1), runs_code=True)
COMMAND["torch-profile"] = Command("torch-profile", ["torch", "profile", "--steps", "2", "--within", "5s", "-o",
                                                     "{out}/x.json"], status=(0, 1), injects=True, runs_code=True)
for name, status in (("stuck", (1,)), ("waits", (0, 1)), ("loud", (1,))):
    COMMAND["query-" + name] = Command("query-" + name, ["query", "--timeout", "1", "SELECT * FROM harm." + name],
                                       status=status, runs_code=True)
COMMAND["track"] = Command("track", ["track", "loss@epoch", "lr", "grad_norm"], injects=True)
COMMAND["query-norms"] = Command("query-norms", ["query", "SELECT count(grad_norm) FROM python.modules"], status=(0, 1),
                                 runs_code=True)
# Held, a program does nothing for as long as --limit says, also where the tool that held it was killed.
HELD_SECONDS, GAP_SECONDS = "1s", 10
SWITCHES = [
    Command("pause", ["pause", "--limit", HELD_SECONDS], status=(0, 1), injects=True, runs_code=True),
    Command("pause-all", ["pause", "--all", "--limit", HELD_SECONDS], status=(0, 1), injects=True, runs_code=True),
    Command("pause-continue", ["pause", "--continue"], status=(0, 1), runs_code=True),
    Command("break-holds", ["break", "kit.py:101", "--no-listen", "--limit", HELD_SECONDS], status=(0, 1), injects=True,
            runs_code=True),
    Command("break-on-change", ["break", "--on-change", "total@kit:work", "--log", "{total}"], status=(0, 1),
            injects=True, runs_code=True),
    Command("trace-on", ["trace", "kit:work", "--args"], status=(0, 1), injects=True, runs_code=True),
    Command("watch-on", ["watch", "result@kit:work"], status=(0, 1), injects=True, runs_code=True),
    Command("watch-stop", ["watch", "--stop"], status=(0, 1), injects=True, runs_code=True),
    Command("probes-stop", ["probes", "stop", "memory_usage"], status=(0, 1)),
    Command("config-memory", ["config", "probing.max_memory=64MB"], injects=True),
    COMMAND["memory-on"], COMMAND["memory-off"], COMMAND["query-objects"],
]
DISTURBANCES = ["none", "kill", "stop", "reader"]


def why_not(target, version):
    """Why a target cannot run here, or nothing."""
    missing = [name for name in target.modules if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed: scripts/setup.sh test"
    if target.python and version[:2] > target.until:
        return f"CPython {'.'.join(map(str, target.until))} at most: later ones do not have the fault"
    if target.python and version < target.since:
        return f"CPython {'.'.join(map(str, target.since))} or later is needed"
    return ""


def interpreters_for(target, found):
    """Which of the interpreters found a target runs with. found: {path: version}."""
    if not target.python or target.modules:
        return {sys.executable: sys.version_info[:3]}
    return {path: version for path, version in found.items() if target.since <= version and version[:2] <= target.until}
