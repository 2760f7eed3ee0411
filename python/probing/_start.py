"""Starting with a program: what the installation's .pth file runs when PROBING (or PROBE) is set, before the program itself.

    0            off
    1            this process
    2            its children too: what it forks, and every Python that it starts
    regex:WORDS  every Python whose command line matches
    init:FILE, FILE.py   this process, and the file runs in it once the agent is there; also 1,init:FILE and 2,init:FILE

PROBING_PORT=PORT (or HOST:PORT) starts the service too, about this process; PROBING_TORCH_PROFILING=on the process that keeps the stacks of hangs.

Nothing here raises: a program never fails for want of us. With 1 the variable is taken out of the environment, so that children do
not see it.
"""
import os
import time

from . import _agent

TOOL_S = 5

NAMES = ("PROBING", "PROBE")
_begun = []  # the process in which it began
_records = []  # whether the forking process records


def begin():
    try:
        value = next((os.environ[name] for name in NAMES if os.environ.get(name)), "")
        if not value:  # already started: launch, in an environment that has the package and its .pth file
            return
        children, init = _read(value)
        if children is None or _begun == [os.getpid()]:
            return
        _begun[:] = [os.getpid()]
        if not children:
            for name in NAMES:
                os.environ.pop(name, None)
        elif hasattr(os, "register_at_fork"):  # 3.7
            os.register_at_fork(before=_before_fork, after_in_child=_in_child)
        _agent.recording(asked=True)
        if _agent.is_enabled():
            _start_outside()
        if init:
            _run(init)
    except Exception as error:
        _agent.warn("it could not be started: %s" % error)


def _before_fork():
    _records[:] = [_agent.is_enabled()]  # after a detach children get none either


def _in_child():
    try:
        if _records == [True] and _begun != [os.getpid()]:
            _begun[:] = [os.getpid()]
            _agent.start()
    except Exception as error:
        _agent.warn("it could not be started in a child: %s" % error)


def _read(value):
    """(whether children too, file to run or None); (None, None): do nothing."""
    value = value.strip()
    mode, comma, rest = value.partition(",")
    if comma and mode in ("1", "2"):
        children, value = mode == "2", rest.strip()
    else:
        children = None
    if value.startswith("regex:"):
        return (True, None) if _matches(value[len("regex:"):]) else (None, None)
    if value.startswith("init:"):
        return bool(children), value[len("init:"):]
    if value.endswith(".py"):
        return bool(children), value
    known = {"0": None, "off": None, "no": None, "false": None, "1": False, "on": False, "yes": False, "true": False, "2": True}
    if value.lower() not in known:
        _agent.warn("PROBING=%s is not understood (0, 1, 2, regex:WORDS, init:FILE): off" % value)
    return known.get(value.lower()), None


def _matches(pattern):
    import re

    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
    return re.search(pattern, " ".join(os.fsdecode(word) for word in words)) is not None


def _start_outside():
    """Starts the processes that belong outside, by a command each. Waited for: the program must find no child that it did not start."""
    records = os.environ.get("PROBING_TORCH_PROFILING", "").split(",")[0].lower() in ("on", "1", "true")
    wanted = [("inject", "--address=" + os.environ["PROBING_PORT"])] if os.environ.get("PROBING_PORT") else []
    if records or os.environ.get("PROBING_TORCH_EXPRS") or os.environ.get("PROBE_TORCH_EXPRS"):
        wanted.append(("probes", "start", "torch"))
    tool = _agent.find_tool() if wanted and hasattr(os, "posix_spawn") else None  # 3.8
    for words in wanted:
        if not tool or _run_tool([tool, "-t", str(os.getpid())] + list(words)) != 0:
            _agent.warn("`probing -t %d %s` could not be run" % (os.getpid(), " ".join(words)))


def _run_tool(words):
    """Its exit status. It gets no descriptor of this process: some launcher may wait for their end."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    given = [(os.POSIX_SPAWN_CLOSE, int(fd)) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and _is_inherited(int(fd))]
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=quiet + given)
    until = time.monotonic() + TOOL_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


def _is_inherited(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _run(path):
    """Runs the user's file, in its own namespace. An error in it is kept for messages() and does not end the program."""
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        exec(code, {"__name__": "__probing__", "__file__": path, "__builtins__": __builtins__})
    except Exception as error:
        _agent.warn("%s: %s: %s" % (path, type(error).__name__, error))
