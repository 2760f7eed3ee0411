"""Programs of torch whose functions a test runs one by one, by words in a file, and the answer of each in JSON."""
import json
import sys
import time
from contextlib import contextmanager

import jobs
from jobs import probe


@contextmanager
def program(text, folder):
    """text: it prints "ready", runs the function of each word in the file of its first argument, and prints
    [how many it has run, what that one returned]."""
    (folder / "job.py").write_text(text)
    (folder / "word").write_text("")
    with jobs.start(sys.executable, folder / "job.py", folder / "word", ready="ready\n", ready_seconds=90) as started:
        started.word, started.answered = folder / "word", 0
        yield started


def run(job, name, *settings):
    """Runs one of the program's functions with the probe on from before it. Gives what it returned and a condition for
    its rows."""
    assert probe(job.pid, "probes", "stop", "torch").returncode in (0, 1)
    assert probe(job.pid, "probes", "start", "torch", *(settings or ("budget=off",))).returncode == 0
    jobs.wait_until(lambda: "of the steps" in probe(job.pid, "probes").stdout, 20, "the probe")
    since = time.time_ns() // 1000
    job.answered += 1
    job.word.write_text(job.word.read_text() + name + " ")
    answers = lambda: [json.loads(line) for line in job.output.splitlines() if line.startswith("[")]
    jobs.wait_until(lambda: not job.alive() or len(answers()) >= job.answered, 60, name)
    assert job.alive(), job.output
    return answers()[-1][1], f"timestamp >= make_timestamptz({since})"
