"""What the injection tests are made of: a driver around pb_inject that can die at any step, small agents, and
targets that notice when they are disturbed. All are compiled here, from tests/integration/targets, or were before, for
another machine: `inject_kit.py FOLDER aarch64` makes them, PROBING_KIT=FOLDER names them there (scripts/arm64.sh)."""
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
SOURCES = TOP / "tests/integration/targets"
FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-O2", "-g", "-pthread"]
# as in cmake/options.cmake
STUB_FLAGS = ["-fno-stack-protector", "-fno-jump-tables", "-fno-builtin", "-mgeneral-regs-only"]
MAGIC = 0x70726F62696E6721
ZIG = [sys.executable, "-m", "ziglang", "cc", "-target"]
AGENTS = ["ok", "missing", "noentry", "null", "crash", "slow"]
TARGETS = ["malloc", "joins", "detached", "wait", "registers", "exec"]


def compile_c(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout


class Compilers:
    """What makes programs for glibc and musl, for this machine or another."""

    def __init__(self, machine=None):
        self.machine, self.built = machine or os.uname().machine, TOP / "build/release"
        self.glibc, self.musl, self.static = ["gcc"], ["musl-gcc"], ["gcc", "-static"]
        if machine:
            self.built = TOP / f"build/{machine}"
            self.glibc = [*ZIG, f"{machine}-linux-gnu.2.36"]
            self.musl, self.static = [*ZIG, f"{machine}-linux-musl",
                                      "-dynamic"], [*ZIG, f"{machine}-linux-musl", "-static"]
        # Agents must load into older C libraries than this machine's, as the real one does.
        self.old_glibc = [*ZIG, f"{self.machine}-linux-gnu.2.17"]
        self.flags = FLAGS + (["-mno-red-zone"] if self.machine == "x86_64" else [])
        # Otherwise atomic operations are functions, which ask glibc's own getauxval what the processor can do.
        self.musl_flags = [] if self.machine == "x86_64" or machine else ["-mno-outline-atomics"]


class Kit:
    """Compiled parts in one directory: driver, static-wait, <target>, musl-<target>, and a directory for each agent."""

    def __init__(self, where, agents=AGENTS, targets=TARGETS, machine=None):
        self.where = Path(os.environ.get("PROBING_KIT", where))
        if "PROBING_KIT" not in os.environ:
            self.compile(Compilers(machine), agents, targets)

    def compile(self, using, agents, targets):
        # The session and what it stands on are not part of the driver.
        code = [path for path in (TOP / "src/inject").glob("*.c") if path.stem not in ("session", "stub")]
        code += [TOP / f"src/inject/arch/{using.machine}.c", SOURCES / "inject_driver.c"]
        compile_c(*using.glibc, *FLAGS, *STUB_FLAGS, "-I", TOP / "src", "-c", TOP / "src/inject/stub.c", "-o",
                  self.where / "stub.o")
        libraries = [using.built / f"libpb_{name}.a" for name in ("remote", "control", "table", "base")]
        compile_c(*using.glibc, *FLAGS, "-DPROBING_TEST_STEPS", "-I", TOP / "src", *code, self.where / "stub.o",
                  *libraries, "-ldl", "-o", self.where / "driver")
        for name in targets:
            source = SOURCES / f"target_{name}.c"
            compile_c(*using.glibc, *using.flags, source, "-o", self.where / name, "-ldl")
            compile_c(*using.musl, *using.flags, *using.musl_flags, source, "-o", self.where / f"musl-{name}")
        compile_c(*using.static, *FLAGS, SOURCES / "target_wait.c", "-o", self.where / "static-wait")
        for name in agents:
            self.agent(name).mkdir()
            for compiler, libc in ((using.old_glibc, "glibc"), (using.musl, "musl")):
                compile_c(*compiler, "-O2", "-fPIC", "-shared", "-pthread", SOURCES / f"agent_{name}.c", "-o",
                          self.agent(name) / f"libprobing-{libc}.so")
        for path in [self.where, *self.where.rglob("*")]:
            path.chmod(0o755)

    def agent(self, name):
        return self.where / f"agent-{name}"

    def inject(self, pid, agent="ok", options="", timeout_ms=0, prefix=(), seconds=60, **env):
        """The driver's answer as a dictionary; "killed" where it killed itself. Its stderr is under "stderr"."""
        done = subprocess.run([*prefix, str(self.where / "driver"), str(pid), str(self.agent(agent)), options,
                               str(timeout_ms)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=seconds,
                              env={**os.environ, **env})
        if done.returncode == -signal.SIGKILL:
            return "killed"
        assert done.returncode in (0, 1), f"the driver ended with {done.returncode}: {done.stderr}"
        answer = json.loads(done.stdout)
        assert (done.returncode == 1) == (answer["r"] < 0)
        return {**answer, "stderr": done.stderr}

    def doctor(self, pid, prefix=()):
        done = subprocess.run([*prefix, str(self.where / "driver"), "doctor", str(pid)], stdout=subprocess.PIPE,
                              check=True, universal_newlines=True)
        return {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}

    def steps(self, *victim):
        """The names of the steps that one injection into this target has."""
        with self.run(*victim) as target:
            time.sleep(0.02)
            return [line.split(" ", 1)[1] for line in self.inject(target.pid, timeout_ms=30000,
                                                                  PROBING_STEPS="1")["stderr"].splitlines()]

    @contextmanager
    def run(self, *command, ready=True, prefix=(), **options):
        process = subprocess.Popen([*prefix, str(self.where / command[0]), *map(str, command[1:])],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        target = Target(process)
        try:
            if ready:
                target.first = target.line()
                assert target.first.startswith("ready"), target.first
            yield target
        finally:
            process.kill()
            process.communicate()


class Target:
    def __init__(self, process):
        self.process, self.pid, self.first = process, process.pid, ""

    def line(self, seconds=10):
        assert select.select([self.process.stdout], [], [], seconds)[0], "the target prints nothing"
        return self.process.stdout.readline().decode().strip()

    def word(self, address):
        return struct.unpack("<Q", read_memory(self.pid, address, 8))[0]

    def alive(self):
        return self.process.poll() is None

    def state(self):
        return status_field(self.pid, "State")[0]

    def traces(self):
        """What an injection that failed or was undone must not leave: mappings, descriptors, threads, a tracer."""
        maps = [line.split()[5:] for line in open(f"/proc/{self.pid}/maps")]
        return {"named": sorted({" ".join(words) for words in maps if words}), "executable": executable(self.pid),
                "fds": sorted(os.listdir(f"/proc/{self.pid}/fd")), "threads": len(os.listdir(f"/proc/{self.pid}/task")),
                "tracer": status_field(self.pid, "TracerPid"), "mask": status_field(self.pid, "SigBlk")}

    def gets_on(self, seconds=5):
        """True when the count at the address that the target printed grows."""
        address = int(self.first.split()[1], 16)
        before, deadline = self.word(address), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.word(address) > before + 1:
                return True
            time.sleep(0.005)
        return False


def executable(pid):
    """Anonymous executable mappings: where the stub was."""
    return [line for line in open(f"/proc/{pid}/maps") if "x" in line.split()[1] and len(line.split()) < 6]


def links(pid):
    """What its descriptors are; some may be closed while we look."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    return found


def wait_until_clean(pid, seconds=8):
    """What a killed tool began is undone by the target itself: no memory of the stub, no thread of it, no memfd."""
    deadline = time.monotonic() + seconds
    while True:
        left = executable(pid) + [link for link in links(pid) if "memfd:probing-agent" in link]
        if not left:
            return
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


def status_field(pid, key):
    return next(line.split(":", 1)[1].strip() for line in open(f"/proc/{pid}/status") if line.startswith(key + ":"))


def read_memory(pid, address, length):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(length)


class Agent:
    """The status struct of agent_ok, read from outside."""

    def __init__(self, pid, answer):
        data = read_memory(pid, answer["status"], 4128)
        self.magic, self.calls, self.beats, self.mask = struct.unpack_from("<4Q", data)
        self.options = data[32:].split(b"\0")[0].decode()


def assert_agent_runs(pid, answer, options="", seconds=5):
    assert answer["r"] == 0, answer
    deadline = time.monotonic() + seconds
    while (agent := Agent(pid, answer)).beats < 2:
        assert agent.magic == MAGIC
        assert time.monotonic() < deadline, "the agent's thread does not run"
        time.sleep(0.002)
    assert agent.options == options
    return agent


@contextmanager
def traced(pid):
    """Another tracer holds the process meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"y" if libc.ptrace(0x4206, pid, 0, 0) == 0 else b"n")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"y"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True)
    Kit(sys.argv[1], machine=sys.argv[2])
