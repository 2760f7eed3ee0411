"""The CPythons of this machine, 3.6 and newer: what is on the PATH and what pyenv has, one of each release."""
import functools
import glob
import os
import re
import subprocess

# Tests have a home of their own; the interpreters are in that of the user (tests/surroundings.py).
HOME = os.environ.get("PROBING_TEST_HOME") or os.path.expanduser("~")
CANDIDATES = ["/usr/bin/python3", "/usr/local/bin/python3", *glob.glob("/usr/bin/python3.*"),
              *glob.glob(f"{HOME}/.pyenv/versions/*/bin/python3")]


@functools.lru_cache(None)
def version_of(path):
    """(3, 11, 7), or None where it does not run or is no CPython."""
    code = "import sys; print(sys.implementation.name, *sys.version_info[:3])"
    done = subprocess.run([path, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          universal_newlines=True)
    words = done.stdout.split()
    return tuple(map(int, words[1:])) if done.returncode == 0 and words[:1] == ["cpython"] else None


def find():
    found = {}
    for path in CANDIDATES:
        if os.access(path, os.X_OK) and not re.search(r"-(config|dbg)$", path):
            version = version_of(path)
            if version and version >= (3, 6):
                found.setdefault(version, path)
    return [found[version] for version in sorted(found)]


INTERPRETERS = find()


def interpreter_id(path):
    return ".".join(map(str, version_of(path)))
