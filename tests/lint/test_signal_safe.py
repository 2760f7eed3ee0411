"""Code that may run in a signal handler calls only what may be called there.

A source that says "Signal-safe throughout" in its opening comment is held to it: what its object asks for must be on
the list below or be defined in another such object.
"""
import re

import pytest
from source import RELEASE, files, output, text

PROMISE = "signal-safe throughout"
# The heart of the writer: these must not lose their promise.
MUST_PROMISE = {"append", "segment", "space", "dict", "cells"}
# System calls that allocate nothing and take no lock, and string functions. clock_gettime is POSIX's and the vdso's.
ALLOWED = {
    "memcpy", "memset", "memmove", "memcmp", "strlen", "strcmp",
    "clock_gettime", "getpid", "gettid", "syscall", "sched_yield",
    "mmap", "munmap", "mremap", "madvise", "mprotect", "mlock", "munlock", "fcntl", "fchmod", "fallocate",
    "posix_fallocate", "pwrite", "pread", "ftruncate", "fstat", "fstatvfs",
    "open", "read", "write", "close", "getrlimit", "__errno_location", "pthread_self",
}
# What the compiler puts in by itself.
COMPILER = re.compile(r"_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__(memcpy|memset|memmove)_chk|_?_?assert_fail")


def opening(content):
    """The words of a source's first comment, without its line breaks and stars."""
    match = re.match(r"/\*.*?\*/", content, re.S)
    return " ".join(match.group(0).replace("*", " ").split()).lower() if match else ""


def sources():
    return [path for path in files("src/table/*.c", "src/agent/*.c") if PROMISE in opening(text(path))]


def object_of(path):
    return RELEASE / f"CMakeFiles/pb_{path.parts[1]}.dir/{path}.o"


def symbols(path, *options):
    lines = output("nm", *options, object_of(path)).splitlines()
    return {line.split()[-1].replace("@GLIBC_2.2.5", "") for line in lines}


def not_allowed(undefined, defined):
    plain = {re.sub(r"^(\w+?)64$", r"\1", name) for name in undefined - defined}
    return {name for name in plain - ALLOWED if not COMPILER.fullmatch(name)}


def test_the_writer_promises_it():
    assert MUST_PROMISE <= {path.stem for path in sources()}


@pytest.mark.parametrize("path", sources(), ids=str)
def test_calls_only_what_a_handler_may(path):
    defined = set().union(*(symbols(other, "--defined-only") for other in sources()))
    wrong = not_allowed(symbols(path, "-u"), defined)
    assert not wrong, f"{path} calls {', '.join(sorted(wrong))}"


def test_an_allocation_is_noticed():
    assert not_allowed({"memcpy", "fallocate64", "malloc", "pb_other"}, {"pb_other"}) == {"malloc"}
