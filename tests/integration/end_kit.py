"""The end of a program: what its threads do where it does not come."""
import subprocess
import time
from pathlib import Path

import jobs
from jobs import SLOW


def describe_threads(pid):
    """Of each thread its name, its system call and where it is in the kernel; then the stacks, as `backtrace --native`
    reads them. For the message of a failed test: what can be had, and no error."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        words = [f"thread {task.name}"]
        for name in ("comm", "wchan", "syscall"):
            try:
                words.append((task / name).read_text().strip())
            except OSError as error:
                words.append(error.strerror)
        lines.append(", ".join(words))
    try:
        done = jobs.probe("-t", pid, "backtrace", "--native", timeout=30)
        lines.append(done.stdout + done.stderr)
    except subprocess.TimeoutExpired:
        lines.append("backtrace does not return within 30 s")
    return "\n".join(lines)


def ask_until_it_ends(job, *words, seconds=60):
    """Runs the command on the job again and again, as long as it lives."""
    until = time.monotonic() + seconds * SLOW
    while job.alive():
        asked = subprocess.Popen([str(jobs.PROGRAM), *map(str, words)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while asked.poll() is None and job.alive():
                assert time.monotonic() < until, (
                    f"process {job.pid} has not ended. It printed {job.output!r}\n{describe_threads(job.pid)}")
                time.sleep(0.01)
        finally:
            if job.alive():
                asked.kill()
            asked.wait(timeout=60 * SLOW)
