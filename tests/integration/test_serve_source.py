"""Source files by HTTP: those that a frame of the process names, and no others."""
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jobs
import pytest
from serve_kit import NEEDS_SERVE, commands_of, job, served  # noqa: F401

pytestmark = NEEDS_SERVE


def test_files_are_those_of_its_stacks_alone(served, job):
    where = f"/api/v1/targets/{job.pid}/source"
    status, headers, body = served.ask(f"{where}?path={job.script}")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert body.decode() == Path(job.script).read_text()
    for path in ("/etc/passwd", job.script + "/../x", "", "/proc/self/environ", "train.py"):
        assert served.ask(f"{where}?path={path}")[0] == (404 if path else 400), path
    for asked in ("", "?", "?path"):
        assert served.ask(f"{where}{asked}")[0] == 400, asked


# Serves a file system in a thread and namespace of its own, in which opening and listing work and no read is ever
# answered.
HANGING_MOUNT = """
import ctypes, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
folder = os.environ["FOLDER"]
if libc.unshare(0x20000) or libc.mount(None, b"/", None, 0x44000, None):
    sys.exit("no namespace")
fuse = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
if libc.mount(b"fuse", folder.encode(), b"fuse", 0, options.encode()):
    sys.exit("no FUSE")
def attributes(node):
    return struct.pack("6Q10I", node, 100, 1, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100644, 1, 0, 0, 0, 4096, 0)
def answer():
    while True:
        asked = os.read(fuse, 1 << 20)
        _, operation, number, node = struct.unpack_from("IIQQ", asked)
        said = {26: struct.pack("4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8),  # INIT
                1: struct.pack("4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2),  # LOOKUP
                3: struct.pack("Q2I", 60, 0, 0) + attributes(node),  # GETATTR
                14: struct.pack("Q2I", 1, 0, 0)}.get(operation)  # OPEN
        if operation == 15:
            print("asked", flush=True)
        elif operation not in (2, 36, 42):  # FORGET, INTERRUPT
            os.write(fuse, struct.pack("IiQ", 16 + len(said or b""), 0 if said else -38, number) + (said or b""))
threading.Thread(target=answer, daemon=True).start()
code = "def wait(then):\\n then()"
def defined(file):
    names = {}
    exec(compile(code, file, "exec"), names)
    return names["wait"]
def stay():
    print("ready", flush=True)
    time.sleep(1000)
defined(folder + "/hangs.py")(lambda: defined(folder + ".pipe")(stay))
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(
    "/dev/fuse"), reason="needs root and FUSE, for a mount that hangs")
def test_a_file_that_cannot_be_read_holds_up_nobody(served, tmp_path):
    (tmp_path / "mount").mkdir()
    os.mkfifo(tmp_path / "mount.pipe")
    with jobs.python(HANGING_MOUNT, env={**os.environ,
                                         "FOLDER": str(tmp_path / "mount")}) as one, ThreadPoolExecutor() as pool:
        def ask(file):
            began = time.monotonic()
            status, _, body = served.ask(f"/api/v1/targets/{one.pid}/source?path={tmp_path}/{file}")
            return status, body.decode(), time.monotonic() - began
        hangs = [pool.submit(ask, "mount/hangs.py") for _ in range(3)]
        jobs.wait_until(lambda: "asked" in one.output, 10, "that the file is read")
        status, said, took = ask("mount.pipe")
        assert status == 404 and "not a regular file" in said and took < 2 and not any(each.done() for each in hangs)
        for each in hangs:
            status, said, took = each.result()
            assert status == 404 and "timed out" in said and 2 < took < 10, said
        jobs.wait_until(lambda: not commands_of(served), 20, "the end of their commands")
