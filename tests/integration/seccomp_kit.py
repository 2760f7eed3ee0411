"""Programs behind a seccomp filter."""
import errno
import os

SECCOMP = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
numbers, action = eval(sys.argv[1]), int(sys.argv[2], 16)
code = struct.pack("HBBI", 0x20, 0, 0, 0)
for left, number in zip(range(len(numbers), 0, -1), numbers):
    code += struct.pack("HBBI", 0x15, left, 0, number)
code += struct.pack("HBBI", 6, 0, 0, 0x7fff0000) + struct.pack("HBBI", 6, 0, 0, action)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(code) // 8, ctypes.addressof(buffer))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
"""
PTRACE, MEMFD_CREATE, PROCESS_VM_READV = (101, 319, 310) if os.uname().machine == "x86_64" else (117, 279, 270)
EPERM, ENOSYS, KILL = hex(0x50000 | errno.EPERM), hex(0x50000 | errno.ENOSYS), "0x80000000"  # what a filter returns


def behind(numbers, action):
    """A prefix that runs a command behind a filter which answers these calls so."""
    return ["/usr/bin/python3", "-c", SECCOMP, repr(numbers), action]
