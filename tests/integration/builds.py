"""CPythons that distributions lack, unpacked from wheels that contain one: free-threaded builds in the launchers of
freeze-core, 3.4 and 3.5 in that of panda3d; for aarch64, where no distribution at hand has them, 3.7 to 3.11 (without
3.8) too. Each is a static, stripped program under a name of its own.

    with builds.start("cp314t", script) as job:
        ...

Their standard library is that of an interpreter at hand. A test that cannot have one skips and says why. `builds.py
FOLDER aarch64` makes those of another machine, to be carried there (scripts/arm64.sh).
"""
import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import interpreters
import jobs
import pytest
import roots

TOP = Path(__file__).resolve().parent.parent.parent
FOLDER = TOP / "build/builds"
FREE_THREADED = ["cp313t", "cp314t", "cp315t"]
OLD = ["cp34m", "cp35m"]
# Where the layout of the runtime depends on the machine: for aarch64 only, pyenv has them for this one.
WITH_MUTEXES = ["cp37m", "cp39", "cp310", "cp311"]
CARRIED = {"aarch64": [*WITH_MUTEXES, *FREE_THREADED]}
PROGRAM = {"freeze-core": r"freeze_core/bases/console-cpython-\w+-\w+-linux-gnu$",
           "panda3d": r"panda3d_tools/deploy-stub$", "cx_Freeze": r"cx_Freeze/bases/console-cpython-\w+-\w+-linux-gnu$"}
LIBRARY = r"cx_Freeze/bases/lib/libcrypt-[^/]*$"  # what that one needs beside itself
# Of a standard library that is carried to another machine: modules that are large and not needed, or for this machine
# only.
LEFT_OUT = shutil.ignore_patterns("__pycache__", "config-*", "distutils", "ensurepip", "idlelib", "lib-dynload",
                                  "lib2to3", "pydoc_data",
                                  "site-packages", "sitecustomize.py", "test", "tests", "tkinter", "turtledemo")

# What the launcher of freeze-core looks for and calls.
STARTER = """
import sys
def init():
    pass
def run(*_):
    del sys.argv[0]
    space = sys.modules["__main__"].__dict__
    space["__name__"] = "__main__"
    with open(sys.argv[0], encoding="utf-8") as f:
        exec(compile(f.read(), sys.argv[0], "exec"), space)
"""


def pin_of(tag, machine):
    """The requirement with its hash, the name of the package, and the version of Python."""
    for line in (TOP / "requirements/builds.txt").read_text().splitlines():
        found = re.match(r"((\S+)==\S+ \S+) # (\S+) (\S+) (\S+)$", line)
        if found and found.group(4, 5) == (tag, machine):
            return found.group(1), found.group(2), found.group(3)
    return pytest.skip(f"no wheel with {tag} is pinned for {machine}")


def library_of(version):
    """A folder with the modules of that version in Python; 3.6 still has what 3.4 and 3.5 need to start."""
    wanted = {"3.4": "3.6", "3.5": "3.6"}.get(version, version)
    for path in interpreters.INTERPRETERS:
        if ".".join(map(str, interpreters.version_of(path)[:2])) == wanted:
            code = "import sysconfig; print(sysconfig.get_paths()['stdlib'])"
            return subprocess.run([path, "-c", code], stdout=subprocess.PIPE, check=True,
                                  universal_newlines=True).stdout.strip()
    if f"/usr/bin/python{wanted}" in roots.INTERPRETERS["sid"]:
        return str(roots.path("sid") / f"usr/lib/python{wanted}")
    return pytest.skip(f"there is no standard library of Python {wanted}")


def unpack(tag, where, machine):
    requirement, package, version = pin_of(tag, machine)
    wish = where / "wish.txt"
    wish.write_text(requirement + "\n")
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux1", "manylinux2014", "manylinux_2_17")]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                           "--implementation=cp",
                           f"--python-version={version}", f"--abi={tag}", *platforms, "--require-hashes", "-r", wish,
                           "-d", where],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        pytest.skip(f"{package} for {tag} cannot be had: {done.stdout.strip()[-200:]}")
    modules = Path(library_of(version))
    if machine == os.uname().machine:
        (where / "lib").mkdir()
        for module in modules.iterdir():
            (where / "lib" / module.name).symlink_to(module)
    else:
        shutil.copytree(modules, where / "lib", ignore=LEFT_OUT)
    wheel = next(where.glob("*.whl"))
    with zipfile.ZipFile(wheel) as z:
        name = next(name for name in z.namelist() if re.search(PROGRAM[package], name))
        (where / "trainer").write_bytes(z.read(name))
        for name in [name for name in z.namelist() if re.match(LIBRARY, name)]:
            (where / "lib" / Path(name).name).write_bytes(z.read(name))
    (where / "trainer").chmod(0o755)
    wheel.unlink()
    for name in ("__startup__.py", "__init__trainer.py"):
        (where / "lib" / name).write_text(STARTER)


def path(tag, folder=FOLDER, machine=os.uname().machine):
    """The folder of that build, made now if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{tag}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / tag).exists():
            part = folder / f"{tag}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            unpack(tag, part, machine)
            part.rename(folder / tag)
    return folder / tag


def start(tag, script, ready="ready"):
    """A script in a free-threaded build."""
    return jobs.start(path(tag) / "trainer", script, ready=ready)


@contextmanager
def start_by_hand(tag, script, starter, ready="ready"):
    """A script in a build whose launcher can start nothing of ours: `starter` (targets/python_starter.c, compiled) does
    instead."""
    folder = path(tag)
    env = {"LD_PRELOAD": str(starter), "STARTER_PATH": str(folder / "lib"), "STARTER_SCRIPT": str(script)}
    with jobs.start(folder / "trainer", ready=ready, env=env) as job:
        yield job


if __name__ == "__main__":
    for each in CARRIED[sys.argv[2]]:
        try:
            path(each, Path(sys.argv[1]), sys.argv[2])
        except pytest.skip.Exception as e:
            print(f"builds: without {each}: {e}")
