"""Shared by the checks on a machine with a GPU: the program under test, one line per check, and the verdict."""
import json
import subprocess
import sys

PROGRAM = sys.argv[1]
failed = 0


def check(what, good, seen):
    global failed
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {what}: {seen}", flush=True)


def verdict():
    """The last line, and the exit status."""
    print("FAIL" if failed else "PASS")
    return 1 if failed else 0


def probing(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=120)
    if done.returncode != 0:
        check(" ".join(map(str, words)), False, done.stderr.strip())
    return done.stdout


def rows(pid, sql):
    return json.loads(probing(pid, "query", "--format", "json", sql) or "[]")
