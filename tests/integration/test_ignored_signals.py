"""A command that is started with a signal ignored (nohup, a shell's background job) goes on to ignore it; started
otherwise it ends."""
import os
import signal
import subprocess
import time

import jobs
import pytest
from serve_kit import NEEDS_SERVE


def start(number, ignored, *words, **options):
    """The program with that signal ignored, or as a shell in the foreground leaves it."""
    def prepare():
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    return subprocess.Popen([str(jobs.PROGRAM), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, universal_newlines=True, preexec_fn=prepare, **options)


def takes(process, number):
    """Whether the program has a handler for it by now: it is past its start then."""
    caught = next(line.split()[1] for line in open(f"/proc/{process.pid}/status") if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("ignored", [True, False], ids=["ignored", "not ignored"])
@pytest.mark.parametrize("number, words", [
    (signal.SIGHUP, ["record", "--duration", "3"]), (signal.SIGINT, ["record", "--duration", "3"]),
    (signal.SIGHUP, ["flamegraph", "-o", "x.folded", "--duration", "3"]),
    (signal.SIGINT, ["eval", "import time\nfor _ in range(300):\n    time.sleep(0.01)\nprint('all of it')"]),
], ids=lambda value: value[0] if isinstance(value, list) else value.name)
def test_a_signal_ignored_on_entry_stays_ignored(number, words, ignored, tmp_path):
    with jobs.python() as job:
        began = time.monotonic()
        process = start(number, ignored, "-t", job.pid, *words, cwd=tmp_path)
        # SIGTERM is taken beside it where there is a handler at all; eval takes SIGINT alone.
        if not ignored or words[0] != "eval":
            jobs.wait_until(lambda: takes(process, signal.SIGTERM if words[0] != "eval" else number), what="a handler")
        time.sleep(1)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        took = time.monotonic() - began
        assert (took > 2.9) == ignored, (took, out, err)
        if ignored:
            assert process.returncode == 0, err
            assert words[0] != "eval" or "all of it" in out
        assert job.alive()


def test_an_archive_in_the_background_of_a_shell_is_not_interrupted(tmp_path):
    with jobs.python() as job:
        assert jobs.probe(job.pid, "inject").returncode == 0
        process = start(signal.SIGINT, True, "-t", job.pid, "archive", "--to", tmp_path)
        jobs.wait_until(lambda: takes(process, signal.SIGTERM), what="a handler")
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=10)
        assert process.returncode == 0, err


@NEEDS_SERVE
@pytest.mark.parametrize("ignored", [True, False], ids=["ignored", "not ignored"])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_service_that_nohup_starts_goes_on(number, ignored, tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    process = start(number, ignored, "serve", env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")})
    try:
        assert "token" in process.stdout.readline()
        process.send_signal(number)
        if not ignored:
            assert process.wait(10) == 0
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
