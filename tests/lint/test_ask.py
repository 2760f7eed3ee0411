"""src/ask/ is for callers with many threads too: it knows no terminal, prints nothing, keeps nothing and changes
nothing of the process.

By the symbols its objects ask for. task.c makes the children in which the rest may happen; what it calls is listed
apart.
"""
import re

import pytest
from source import RELEASE, files, output

PRINTS = {"printf", "vprintf", "puts", "putchar", "perror", "psignal", "stdout", "stderr", "error", "warn", "warnx",
          "syslog"}
# The caller may be a service without one.
TERMINAL = {"isatty", "tcgetattr", "tcsetattr", "ttyname_r", "ctermid", "fgetc", "getchar", "stdin"}
CHANGES = {
    "setenv", "unsetenv", "putenv", "clearenv", "signal", "sigaction", "sigprocmask", "pthread_sigmask", "sigaltstack",
    "alarm", "setitimer",
    "setpriority", "nice", "setrlimit", "prlimit", "umask", "chdir", "fchdir", "chroot", "setlocale", "unshare",
    "setns", "prctl",
    "setuid", "seteuid", "setgid", "setegid", "setsid", "setpgid", "dup2", "dup3", "sched_setaffinity",
    "sched_setscheduler",
}
# Only in a child of its own; and what ends the caller.
CHILDREN = {"fork", "vfork", "posix_spawn", "posix_spawnp", "system", "popen", "wait", "waitpid", "wait4", "waitid",
            "ptrace", "execv", "execve", "execvp", "execl", "execlp"}
ENDS = {"exit", "_exit", "abort", "quick_exit", "atexit", "err", "errx"}
# They answer from memory that all threads share.
SHARED = {"strtok", "localtime", "gmtime", "ctime", "asctime", "getpwuid", "getpwnam", "getgrgid", "getgrnam", "rand",
          "tmpnam", "ttyname"}
FORBIDDEN = PRINTS | TERMINAL | CHANGES | CHILDREN | ENDS | SHARED
# These make a child, and in the child give signals and descriptors their usual state.
ALLOWED = {"task.c": {"fork", "waitpid", "_exit", "prctl", "sigaction", "sigprocmask", "dup3"},
           # pb_wait_seconds: of the one thread of a child, which it gives back (waits.h).
           "waits.c": {"sched_setaffinity"}}


def sources():
    return files("src/ask/*.c")


def object_of(path):
    return RELEASE / f"CMakeFiles/pb_ask.dir/{path}.o"


def forbidden(undefined):
    """printf and the like have other names where the compiler checks them: __printf_chk."""
    plain = {re.sub(r"^__(\w+)_chk$", r"\1", re.sub(r"^(\w+?)64$", r"\1", name)) for name in undefined}
    return plain & FORBIDDEN


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.name)
def test_calls_nothing_that_changes_the_process(path):
    undefined = {line.split()[-1].split("@")[0] for line in output("nm", "-u", object_of(path)).splitlines()}
    wrong = forbidden(undefined) - ALLOWED.get(path.name, set())
    assert not wrong, f"{path} calls {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.name)
def test_keeps_nothing(path):
    kept = [line.split()[-1] for line in output("nm", object_of(path)).splitlines()
            if re.search(r" [bBC] ", line)]
    sizes = dict(re.findall(r"^(\.\w[\w.]*)\s+(\d+)", output("size", "-A", object_of(path)), re.M))
    # .data.rel.ro and the like are read-only once the program is loaded.
    writable = {name: size for name, size in sizes.items() if re.fullmatch(r"\.t?(data|bss)(\.(?!rel\.ro).*)?", name)
                and size != "0"}
    assert not kept and not writable, f"{path} keeps {kept or writable}"


def test_a_print_is_noticed():
    assert forbidden({"memcpy", "__printf_chk", "setrlimit64", "pb_fail"}) == {"printf", "setrlimit"}
