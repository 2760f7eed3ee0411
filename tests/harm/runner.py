"""Runs a target, does commands to it, with the tool killed, stopped or its reader gone, and reports the harm done.

The program reports what it notices itself (targets/kit.py); what can be seen from outside (descriptors, threads, maps,
memory, signal masks) is compared here, at two moments at which the program does nothing. Times are compared with those
of a control process that is not probed and runs at the same time.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from tables import COMMAND, COMMANDS, DISTURBANCES

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.path.insert(0, str(HERE / "targets"))
SOAK = bool(os.environ.get("PROBING_SOAK"))
PROGRAM = os.environ.get("PROBING_PROGRAM", str(TOP / "build/release/bin/probing"))
SEED = int(os.environ.get("HARM_SEED", "1"))
SLOW = int(os.environ.get("PROBING_SLOW", 1))  # times slower than a machine of today: an emulated one (docs/arm64.md)
LATE = 0.010 * SLOW
CODE_LATE = 0.010 * SLOW  # code that a person runs in the program takes its turns: two switch intervals of CPython
READY_SECONDS, TOOL_SECONDS, END_SECONDS = 60 * SLOW, 15 * SLOW, 10 * SLOW
SLOW_SECONDS = 9 * SLOW  # for a tool whose own limit is ten: it had no answer
# What glibc reserved for threads of ours and gives to the next ones of the program (docs/safety.md): stacks in its
# cache, of at most 40 MB, and heaps of 64 MB. Killed tools leave evals beside evals, and the torch probe's thread comes
# beside them, so these may be six. The agent's code, Python's modules and the parts of heaps in use come on top of the
# stacks. On a slow machine more of them are there at once.
GROWTH_KB = {key: megabytes * 1024 * (2 if SLOW > 1 else 1)
             for key, megabytes in {"VmSize": 6 * 64 + 40, "accessible": 40 + 8, "VmRSS": 10}.items()}
# The agent's code, and the libraries that it names: glibc's stand-ins since 2.34.
STAYS_MAPPED = ("probing", "/libdl.so", "/libpthread.so", "/librt.so", "/libgcc_s.so", "/libubsan.so", "/libstdc++.so")
GLIBC_SIGNALS = 3 << 31  # 32 and 33: glibc's own, which it handles from the first thread on and no program can see
SANITIZERS = {"asan": {"ASAN_OPTIONS": "detect_leaks=0:log_path={out}/sanitizer:alloc_dealloc_mismatch=0",
                       "UBSAN_OPTIONS": "log_path={out}/sanitizer:print_stacktrace=1"},
              "tsan": {"TSAN_OPTIONS": "log_path={out}/sanitizer:ignore_noninstrumented_modules=1:"
                                       "report_signal_unsafe=0:die_after_fork=0:exitcode=0:report_thread_leaks=0"}}
MUSL_PROGRAMS = ("setxid",)
LIBRARIES = ("slow_malloc", "slow_locks", "big_tls", "slow_load")
PROGRAMS = ("waits", "native", "ring", "coroutine", "setxid", "collector", "transfers")


def compile_parts(where):
    flags = ["-std=gnu17", "-D_GNU_SOURCE", "-O2", "-g", "-pthread", "-Wall", "-Werror"]
    for name in LIBRARIES:
        subprocess.run(["gcc", *flags, "-fPIC", "-shared", HERE / f"targets/{name}.c", "-o", f"{where}/{name}.so"],
                       check=True)
    for name in PROGRAMS:
        # Symbols are bound at the start: the loader's own way to do it later takes more than a coroutine's stack has.
        subprocess.run(["gcc", *flags, "-Wl,-z,now", HERE / f"targets/{name}.c", "-o", f"{where}/{name}"], check=True)
    for name in MUSL_PROGRAMS:
        subprocess.run(["musl-gcc", *flags, HERE / f"targets/{name}.c", "-o", f"{where}/musl-{name}"], check=True)


def installation(preset, where):
    """The tools of the release with the agent of another build beside them. Returns the program."""
    to, agents = Path(where) / preset, TOP / f"build/{preset}/lib/probing"
    assert (agents / "libprobing-glibc.so").exists(), f"{agents} is not there: scripts/build.sh {preset} agent-glibc"
    if not to.exists():
        shutil.copytree(Path(PROGRAM).parent, to / "bin", symlinks=True)
        (to / "lib").mkdir()
        (to / "lib/probing").symlink_to(agents)
    return str(to / "bin/probing")


def runtime(name):
    """A sanitizer's library of the compiler, to be preloaded."""
    return subprocess.run(["gcc", f"-print-file-name={name}"], stdout=subprocess.PIPE, check=True,
                          universal_newlines=True).stdout.strip()


