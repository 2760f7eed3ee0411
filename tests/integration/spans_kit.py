"""What tests of spans share: programs that open some, and what they recorded."""
import json
import subprocess

import interpreters
import jobs

SOURCES = str(jobs.TOP / "python")
HEAD = f"import sys; sys.path.insert(0, {SOURCES!r}); import probing\n"
WITH_CONTEXTS = [path for path in interpreters.INTERPRETERS if interpreters.version_of(path) >= (3, 7)]


def rows(target, sql):
    done = jobs.probe("-t", target, "query", "--format", "json", sql)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(python, code):
    """What a program recorded by the time it says so."""
    with subprocess.Popen([python, "-c", HEAD + code + "\nprint('ready', flush=True); sys.stdin.readline()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            found = rows(job.pid, "SELECT name, span_id, parent_id, trace_id, phase, ended IS NULL AS is_open, error "
                                  "FROM python.trace_event")
        finally:
            job.kill()
    jobs.forget(job.pid)
    return found
