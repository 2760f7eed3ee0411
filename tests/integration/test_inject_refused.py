"""What injection refuses: each time one line that says what is wrong and what would lift it, target untouched; and
the second choices for where the library is put."""
import os
import subprocess
import sys
import time

import inject_kit
import pytest
from inject_kit import Kit, assert_agent_runs, traced
from seccomp_kit import EPERM, KILL, MEMFD_CREATE, PTRACE, behind

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    where = tmp_path_factory.mktemp("refused")
    return Kit(where, agents=["ok"], targets=["wait"])


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("needs root rights, to start processes of other users or in namespaces")


def refused(kit, pid, *says, prefix=()):
    answer = kit.inject(pid, prefix=prefix)
    assert answer["r"] < 0, "it was not refused"
    assert "\n" not in answer["error"]
    for words in says:
        assert words in answer["error"], answer["error"]
    return answer


def test_not_the_owner(kit):
    needs_root()
    with kit.run("wait", "poll") as target:
        refused(kit, target.pid, "belongs to root (uid 0)", "run as its owner or as root", prefix=AS_NOBODY)
        assert target.line() == "undisturbed"


def test_the_owner_who_is_not_root(kit):
    needs_root()
    with kit.run("wait", "poll", prefix=AS_NOBODY) as target:
        assert_agent_runs(target.pid, kit.inject(target.pid, prefix=AS_NOBODY))
        assert target.line() == "undisturbed"


def test_root_into_a_process_of_another_user(kit):
    needs_root()
    with kit.run("wait", "poll", prefix=AS_NOBODY) as target:
        assert_agent_runs(target.pid, kit.inject(target.pid))
        assert target.line() == "undisturbed"


def test_not_dumpable(kit):
    needs_root()
    code = ("import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('ready', flush=True); time.sleep(60)")
    process = subprocess.Popen([*AS_NOBODY, "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE,
                               stdin=subprocess.PIPE)
    target = inject_kit.Target(process)
    try:
        assert target.line() == "ready"
        refused(kit, target.pid, "not dumpable", "CAP_SYS_PTRACE", prefix=AS_NOBODY)
    finally:
        process.kill()
        process.communicate()


def test_no_such_process(kit):
    process = subprocess.Popen(["true"])
    process.wait()
    refused(kit, process.pid, f"there is no process {process.pid}")


def test_a_zombie(kit):
    process = subprocess.Popen(["true"])
    while open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)
    refused(kit, process.pid, "is a zombie", f"its parent, process {os.getpid()},")
    process.wait()


def test_a_kernel_thread(kit):
    threads = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_kernel_thread(pid)]
    if not threads:
        pytest.skip("no kernel thread is visible in this pid namespace")
    refused(kit, threads[0], "is a kernel thread")


def is_kernel_thread(pid):
    try:
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[6]) & 0x00200000
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_32_bit_process(kit, tmp_path):
    """An ELF of 32 bits that waits: 52 bytes of header, 32 of program header, and pause(); jmp back."""
    code = bytes.fromhex("b81d000000cd80ebf7")
    header = bytes.fromhex(
        "7f454c46010101000000000000000000020003000100000054800408340000000000000000000000340020000100000000000000")
    segment = b"".join(n.to_bytes(4, "little") for n in (1, 0, 0x08048000, 0x08048000, 84 + len(code), 84 + len(code),
                                                         5, 4096))
    program = tmp_path / "small"
    program.write_bytes(header + segment + code)
    program.chmod(0o755)
    try:
        process = subprocess.Popen([str(program)])
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")
    try:
        time.sleep(0.05)
        assert process.poll() is None
        refused(kit, process.pid, "32-bit process")
    finally:
        process.kill()
        process.wait()


def test_a_static_executable(kit):
    with kit.run("static-wait", "poll") as target:
        refused(kit, target.pid, "is a static executable", "link it dynamically")
        assert target.line() == "undisturbed"


def test_traced_by_another(kit):
    with kit.run("wait", "poll") as target:
        with traced(target.pid):
            refused(kit, target.pid, "is traced by", f"process {target.pid}", "end that debugger")
        assert target.line() == "undisturbed"


def test_a_filter_around_the_tool(kit):
    with kit.run("wait", "poll") as target:
        refused(kit, target.pid, "seccomp filter forbids ptrace", "--cap-add=SYS_PTRACE",
                prefix=behind([PTRACE], EPERM))
        assert target.line() == "undisturbed"


def test_a_filter_around_the_target_that_refuses_a_memfd(kit):
    with kit.run("wait", "poll", prefix=behind([MEMFD_CREATE], EPERM)) as target:
        assert kit.doctor(target.pid)["seccomp"][0] == "ok"
        assert_agent_runs(target.pid, kit.inject(target.pid))
        assert not [name for name in os.listdir("/tmp") if name.startswith(".probing-")], "the file is left"
        assert target.line() == "undisturbed"


