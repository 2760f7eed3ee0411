"""Prints the platform tag that auditwheel finds true of a wheel: scripts/wheel_tag.py WHEEL

The agent for the other libc is left out of the copy that auditwheel looks at: it is opened in processes of that libc
only, never where the wheel's programs run. auditwheel opens the libraries that a program needs: for musl, whose libc
is seldom on the machine that builds, it finds an empty library of that name.
"""
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def libc_of(wheel):
    """What the programs of a wheel are for, by the loader that `probing` names; and their machine."""
    with zipfile.ZipFile(wheel) as whole:
        name = next(name for name in whole.namelist() if name.endswith("/bin/probing"))
        loader = re.search(rb"/lib/ld-musl-(\w+)\.so", whole.read(name)[:1 << 20])
    return ("musl", loader.group(1).decode()) if loader else ("glibc", None)


def without_other_agent(wheel, folder, libc):
    left_out = f"/libprobing-{'glibc' if libc == 'musl' else 'musl'}.so"
    copy = Path(folder) / Path(wheel).name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(copy, "w") as part:
        for item in whole.infolist():
            data = whole.read(item)
            if item.filename.endswith(".dist-info/RECORD"):  # auditwheel opens what is listed there
                data = b"".join(line for line in data.splitlines(True) if left_out.encode() not in line)
            if not item.filename.endswith(left_out):
                part.writestr(item, data)
    return copy


def make_libc(folder, machine):
    subprocess.run([TOP / "scripts/zig-cc", f"--target={machine}-linux-musl", "-shared", "-nostdlib", "-xc", "/dev/null",
                    "-o", Path(folder) / f"libc.musl-{machine}.so.1"], check=True)


def tag_of(wheel):
    libc, machine = libc_of(wheel)
    with tempfile.TemporaryDirectory() as folder:
        where = []
        if libc == "musl":
            make_libc(folder, machine)
            where = ["--ldpaths", folder]
        done = subprocess.run([sys.executable, "-m", "auditwheel", "show", *where,
                               without_other_agent(wheel, folder, libc)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    found = re.search(r'is\s+consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"(\w+)"', done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"wheel: auditwheel cannot judge {wheel}:\n{done.stdout[-2000:]}")
    return found.group(1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/wheel_tag.py WHEEL")
    print(tag_of(sys.argv[1]))