CONTROL = r"""
import os, sys, time
sys.stdout.reconfigure(line_buffering=True)
def delay(fd=os.open("/proc/thread-self/schedstat", os.O_RDONLY)):
    return int(os.pread(fd, 100, 0).split()[1]) * 1e-9
last, waited = time.monotonic(), delay()
while os.getppid() != 1:
    time.sleep(0.002)
    now, w = time.monotonic(), delay()
    if now - last - (w - waited) > 0.008:
        print(last, now - last - (w - waited))
    last, waited = now, w
"""


class Control:
    """A process that is not probed: its pauses are caused by the machine."""

    def __init__(self, where):
        self.log = Path(where) / "control"
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([sys.executable, "-c", CONTROL], stdout=out)

    def gaps(self):
        return [tuple(map(float, line.split())) for line in self.log.read_text().splitlines() if line.count(" ") == 1]

    def end(self):
        self.process.kill()
        self.process.wait()


def overlap(spans, start, length, margin=0.05):
    return sum(n for at, n in spans if at < start + length + margin and at + n > start - margin)


def kilobytes(line):
    start, _, end = line.split()[0].partition("-")
    return (int(end, 16) - int(start, 16)) // 1024


def threads_of(pid):
    """Their names, without the kernel's workers for io_uring, which come and go."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it ended meanwhile
            names.append(Path(task, "comm").read_text().strip())
    return sorted(name for name in names if not name.startswith("iou-wrk-"))


def outside(pid):
    """What the kernel knows of a process that does nothing just now."""
    status = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        status[key] = value.strip()
    fds = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, as that of the file which says that it is ready
            fds[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    maps = {" ".join(line.split()[5:]) for line in open(f"/proc/{pid}/maps")}
    seen = {"fds": fds, "maps": maps, "threads": threads_of(pid)}
    for key in ("SigBlk", "SigIgn", "TracerPid", "Seccomp", "NoNewPrivs", "CoreDumping", "Umask", "Cpus_allowed"):
        seen[key] = status.get(key)
    seen["SigCgt"] = f"{int(status['SigCgt'], 16) & ~GLIBC_SIGNALS:x}"
    for name in ("limits", "oom_score_adj", "timerslack_ns", "coredump_filter", "comm", "environ", "cmdline"):
        try:
            seen[name] = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError:
            pass
    sizes = {key: int(status[key].split()[0]) for key in ("VmSize", "VmRSS")}
    sizes["accessible"] = sum(kilobytes(line) for line in open(f"/proc/{pid}/maps") if " ---p " not in line)
    return seen, sizes


def compare(before, after, limits):
    """Sentences on the differences."""
    (old, old_kb), (new, new_kb) = before, after
    for fd in sorted(set(old["fds"]) | set(new["fds"])):
        a, b = old["fds"].get(fd), new["fds"].get(fd)
        if a != b:
            yield f"descriptor {fd} was {a or 'closed'} and is {b or 'closed'}"
    strange = [name for name in new["maps"] - old["maps"] if name and not any(part in name for part in STAYS_MAPPED)]
    if strange:
        yield f"mapped after detach: {', '.join(sorted(strange))}"
    for key in sorted(set(old) - {"fds", "maps"}):
        if old[key] != new.get(key):
            yield f"{key} was {old[key]} and is {new.get(key)}"
    for key, limit in limits.items():
        if new_kb[key] - old_kb[key] > limit:
            yield f"{key} grew by {(new_kb[key] - old_kb[key]) // 1024} MB"


def confirmed(make, plan):
    """The harms of a case. What depends on time must show in each of three runs: another process may have had the CPU.
    So must memory in use: on a slow machine evals of killed tools pile up, and each has a heap of its own."""
    for _ in range(3):
        harms = make().run(plan)
        if not harms or not all(re.search(r"no heartbeat for|ms late, during|of the usual work|^VmRSS grew", text)
                                for text in harms):
            break
    return harms


class Case:
    """One run of a target. Sentences on harm are collected in `harms`."""

    def __init__(self, target, python, where, control=None, seed=SEED, env=None, preload=(), prefix=(), timing=True,
                 program=PROGRAM):
        self.target, self.where, self.control, self.timing, self.program = target, Path(where), control, timing, program
        self.rng = random.Random(f"{seed} {target.name} {python}")
        self.python, self.preload, self.prefix = python, list(preload), prefix
        self.dir = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=where))
        (self.dir / "code.py").write_text("# a comment\nprint(4 + 7)\n")
        self.env = {key: self.fill(value) for key, value in (env or {}).items()}
        self.report = str(self.dir / "report")
        self.harms, self.stops, self.log = [], [], []
        self.process = self.label = None

    def fill(self, word):
        for name, value in (("{python}", self.python), ("{c}", self.where), ("{out}", self.dir),
                            ("{machine}", os.uname().machine)):
            word = word.replace(name, str(value))
        return word

    def find_preload(self):
        found = [path for path in map(self.fill, self.target.preload) if os.path.exists(path)]
        return found[:1]

    def start(self):
        env = {**os.environ, **self.target.env, **self.env, "HARM_REPORT": self.report}
        preload = self.preload + self.find_preload()
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        words = [*self.prefix, *(self.fill(word) for word in self.target.words)]
        if self.target.alone and self.target.tool_prefix:
            words = [*self.target.tool_prefix, *words]
        if self.target.cgroup_mb:
            words = ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.cgroup / "cgroup.procs"), *words]
        self.stdout, self.stderr = open(self.dir / "stdout", "wb"), open(self.dir / "stderr", "wb")
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.stdout, stderr=self.stderr,
                                        env=env, start_new_session=True)
        self.pid = self.process.pid
        self.wait_for_file(".ready", READY_SECONDS)
        if os.path.exists(self.report + ".pid"):
            self.pid = int(Path(self.report + ".pid").read_text())
        self.pids = [self.pid]
        if os.path.exists(self.report + ".also"):
            self.pids.append(int(Path(self.report + ".also").read_text()))

    def wait_for_file(self, name, seconds):
        end = time.monotonic() + seconds
        while not os.path.exists(self.report + name):
            if not self.alive():
                raise Ended(f"the program ended with {self.describe_end()}")
            if time.monotonic() > end:
                raise Ended(f"the program hangs: {self.where_it_waits()}")
            time.sleep(0.005)

    def alive(self):
        if os.path.exists(self.report + ".pid"):
            try:
                pid = int(Path(self.report + ".pid").read_text())
                return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            except OSError:
                return False
        return self.process.poll() is None

    def describe_end(self):
        status = self.process.poll()
        return f"{signal.Signals(-status).name if status and status < 0 else status}; {self.tail('stderr')}"

    def tail(self, name):
        return (self.dir / name).read_text(errors="replace")[-1500:].strip()

    def where_it_waits(self):
        places = []
        for task in sorted(Path(f"/proc/{self.pid}/task").glob("*")):
            try:
                places.append(f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text()} "
                              f"({(task / 'syscall').read_text().split()[0]})")
            except OSError:
                pass
        return ", ".join(places[:6])

    def tool(self, command, disturbance="none", pid=None):
        """Runs one command and judges the tool itself. Returns whether it did what it should."""
        to = ["-t", str(pid or self.pid)] if command.target else []
        by = [sys.executable, str(Path(__file__).resolve().parent / command.script)] if command.script else []
        words = [*self.target.tool_prefix, *by, self.program, *to, *map(self.fill, command.words)]
        began = time.monotonic()
        env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        env.update({key: value for key, value in self.env.items() if key.startswith("PROBING")})
        tool = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=env)
        try:
            out, err = self.disturb(tool, disturbance)
        except subprocess.TimeoutExpired:
            raise Ended(f"{command.name} ({disturbance}) does not end within {TOOL_SECONDS} s; the program: "
                        f"{self.where_it_waits()}")
        finally:
            tool.kill()
            tool.communicate()
            self.log.append((began, time.monotonic(), command, self.label or disturbance))
            if os.environ.get("HARM_VERBOSE"):
                print(f"  {began:.3f} {command.name} ({disturbance}): {tool.returncode} in "
                      f"{time.monotonic() - began:.3f} s", file=sys.stderr)
        return self.judge_tool(command, disturbance, tool.returncode, out, err)

    def disturb(self, tool, disturbance):
        span = self.rng.choice([0.006, 0.03, 0.2])
        if disturbance == "kill":
            time.sleep(self.rng.uniform(0, span))
            tool.kill()
        elif disturbance == "stop":
            time.sleep(self.rng.uniform(0, span))
            at = time.monotonic()
            tool.send_signal(signal.SIGSTOP)
            time.sleep(0.03)
            tool.send_signal(signal.SIGCONT)
            self.stops.append((at, time.monotonic() - at))
        elif disturbance == "reader":
            os.read(tool.stdout.fileno(), self.rng.choice([1, 3000, 70000]))
            tool.stdout.close()
            tool.stdout = None
            err = tool.communicate(timeout=TOOL_SECONDS)[1]
            return b"", err
        return tool.communicate(timeout=TOOL_SECONDS)

    def judge_tool(self, command, disturbance, status, out, err):
        err = err.decode(errors="replace")
        if disturbance in ("kill", "reader"):
            allowed = status in (0, 1, -signal.SIGKILL, -signal.SIGPIPE, 128 + signal.SIGPIPE)
        else:
            allowed = status in (0, 1)
        if not allowed or "Sanitizer" in err:
            self.harms.append(f"{command.name} ({disturbance}) itself ended with {status}: {err.strip()[-1000:]}")
            return False
        if disturbance not in ("none", "stop"):
            return True
        expected = status in command.status
        if command.injects and self.target.refuses:
            expected = status == 1 and err.count("\n") == 1
        elif command.injects and self.target.may_refuse:
            expected = expected or status == 1
        elif not self.target.python:
            expected = expected or status == 1  # no Python to run anything in
        elif command.says is not None:
            expected = expected and out.decode() == command.says
        if not expected:
            self.harms.append(f"{command.name} ({disturbance}) gave status {status}: "
                              f"{(out[-200:].decode() + err.strip())[-400:]}")
        return expected

    def usable_again(self):
        """After whatever was done to it the program can be asked something, and left."""
        if self.target.may_refuse:
            self.tool(COMMAND["detach"])
        if self.target.refuses or self.target.may_refuse:
            return
        question = COMMAND["eval"] if self.target.python else COMMAND["inject"]
        for pid in self.pids:
            for attempt in range(2):
                found = len(self.harms)
                if self.tool(question, pid=pid) and self.tool(COMMAND["detach"], pid=pid):
                    break
                if attempt < 1:
                    del self.harms[found:]
                    time.sleep(0.5)

    def settle(self):
        """Waits until the agent's threads are gone, at most a second."""
        for _ in range(100 * SLOW):
            names = [Path(task, "comm") for task in Path(f"/proc/{self.pid}/task").glob("*")]
            try:
                if not any(name.read_text().startswith("probing") for name in names):
                    break
            except OSError:
                pass
            time.sleep(0.01)
        time.sleep(0.05)

    def at_rest(self):
        """What is known from outside once threads that the program has joined are gone in the kernel too."""
        seen = outside(self.pid)
        for _ in range(20):
            time.sleep(0.1)
            last, seen = seen, outside(self.pid)
            if all(seen[0][key] == last[0][key] for key in ("threads", "fds")):
                break
        return seen

    def left_behind(self, before):
        """What is not as before. A thread whose tool was killed waits for it some seconds before it ends."""
        for _ in range(60 * SLOW):
            left = list(compare(before, outside(self.pid), GROWTH_KB if self.timing else {}))
            if not any(text.startswith(("threads was", "mapped after")) for text in left):
                break
            time.sleep(0.1)
        return left

    def run(self, plan):
        """plan: pairs of a command and a disturbance, or a function that does it all. Returns the harms."""
        try:
            with self.in_cgroup():
                self.start()
                before = self.at_rest()
                Path(self.report + ".go").touch()
                time.sleep(0.05)
                plan(self) if callable(plan) else self.follow(plan)
                if plan:
                    self.usable_again()
                    self.settle()
                else:
                    time.sleep(1)
                Path(self.report + ".stop").touch()
                self.wait_for_file("", END_SECONDS)
                self.harms += self.left_behind(before)
                Path(self.report + ".end").touch()
                self.wait_for_end()
        except Ended as e:
            self.harms.append(str(e))
        finally:
            self.clean()
        self.read_report()
        self.read_output()
        if os.environ.get("HARM_VERBOSE"):
            print(f"{self.target.name} with {self.python}: " + tell(self.harms), file=sys.stderr)
        return self.harms

    def follow(self, plan):
        for command, disturbance in plan:
            self.tool(command, disturbance, self.rng.choice(self.pids))
            if not self.alive():
                raise Ended(f"the program ended with {self.describe_end()} after {command.name} ({disturbance})")
            began, ended = self.log[-1][:2]
            if ended - began > SLOW_SECONDS:
                raise Ended(f"{command.name} ({disturbance}) took {ended - began:.1f} s; the program: "
                            f"{self.where_it_waits()}")

    def wait_for_end(self):
        end = time.monotonic() + END_SECONDS
        while self.alive():
            if time.monotonic() > end:
                raise Ended(f"the program does not end: {self.where_it_waits()}")
            time.sleep(0.005)
        if self.process.wait() != 0:
            raise Ended(f"the program ended with {self.describe_end()}")

    def clean(self):
        if not self.process:
            return
        for pid in {self.process.pid, getattr(self, "pid", self.process.pid)}:
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        if hasattr(self, "pid") and self.pid != self.process.pid and self.alive():
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self.stdout.close()
        self.stderr.close()
        for pid in getattr(self, "pids", []):
            for root in ("/dev/shm", "/tmp", "/var/tmp"):
                for run in Path(root).glob(f"probing-*/*-{pid}-*"):
                    shutil.rmtree(run, ignore_errors=True)

    @contextmanager
    def in_cgroup(self):
        if not self.target.cgroup_mb:
            yield
            return
        self.cgroup = make_cgroup(self.target.cgroup_mb)
        try:
            yield
        finally:
            for _ in range(100):
                try:
                    self.cgroup.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)

    def under_way(self, start, length):
        found = [f"{command.name} ({how})" for began, ended, command, how in self.log if began < start + length + 0.01
                 and ended > start - 0.01]
        return ", ".join(dict.fromkeys(found[:3]))

    def runs_code(self, start, length):
        return any(command.runs_code for began, ended, command, _ in self.log if began < start + length
                   and ended > start - 0.1)

    def read_report(self):
        try:
            lines = [line.split("\t") for line in Path(self.report).read_text().splitlines()]
        except OSError:
            return
        calm, calm_late = next(([float(n) for n in line[1:]] for line in lines if line[0] == "calm"), [0, 0])
        machine = self.control.gaps() if self.control else []
        rounds = next(int(line[1]) for line in lines if line[0] == "rounds")
        if rounds < 3:
            self.harms.append(f"the program made {rounds} rounds only")
        late, slow, complaints = [], [], {}
        for line in lines:
            if line[0] == "complaint":
                at = self.under_way(float(line[1]), 0)
                kind = re.sub(r"[\d.]+", "N", line[2])
                complaints.setdefault(kind, []).append(line[2] + (f", first during {at}" if at else ""))
            elif not self.timing:
                continue
            elif line[0] == "gap":
                start, length = float(line[1]), float(line[2])
                others = overlap(machine, start, length) + overlap(self.stops, start, length)
                excess = length - self.target.gap * SLOW - max(0, calm - 0.01) - others
                if excess > 0:
                    late.append((length, f"no heartbeat for {length * 1000:.0f} ms, during "
                                         f"{self.under_way(start, length) or 'nothing'}"))
            elif line[0] == "late":
                start, length = float(line[2]), float(line[3])
                usual = LATE + max(0, calm_late) + (CODE_LATE if self.runs_code(start, length + 0.1) else 0)
                if length - usual - overlap(machine, start,
                                            length + 0.1) - overlap(self.stops, start, length + 0.1) > 0:
                    late.append((length, f"{line[1]} was {length * 1000:.0f} ms late, during "
                                         f"{self.under_way(start, length + 0.1) or 'nothing'}"))
            elif line[0] == "slow":
                start, share = float(line[1]), float(line[2])
                if overlap(machine, start, 0.1) == 0 and overlap(self.stops, start, 0.1) == 0:
                    slow.append((share, f"{share:.0%} of the usual work in 0.1 s during {self.under_way(start, 0.1)}"))
        self.harms += [same[0] + (f", and {len(same) - 1} more" if len(same) > 1 else "")
                       for same in complaints.values()]
        self.harms += [text for _, text in sorted(late, reverse=True)[:3]]
        # One such window can be a program that starts; a starved program has a row of them.
        if len(slow) > 2:
            self.harms.append(sorted(slow)[0][1] + f", and {len(slow) - 1} more")

    def read_output(self):
        """What it printed, byte by byte."""
        import kit
        out, err = (self.dir / "stdout").read_bytes(), (self.dir / "stderr").read_bytes().strip()
        lines = out.split(b"\n")
        if lines[-1] == b"" and lines[:-1]:
            lines.pop()
        for number, line in enumerate(lines if out else []):
            if line != kit.line(number).encode():
                # A program that was killed or that died leaves half a line.
                if not (number == len(lines) - 1 and self.harms):
                    self.harms.append(f"line {number} of its output is {line[:100]!r}")
                break
        for path in self.dir.glob("sanitizer.*"):
            self.harms.append(f"a sanitizer found: {path.read_text(errors='replace')[:6000]}")
        if err and not any("the program ended" in harm for harm in self.harms):
            self.harms.append(f"it wrote on stderr: {err[-1500:].decode(errors='replace')}")


