"""Prints the platform tag that auditwheel finds true of a wheel: scripts/wheel_tag.py WHEEL

The agent for musl is left out of the copy that auditwheel looks at: it is opened in processes of musl only, never where
the wheel's own glibc is, and auditwheel would look for musl's libc on this machine.
"""
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


LEFT_OUT = "/libprobing-musl.so"


def without_musl(wheel, folder):
    copy = Path(folder) / Path(wheel).name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(copy, "w") as part:
        for item in whole.infolist():
            data = whole.read(item)
            if item.filename.endswith(".dist-info/RECORD"):  # auditwheel opens what is listed there
                data = b"".join(line for line in data.splitlines(True) if LEFT_OUT.encode() not in line)
            if not item.filename.endswith(LEFT_OUT):
                part.writestr(item, data)
    return copy


def tag_of(wheel):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "auditwheel", "show", without_musl(wheel, folder)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    found = re.search(r'is\s+consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"(\w+)"', done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"wheel: auditwheel cannot judge {wheel}:\n{done.stdout[-2000:]}")
    return found.group(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/wheel_tag.py WHEEL")
    print(tag_of(sys.argv[1]))
