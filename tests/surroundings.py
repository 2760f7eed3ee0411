"""What tests start from, whoever runs them and however: folders of their own and the usual signals.

scripts/test.py and tests/conftest.py call both functions first. Standard library only.
"""
import atexit
import os
import signal
import subprocess
import tempfile
from pathlib import Path

MARK = "PROBING_TEST_HOME"  # set once the folders are the tests' own: the home that was the user's
# Settings of the program itself. What concerns the tests (which program, the long form) stays.
OURS = {"PROBING_PROGRAM", "PROBING_SOAK", "PROBING_KIT", "PROBING_BUILT", "PROBING_SLOW", MARK}
# Tools that tests run to build or fetch something find their settings and caches in the user's home all the same.
TOOLS = {
    "GIT_CONFIG_GLOBAL": ".gitconfig", "PIP_CONFIG_FILE": ".config/pip/pip.conf", "PIP_CACHE_DIR": ".cache/pip",
    "NPM_CONFIG_USERCONFIG": ".npmrc", "NPM_CONFIG_CACHE": ".npm", "PYENV_ROOT": ".pyenv",
    "ZIG_GLOBAL_CACHE_DIR": ".cache/zig",
}


def user_home():
    """The home of whoever runs the tests, where interpreters are looked for."""
    return Path(os.environ.get(MARK) or os.path.expanduser("~"))


def take_folders():
    """Own folders for HOME, runtime files, data (the archive) and state (histories), removed when this process ends;
    and none of the user's settings. Nothing of the user's is read or written then."""
    if MARK in os.environ:
        return
    home = user_home()
    top = Path(tempfile.mkdtemp(prefix="probing-test-home-"))
    # Jobs of another user look through it.
    top.chmod(0o755)
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and subprocess.run(["rm", "-rf", top], stderr=subprocess.DEVNULL))
    for name in [name for name in os.environ if name.startswith("PROBING_") and name not in OURS]:
        del os.environ[name]
    for name, place in TOOLS.items():
        if (home / place).exists():
            os.environ.setdefault(name, str(home / place))
    os.environ[MARK] = str(home)
    os.environ["HOME"] = str(top)
    # pytest closes the folder above all its temporary ones to others each time it starts, also for runs beside it.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(top)
    for name, place in (("XDG_DATA_HOME", "data"), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config"),
                        ("XDG_CACHE_HOME", "cache"), ("XDG_RUNTIME_DIR", "runtime")):
        (top / place).mkdir(mode=0o700)
        os.environ[name] = str(top / place)


def take_signals():
    """SIGINT, SIGQUIT and SIGHUP as a shell in the foreground leaves them. `nohup make test &` ignores them, and a
    program that is started with a signal ignored rightly goes on to ignore it. This process still does nothing about
    them (nohup is obeyed), but by a handler, which exec resets to the default where it would keep "ignored"."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM})