class Ended(Exception):
    """The program is gone, or will not be."""


def make_cgroup(megabytes):
    """A memory cgroup of version 2 or 1; an OSError where this may not be had."""
    name = f"probing-harm-{os.getpid()}"
    for root, limit in ((Path("/sys/fs/cgroup"), "memory.max"),
                        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")):
        if not (root / "cgroup.procs").exists():
            continue
        group = root / name
        group.mkdir()
        try:
            (group / limit).write_text(str(megabytes << 20))
            return group
        except OSError:
            group.rmdir()
    raise OSError("no writable memory cgroup")


def plan_for(target, position, rng):
    """Long: every command with every disturbance. Short: some commands, so that each one meets several targets."""
    commands = [command for command in COMMANDS if not target.only or command.name in target.only]
    if SOAK:
        plan = [(command, disturbance) for command in commands for disturbance in DISTURBANCES]
        plan += [(COMMAND[name], "none") for name in target.extra]
        rng.shuffle(plan)
        return plan
    some = [commands[(position * 5 + i) % len(commands)] for i in range(min(5, len(commands)))]
    plan = [(command, rng.choice(DISTURBANCES)) for command in some]
    if not target.only:
        # What did most harm so far: on every target.
        plan += [(COMMAND["inject"], "none"), (COMMAND["eval"], "none"), (COMMAND["eval-prints"], "reader"),
                 (COMMAND["eval"], "kill")]
    plan += [(COMMAND[name], "none") for name in target.extra]
    rng.shuffle(plan)
    return plan


def tell(harms, seed=SEED):
    return f"seed {seed}:\n" + "\n".join(f"- {harm}" for harm in harms)