def test_a_filter_around_the_target_that_kills_for_a_memfd(kit):
    needs_root()
    with kit.run("wait", "poll", prefix=behind([MEMFD_CREATE], KILL)) as target:
        assert kit.doctor(target.pid)["seccomp"][0] == "fail"
        refused(kit, target.pid, "kills for memfd_create", "allow it in the filter")
        assert target.line() == "undisturbed"


def in_namespace(setup):
    """A prefix: the command runs as process 1 of its own pid and mount namespace, after setup."""
    return ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child", "sh", "-c",
            setup + '\nexec "$0" "$@"']


def inner(target):
    """The process in the namespace: what unshare forked."""
    children = open(f"/proc/{target.process.pid}/task/{target.process.pid}/children").read().split()
    target.pid = int(children[0])
    return target


def sysctl_refuses_memfd():
    done = subprocess.run(in_namespace("echo 2 > /proc/sys/vm/memfd_noexec") + ["true"], stderr=subprocess.PIPE)
    return done.returncode == 0


def test_a_namespace_that_allows_no_executable_memfd(kit):
    needs_root()
    if not os.path.exists("/proc/sys/vm/memfd_noexec") or not sysctl_refuses_memfd():
        pytest.skip("vm.memfd_noexec cannot be set for a pid namespace on this kernel")
    with kit.run("wait", "poll", prefix=in_namespace("echo 2 > /proc/sys/vm/memfd_noexec")) as target:
        assert_agent_runs(inner(target).pid, kit.inject(target.pid))
        maps = open(f"/proc/{target.pid}/maps").read()
        assert "memfd:probing" not in maps and ".probing-" in maps
        assert target.line() == "undisturbed"


NOWHERE = "for d in /tmp /var/tmp /dev/shm /run; do mount -t tmpfs -o {} none $d; done"


@pytest.mark.parametrize("option, says", [("noexec", "is noexec"), ("ro", "is read-only")])
def test_no_place_at_all(kit, tmp_path, option, says):
    """Behind a filter without memfd and with no directory to put a file: refused with the reason of each."""
    needs_root()
    if str(kit.where).startswith("/tmp/"):
        # The kit itself must stay reachable under the new mounts.
        setup = f"mkdir -p /mnt/kit && mount --bind {kit.where} /mnt/kit && " + NOWHERE.format(option)
        program = "/mnt/kit/wait"
    else:
        setup, program = NOWHERE.format(option), str(kit.where / "wait")
    made = not os.path.isdir("/mnt/kit")
    process = subprocess.Popen([*in_namespace(setup), *behind([MEMFD_CREATE], EPERM), program, "poll"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    target = inject_kit.Target(process)
    try:
        assert target.line() == "ready"
        refused(kit, inner(target).pid, "no place for the agent", f"/tmp {says}")
        assert not inject_kit.executable(target.pid)
        assert target.line() == "undisturbed"
    finally:
        os.kill(target.pid, 9)
        process.communicate()
        if made and os.path.isdir("/mnt/kit"):
            os.rmdir("/mnt/kit")


def test_without_proc_in_its_root_a_file_is_used(kit):
    needs_root()
    with kit.run("wait", "poll", prefix=in_namespace("umount -l /proc; umount -l /proc")) as target:
        assert_agent_runs(inner(target).pid, kit.inject(target.pid))
        assert "memfd:probing" not in open(f"/proc/{target.pid}/maps").read()
        assert target.line() == "undisturbed"


MAPPINGS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def map_more(n):
    return sum(libc.mmap(None, 4096, 1 + 2 * (i % 2), 0x22, -1, 0) != ctypes.c_void_p(-1).value for i in range(n))
map_more(int(sys.argv[1]) - len(open("/proc/self/maps").readlines()))
print("ready", flush=True)
sys.stdin.readline()
print("got", map_more(150), flush=True)
"""


def test_the_last_mappings_are_left_to_the_program(kit):
    most = int(open("/proc/sys/vm/max_map_count").read())
    if most > 200000:
        pytest.skip(f"vm.max_map_count is {most}: to use them up takes too long")
    process = subprocess.Popen([sys.executable, "-c", MAPPINGS, str(most - 200)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    target = inject_kit.Target(process)
    try:
        assert target.line() == "ready"
        refused(kit, target.pid, f"mappings of at most {most}", "raise vm.max_map_count")
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert target.line() == "got 150"
    finally:
        process.kill()
        process.communicate()


def test_the_doctor_says_what_inject_says(kit):
    with kit.run("wait", "poll") as target:
        rows = kit.doctor(target.pid)
        assert [rows[name][0] for name in ("process", "owner", "machine", "tracer", "ptrace", "libc",
                                           "place")] == ["ok"] * 7
        with traced(target.pid):
            state, found, remedy = kit.doctor(target.pid)["tracer"]
            assert state == "fail" and kit.inject(target.pid)["error"] == f"{found} ({remedy})"
