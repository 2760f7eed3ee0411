"""One rank is held by another process with ptrace, as by a debugger that was left open."""
TRUTH = {"kind": "stopped", "cause": ["traced", "debugger"], "function": None, "not": ["deadlock", "loop"]}
import ctypes
import os
import time
import kit

SEIZE, INTERRUPT = 0x4206, 0x4207


def hold(pid, wait):
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    os.close(wait)
    for request in (SEIZE, INTERRUPT):
        if call(request, pid, None, None) < 0:
            os._exit(1)
    os.waitpid(pid, 0)
    time.sleep(5000)


def main():
    job = kit.start()
    net, optimizer = kit.model(job)
    for step in job.steps():
        if job.now(step):
            pid, (read, write) = os.getpid(), os.pipe()
            if os.fork() == 0:
                hold(pid, write)
            os.close(write)
            os.read(read, 1)
            time.sleep(0.5)
        kit.train_step(net, optimizer)


main()
