"""Native stacks: the frames that gdb sees, and those that the source says are there where gdb sees less.

The targets wait in a known place; each is built with several compilers and options. native_dump prints what the
library finds.
"""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest
from native_kit import TARGETS, build, folder, native_dump, settled  # noqa: F401

EXACT, SIGNAL, BY_FP, BY_SCAN, TRUNCATED, EVAL, JIT, INLINED = (1 << bit for bit in range(8))
GUESSED = BY_FP | BY_SCAN
# What the target's main calls in each kind, innermost first, from where it waits to main.
CHAINS = {
    "plain": ["wait_here", "inner", "middle", "outer", "busy_registers", "main"],
    "variable": ["wait_here", "inner", "middle", "outer", "variable_frame", "aligned_frame", "main"],
    "inlined": ["wait_here", "inner", "calls_inlined", "main"],
    "signal": ["wait_here", "in_handler", "handler", "<signal handler called>", "raises", "main"],
    "signal-stack": ["wait_here", "in_handler", "handler", "<signal handler called>", "raises", "signal_stack", "main"],
    "null": ["wait_here", "in_handler", "handler", "<signal handler called>", "calls_nothing", "main"],
}
OPTIONS = {
    "gcc": ["gcc", "-O2"],
    "gcc-frame-pointers": ["gcc", "-O2", "-fno-omit-frame-pointer"],
    "gcc-debug": ["gcc", "-O2", "-g"],
    "gcc-O0": ["gcc", "-O0"],
    "gcc-static": ["gcc", "-O2", "-static", "-Wno-error"],
    "clang": ["clang", "-O2", "-g"],
}
WITHOUT_TABLES = {
    "frame-pointers": ["gcc", "-O2", "-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"],
    "musl": ["musl-gcc", "-O2"],
    "musl-static": ["musl-gcc", "-O2", "-static"],
}
GDB = """
import gdb, json
stacks = {}
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, frames = gdb.newest_frame(), []
    while frame is not None:
        # Inlined calls, and tail calls that it concludes from debug information, are not on the stack.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            frames.append((frame.pc(), frame.type() == gdb.SIGTRAMP_FRAME))
        frame = frame.older()
    stacks[thread.ptid[1]] = frames
print("STACKS" + json.dumps(stacks))
"""


@pytest.fixture(scope="session")
def programs(folder):
    """The target by its name in the tables above, built when first asked for."""
    built = {}

    def program(name):
        if name not in built:
            command = {**OPTIONS, **WITHOUT_TABLES}[name]
            built[name] = build(command, "native_target.c", folder / f"target-{name}", "-ldl", "-lpthread")
        return built[name]
    return program


class Frame:
    def __init__(self, line):
        pc, flags, self.function, offset, place, self.module, self.build_id = line.split("\t")
        self.pc, self.flags, self.offset = int(pc, 16), int(flags, 16), int(offset)
        self.file, _, number = place.rpartition(":")
        self.line = int(number)

    def __repr__(self):
        return f"{self.function}+{self.offset} {self.flags:#x}"


class Stack:
    def __init__(self, head):
        tid, self.state, error, flags, self.name = re.match(r"thread (\d+) (.) (-?\d+) (0x\w+|0) (.*)", head).groups()
        self.tid, self.error, self.flags, self.frames = int(tid), int(error), int(flags, 16), []

    @property
    def functions(self):
        return [frame.function for frame in self.frames]

    def real(self):
        """Without inlined calls: one for each frame on the stack."""
        return [frame for frame in self.frames if not frame.flags & INLINED]

    def own(self):
        """The functions of the target itself and signal frames, without the C library's."""
        functions = [frame.function for frame in self.real()]
        known = set().union(*CHAINS.values()) | {"descend", "starts_thread", "in_thread", "reads_clock",
                                                 "calls_library"}
        return [name for name in functions if name in known]


