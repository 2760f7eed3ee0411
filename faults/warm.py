"""Starts the ranks of jobs from one process that has imported torch, so that a job of four ranks is there in a second.

faults/run starts this file once and writes a line of JSON for each job. For each it forks a launcher, and the launcher
forks the ranks. A rank gets its environment and its command line in place, where /proc shows them, so that a tool sees
what torchrun's children look like. Options and protocol: see class Warm in faults/run.
"""
import builtins
import ctypes
import json
import os
import signal
import sys
import traceback

SPACE = "FAULT_SPACE"


def area(first):
    """Where the kernel finds the command line (first=48) or the environment (50) of this process."""
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    return int(fields[first - 3]), int(fields[first - 2])


def show_environment(values):
    """Puts variables into the room that SPACE keeps at the place from which /proc/PID/environ is read."""
    begin, end = area(50)
    bytes_now = ctypes.string_at(begin, end - begin)
    at = bytes_now.index(SPACE.encode() + b"=")
    room = bytes_now.index(b"\0", at) - at
    text = b"\0".join(f"{k}={v}".encode() for k, v in values.items())
    if len(text) + 3 > room:
        raise ValueError("the environment of a rank is too long")
    text += b"\0_=" + b"x" * (room - len(text) - 3)
    ctypes.memmove(begin + at, text, room)
    os.environ.update(values)


def show_command(path):
    """Replaces the script in the command line by another of the same length."""
    begin, end = area(48)
    now = ctypes.string_at(begin, end - begin)
    old = now.split(b"\0")[1]
    if len(old) != len(path.encode()):
        raise ValueError(f"{path} is not as long as {old.decode()}")
    ctypes.memmove(begin + now.index(old), path.encode(), len(old))


def be_rank(job, rank):
    out = os.open(f"{job['folder']}/out.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    values = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["world"]),
              "LOCAL_WORLD_SIZE": str(job["world"]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
    if job["world"] == 1:
        values = {}
    show_environment({**values, **job["environment"]})
    show_command(job["script"])
    sys.argv[:] = [job["script"]]
    sys.path[0] = os.path.dirname(job["script"])
    sys.path.insert(1, job["kit"])
    sys.orig_argv[1:] = [job["script"]]
    code = compile(open(job["script"]).read(), job["script"], "exec")
    main = sys.modules["__main__"].__dict__
    fresh = {"__name__": "__main__", "__file__": job["script"], "__builtins__": builtins}
    main.clear()
    main.update(fresh)
    # An exception that the program does not catch goes up to the interpreter, which ends as it would without us.
    exec(code, main)


def be_launcher(job):
    """Forks the ranks and waits for them. True: in a rank."""
    os.setpgid(0, 0)
    pids = []
    for rank in range(job["world"]):
        pid = os.fork()
        if pid == 0:
            return rank
        pids.append(pid)
    with open(f"{job['folder']}/pids.new", "w") as file:
        json.dump({"launcher": os.getpid(), "ranks": pids}, file)
    os.rename(f"{job['folder']}/pids.new", f"{job['folder']}/pids")
    for _ in pids:
        os.wait()
    os._exit(0)


def serve():
    """Answers faults/run until its end. It returns (job, rank) in a rank."""
    import torch
    import torch.distributed  # noqa: F401
    import torch.nn.parallel.distributed  # noqa: F401
    import torch.utils.data  # noqa: F401
    import torch.distributed.fsdp  # noqa: F401
    torch.set_num_threads(1)
    # The first optimizer imports 800 modules. Nothing here may start a thread: the ranks are forks of this process.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("importing torch started a thread")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print("warm", flush=True)
    while True:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        job = json.loads(line)
        launcher = os.fork()
        if launcher == 0:
            return job, be_launcher(job)
        # Launchers that have ended are taken here; the newest may be among them later.
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    try:
        here = serve()
    except Exception:
        traceback.print_exc()
        os._exit(1)
    be_rank(*here)
