"""The wheel for musl: a root with musl's libc and nothing else, CPython for musl, and every kind of question there."""
import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import builds
import pytest
import roots

TOP = Path(__file__).resolve().parent.parent.parent
MACHINE = os.uname().machine
# freeze-core's CPython for musl, by its pin in requirements/builds.txt; its modules in C lie beside it.
PYTHON = "/opt/python/freeze_core/bases/python"
JOB = "import time\nanswer = 42\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900),
              pytest.mark.skipif(os.environ.get("PROBING_SOAK") != "1",
                                 reason="builds everything for musl (make soak)"),
              pytest.mark.skipif(MACHINE != "x86_64",
                                 reason="no wheel with CPython for musl is pinned for this machine")]


@pytest.fixture(scope="module")
def wheel():
    done = subprocess.run([TOP / "scripts/wheel.sh", MACHINE, "musl"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return TOP / done.stdout.split()[-1]


def put_python(root, where):
    requirement, _, version = builds.pin_of("cp313", f"{MACHINE}-musl")
    wish = where / "wish.txt"
    wish.write_text(requirement + "\n")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                    "--require-hashes", "--implementation=cp", "--abi=cp313", f"--python-version={version}",
                    f"--platform=musllinux_1_2_{MACHINE}", "-r", wish, "-d", where], check=True)
    top = root / "opt/python"
    with zipfile.ZipFile(next(where.glob("freeze_core-*.whl"))) as packed:
        packed.extractall(top)
    bases = top / "freeze_core/bases"
    program = next(bases.glob("console-cpython-*")).rename(root / PYTHON[1:])
    program.chmod(0o755)
    (top / "freeze_core/freeze_core.libs").symlink_to("../freeze_core.libs")  # as its modules look for them
    shutil.copytree(builds.library_of(version), bases / "lib", ignore=builds.LEFT_OUT)
    for module in (top / "freeze_core/lib").glob("*.so"):
        shutil.copy(module, bases / "lib")
    for name in ("__startup__.py", "__init__python.py"):
        (bases / "lib" / name).write_text(builds.STARTER)


@pytest.fixture(scope="module")
def root(wheel, tmp_path_factory):
    """The root with CPython and the wheel's files as pip leaves them."""
    root = tmp_path_factory.mktemp("musl") / "root"
    subprocess.run(["cp", "-a", roots.path("musl"), root], check=True)
    put_python(root, tmp_path_factory.mktemp("python"))
    with zipfile.ZipFile(wheel) as packed:
        for item in packed.infolist():
            found = re.match(r"[^/]+\.data/data/(.*[^/])$", item.filename)
            to = root / "opt/probing" / (found.group(1) if found else f"site/{item.filename}")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(packed.read(item))
            to.chmod(item.external_attr >> 16 & 0o777 or 0o644)
    (root / "tmp/job.py").write_text(JOB)
    return root


def run_in(root, command):
    """What a shell in the root prints, in a pid namespace of its own, with the job running as $job."""
    script = (f"{PYTHON} /tmp/job.py >/tmp/up & job=$!\n"
              f"until grep -q up /tmp/up; do sleep 0.1; done\n{command}\nr=$?\nkill $job\nexit $r")
    (root / "tmp/up").unlink(missing_ok=True)
    done = subprocess.run(["unshare", "--fork", "--pid", "--mount", f"--mount-proc={root}/proc", "--kill-child",
                           "chroot", root, "/bin/env", "-i", "PATH=/opt/probing/bin:/bin", "HOME=/root", "/bin/sh",
                           "-c", script],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_its_tag_is_what_auditwheel_finds(wheel):
    tag = subprocess.run([sys.executable, TOP / "scripts/wheel_tag.py", wheel], stdout=subprocess.PIPE, check=True,
                         universal_newlines=True).stdout.strip()
    assert tag == f"musllinux_1_2_{MACHINE}" and wheel.name.endswith(f"-py3-none-{tag}.whl")


def test_every_kind_of_question_is_answered(root):
    run = partial(run_in, root)
    assert "python" in run("probing list")
    assert "<module> (/tmp/job.py:4)" in run("probing -t $job backtrace")
    assert run("probing -t $job eval 'print(answer)'") == "42\n"
    out = run("probing -t $job query --format csv 'SELECT func, (SELECT 6 * 7) AS x FROM python.backtrace' 2>/dev/null")
    assert out.splitlines()[:2] == ["func,x", "<module>,42"]
    assert "<svg" in run("probing -t $job flamegraph -d 1 -o /tmp/f.svg >/dev/null && cat /tmp/f.svg")[:200]
    assert "is not probed any more" in run("probing -t $job inject && probing -t $job detach")


def test_doctor_finds_nothing_wrong(root):
    run = partial(run_in, root)
    states = re.findall(r"^pid \d+ +\w+ +(\w+)", run("probing -t $job doctor"), re.M)
    assert len(states) > 10 and set(states) == {"ok"}, states


def test_an_error_of_sql_is_a_sentence(root):
    """DuckDB throws exceptions, through GCC's library that came with it."""
    run = partial(run_in, root)
    assert "Parser Error: syntax error" in run("probing query 'SELCT 1' || true")