def dump(program, pid, *words):
    done = subprocess.run([str(program), str(pid), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=60)
    assert done.returncode == 0, done.stderr
    stacks = []
    for line in done.stdout.splitlines():
        if line.startswith("thread "):
            stacks.append(Stack(line))
        elif "\t" in line:
            stacks[-1].frames.append(Frame(line))
    return stacks


def gdb_stacks(pid, folder):
    script = folder / "frames.py"
    script.write_text(GDB)
    done = subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex",
                           "set auto-load off", "-ex", "set backtrace past-main on", "-ex", f"source {script}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
    found = re.search("STACKS(.*)", done.stdout)
    assert found, done.stdout
    return {int(tid): frames for tid, frames in json.loads(found.group(1)).items()}


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("options", OPTIONS)
def test_frames_are_those_of_gdb_and_of_the_source(options, kind, programs, native_dump, folder):
    with jobs.start(programs(options), kind, ready="ready") as job:
        settled(job.pid)
        stack, = dump(native_dump, job.pid)
        assert stack.own() == CHAINS[kind]
        assert not stack.flags & (TRUNCATED | GUESSED)
        if options in ("gcc", "gcc-static", "clang"):     # a second each
            theirs = gdb_stacks(job.pid, folder)[job.pid]
            assert [[frame.pc, bool(frame.flags & SIGNAL)] for frame in stack.real()] == theirs


@pytest.mark.parametrize("options", ["gcc", "musl"])
def test_every_thread_has_its_stack(options, programs, native_dump):
    with jobs.start(programs(options), "thread", ready="ready") as job:
        settled(job.pid)
        first, second = dump(native_dump, job.pid)
        assert (first.tid, first.own()) == (job.pid, ["starts_thread", "main"])
        assert second.own() == ["wait_here", "inner", "middle", "in_thread"]


@pytest.mark.parametrize("kind", ["plain", "variable", "signal"])
@pytest.mark.parametrize("options", WITHOUT_TABLES)
def test_code_without_unwind_tables_is_guessed_and_marked(options, kind, programs, native_dump):
    with jobs.start(programs(options), kind, ready="ready") as job:
        settled(job.pid)
        stack, = dump(native_dump, job.pid)
        assert stack.own() == CHAINS[kind]
        assert stack.flags & GUESSED and not stack.flags & TRUNCATED
        assert stack.functions[-1] == "_start"


@pytest.mark.parametrize("options", ["gcc-debug", "clang"])
def test_lines_and_inlined_calls(options, programs, native_dump):
    source = (TARGETS / "native_target.c").read_text().splitlines()
    with jobs.start(programs(options), "inlined", ready="ready") as job:
        settled(job.pid)
        stack, = dump(native_dump, job.pid)
        at = stack.functions.index("inlined_leaf")
        chain = stack.frames[at:at + 4]
        assert [frame.function for frame in chain] == ["inlined_leaf", "inlined_caller", "calls_inlined", "main"]
        assert [bool(frame.flags & INLINED) for frame in chain] == [True, True, False, False]
        assert chain[0].pc == chain[1].pc == chain[2].pc
        calls = ["inner(x * 5)", "inlined_leaf(x + 7)", "inlined_caller(x)", "calls_inlined(argc)"]
        for frame, call in zip(chain, calls):
            assert frame.file.endswith("native_target.c") and call in source[frame.line - 1]
        stack, = dump(native_dump, job.pid, "no-lines")
        assert not stack.flags & INLINED and not any(frame.line for frame in stack.frames)


@pytest.mark.parametrize("options", ["gcc", "gcc-O0"])
def test_ten_thousand_frames(options, programs, native_dump):
    with jobs.start(programs(options), "deep", ready="ready") as job:
        settled(job.pid)
        stack, = dump(native_dump, job.pid)
        assert stack.own() == ["wait_here", "inner", *["descend"] * 10001, "main"]
        assert not stack.flags & TRUNCATED


def test_the_vdso_is_unwound(programs, native_dump):
    with jobs.start(programs("gcc"), "clock", ready="ready") as job:
        for _ in range(200):
            stack, = dump(native_dump, job.pid)
            assert stack.own() == ["reads_clock", "main"] and not stack.flags & (TRUNCATED | GUESSED)
            if stack.frames[0].module == "[vdso]":
                assert "clock_gettime" in stack.frames[0].function
                return
    pytest.fail("never seen in the vdso")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_loaded_library_and_one_that_is_deleted(deleted, programs, native_dump, folder):
    library = build(["gcc", "-O2", "-shared", "-fPIC"], "native_library.c", folder / "library.so")
    with jobs.start(programs("gcc"), "library", library, ready="ready") as job:
        settled(job.pid)
        if deleted:
            library.unlink()
        stack, = dump(native_dump, job.pid)
        at = stack.functions.index("library_entry")
        assert stack.functions[at - 2:at + 3] == ["wait_here", "library_inner", "library_entry", "calls_library",
                                                  "main"]
        assert deleted or stack.frames[at].build_id == build_id(stack.frames[at].module)


def build_id(path):
    notes = subprocess.run(["readelf", "-n", path], stdout=subprocess.PIPE, universal_newlines=True).stdout
    return re.search(r"Build ID: (\w+)", notes).group(1)


def test_a_deleted_library_is_read_from_memory_by_its_owner(programs, native_dump, folder):
    """Without the right to open map_files there is no file: exported names and all frames are there still."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    library = build(["gcc", "-O2", "-shared", "-fPIC"], "native_library.c", folder / "gone.so")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and path != Path("/") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    nobody = {"preexec_fn": lambda: (os.setgroups([]), os.setgid(65534), os.setuid(65534))}
    with jobs.start(programs("gcc"), "library", library, ready="ready", **nobody) as job:
        settled(job.pid)
        library.unlink()
        done = subprocess.run([str(native_dump), str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=60, **nobody)
        assert done.returncode == 0, done.stderr
        names = [Frame(line).function for line in done.stdout.splitlines() if "\t" in line]
        at = names.index("library_entry")
        assert names[at - 2:at + 3] == ["wait_here", "-", "library_entry", "calls_library", "main"]


def test_cpp_names_are_demangled(native_dump, folder):
    program = build(["g++", "-O2"], "native_target.cpp", folder / "shop")
    with jobs.start(program, ready="ready") as job:
        settled(job.pid)
        stack, = dump(native_dump, job.pid)
        text = "\n".join(stack.functions)
        assert "shop::Counter<long>::count(std::vector<long, std::allocator<long> > const&, long)" in text
        assert "shop::(anonymous namespace)::hidden(shop::Counter<long>&)" in text
        assert "shop::operator_user(int)" in text
        assert not stack.flags & (TRUNCATED | GUESSED)


def test_nothing_is_stopped_when_that_is_forbidden(programs, native_dump):
    with jobs.start(programs("gcc"), "thread", ready="ready") as job:
        settled(job.pid)
        before = Path(f"/proc/{job.pid}/status").read_text()
        first, second = dump(native_dump, job.pid, "no-stop")
        assert second.own() == ["wait_here", "inner", "middle", "in_thread"]
        switches = re.compile(r"voluntary_ctxt_switches:\s*(\d+)")
        assert switches.findall(before) == switches.findall(Path(f"/proc/{job.pid}/status").read_text())
    with jobs.start(programs("gcc"), "clock", ready="ready") as job:
        stack, = dump(native_dump, job.pid, "no-stop")
        assert stack.error == -16 or stack.own() == ["reads_clock", "main"]


def test_a_stopped_process_is_read_and_stays_stopped(programs, native_dump):
    with jobs.start(programs("gcc"), "plain", ready="ready") as job:
        settled(job.pid)
        os.kill(job.pid, 19)
        jobs.wait_until(lambda: state(job.pid) == "T", what="the stop")
        stack, = dump(native_dump, job.pid)
        assert stack.own() == CHAINS["plain"]
        time.sleep(0.05)
        assert state(job.pid) == "T"


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_threads_are_held_for_a_moment_and_let_go(programs, native_dump):
    """A tool that is killed in the middle leaves nothing stopped, and one that ends leaves no tracer."""
    with jobs.start(programs("gcc"), "clock", ready="ready") as job:
        for _ in range(5):
            tool = subprocess.Popen([str(native_dump), str(job.pid), "repeat=100000"], stdout=subprocess.DEVNULL)
            time.sleep(0.1)
            tool.kill()
            tool.wait()
            jobs.wait_until(lambda: state(job.pid) == "R", what="running on")
            assert "TracerPid:\t0" in Path(f"/proc/{job.pid}/status").read_text()


def test_a_process_that_ends_meanwhile_is_one_line(programs, native_dump):
    with jobs.start(programs("gcc"), "plain", ready="ready") as job:
        job.process.kill()
        job.process.wait()
        done = subprocess.run([str(native_dump), str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, timeout=60)
        assert done.returncode == 1 and done.stderr.count("\n") == 1


def test_jit_code_is_named_by_the_perf_map(native_dump, folder):
    """Machine code made at run time: it calls back into sleep."""
    code = """
import ctypes, mmap, os, struct
libc = ctypes.CDLL(None)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
target = ctypes.cast(libc.pause, ctypes.c_void_p).value
page.write(b"\\x55\\x48\\x89\\xe5\\x48\\xb8" + struct.pack("<Q", target) + b"\\xff\\xd0\\x5d\\xc3")
with open(f"/tmp/perf-{os.getpid()}.map", "w") as names:
    names.write(f"{at:x} 20 jitted loop\\n")
print("ready", flush=True)
ctypes.CFUNCTYPE(None)(at)()
"""
    with jobs.python(code) as job:
        try:
            settled(job.pid)
            stack = dump(native_dump, job.pid)[0]
        finally:
            os.unlink(f"/tmp/perf-{job.pid}.map")
        at = stack.functions.index("jitted loop")
        assert stack.frames[at].flags & JIT and stack.frames[at].offset == 16
        assert any("ffi_call" in name for name in stack.functions[at:]), "the frames below the JIT's are lost"
        assert "main" in stack.functions or "_start" in stack.functions


def test_the_evaluation_loop_is_marked(native_dump):
    code = "import time\ndef f(x): time.sleep(1000)\nprint('ready', flush=True)\nsorted([1, 2], key=f)\n"
    with jobs.python(code, interpreter=sys.executable) as job:
        settled(job.pid)
        stack = dump(native_dump, job.pid)[0]
        loops = [frame.function for frame in stack.frames if frame.flags & EVAL]
        assert len(loops) == 2 and set(loops) == {"_PyEval_EvalFrameDefault"}


def test_a_name_that_blows_up_stays_mangled(native_dump, folder):
    """Each parameter doubles the one before: demangled, the name would be longer than any memory."""
    name = "_Z1f1AIiiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    source = folder / "bomb.c"
    source.write_text(f"""#include <unistd.h>
int waits(int x) __asm__("{name}");
__attribute__((noinline)) int waits(int x) {{ if (write(1, "ready\\n", 6) < 0) return 1; pause(); return x; }}
int plain(int x) __asm__("_ZN4shop5plainEi");
__attribute__((noinline)) int plain(int x) {{ return waits(x) + 1; }}
int main(int argc, char **argv) {{ return plain(argc) + 1; }}
""")
    program = build(["gcc", "-O2"], source, folder / "bomb")
    with jobs.start(program, ready="ready") as job:
        settled(job.pid)
        began = jobs.calm()
        stack, = dump(native_dump, job.pid)
        assert jobs.calm() - began < 10
        assert stack.functions[1:4] == [name, "shop::plain(int)", "main"]
