"""The wheel and the release archive: they install or unpack, and what is in them runs with SQL where no build tree is,
down to the oldest libc at hand that they promise."""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import interpreters
import pytest
import roots

SQL = "SELECT count(*) > 0 AS there, (SELECT 6 * 7) AS x FROM python.backtrace"
# Ubuntu 18.04 has glibc 2.27, one more than the wheel's tag says. Nothing with 2.26 can be had here.
ROOTS = ["bionic", "bullseye"]
# Not one long sleep: Python 3.6 has no GIL before its main thread runs Python code again.
SLEEP = "import time; answer = 42; print('up', flush=True); [time.sleep(0.05) for _ in range(6000)]"


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def without_the_build_tree(top, *command):
    """Runs a command where build/ is an empty folder, in a mount namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("hiding the build tree needs root rights (mount)")
    hide = f"mount -t tmpfs none '{top}/build' && exec \"$@\""
    return run("unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh", *command)


@pytest.fixture(scope="module")
def wheel(top):
    # The script itself installs what it built into a new environment and runs both names.
    return top / run(top / "scripts/wheel.sh").split()[-1]


@pytest.fixture(scope="module")
def archive(top):
    run(top / "scripts/build.sh", "zig", "all")
    return top / run(top / "scripts/dist.sh").split()[-1]


@pytest.fixture(scope="module")
def unpacked(wheel, archive, tmp_path_factory):
    """{"wheel": prefix, "archive": prefix}, as pip and tar would leave them, outside the project."""
    where = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as packed:
        packed.extractall(where)
    prefix = where / "wheel"
    with zipfile.ZipFile(wheel) as packed:
        for item in packed.infolist():
            found = re.match(r"[^/]+\.data/data/(.*[^/])$", item.filename)
            if found:
                to = prefix / found.group(1)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(packed.read(item))
                to.chmod(item.external_attr >> 16 & 0o777 or 0o644)
    return {"wheel": prefix, "archive": next(path for path in where.glob("probing-*") if path.is_dir())}


@pytest.mark.timeout(400)
def test_the_name_of_the_wheel_promises_what_auditwheel_finds(wheel, top):
    assert f"-py3-none-{run(sys.executable, top / 'scripts/wheel_tag.py', wheel).strip()}.whl" in wheel.name
    # And by our own reading: no library in it wants a newer glibc than the tag says.
    promised = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)", wheel.name).groups()))
    wanted = set()
    for library in (top / "build/wheel/venv/lib/probing").glob("*.so*"):
        wanted |= {tuple(map(int, v.split(".")))
                   for v in re.findall(r"GLIBC_([0-9.]+)", run("readelf", "-VW", library))}
    assert (2, 17) <= max(wanted)[:2] <= promised


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["wheel", "archive"])
def test_runs_with_sql_without_the_build_tree(kind, unpacked, top):
    program = unpacked[kind] / "bin/probing"
    links = [path for path in unpacked[kind].rglob("*") if path.is_symlink()]
    assert not [path for path in links if "/" in os.readlink(path)]
    assert not (unpacked[kind] / "lib/probing/libduckdb.so").is_symlink()
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE) as target:
        try:
            target.stdout.readline()
            assert without_the_build_tree(top, program, "-t", target.pid, "eval", "print(answer)") == "42\n"
            assert without_the_build_tree(top, program, "-t", target.pid, "query", "--format", "csv",
                                          SQL).split() == ["there,x", "true,42"]
        finally:
            target.kill()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.environ.get("PROBING_SOAK") != "1", reason="installs into every interpreter (make soak)")
@pytest.mark.parametrize("python", interpreters.INTERPRETERS, ids=interpreters.interpreter_id)
def test_pip_installs_it_and_the_program_starts_with_it(python, wheel, tmp_path):
    run(python, "-m", "venv", tmp_path / "venv")
    program = tmp_path / "venv/bin/python"
    pip = tuple(map(int, re.findall(r"\d+", run(program, "-m", "pip", "--version"))[:2]))
    if pip < (20, 3):  # it does not know manylinux_2_26; the newest for Python 3.6 does
        run(program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "pip==21.3.1")
    run(program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", wheel)
    with subprocess.Popen([program, "-c", SLEEP], stdout=subprocess.PIPE, env={**os.environ, "PROBING": "1"}) as target:
        try:
            target.stdout.readline()
            probing = tmp_path / "venv/bin/probing"
            assert run(probing, "-t", target.pid, "eval", "import probing; print(answer, probing.is_enabled())"
                       ) == "42 True\n"
            assert run(probing, "-t", target.pid, "query", "--format", "csv", SQL).split() == ["there,x", "true,42"]
        finally:
            target.kill()


@pytest.mark.timeout(400)
def test_the_small_archive_does_all_but_sql(archive, tmp_path):
    small = archive.with_name(archive.name.replace(".tar.gz", "-small.tar.gz"))
    assert small.stat().st_size <= 2_000_000
    with tarfile.open(small) as packed:
        packed.extractall(tmp_path)
    program = next(tmp_path.glob("probing-*/bin/probing"))
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE) as target:
        try:
            target.stdout.readline()
            assert "<module>" in run(program, "-t", target.pid, "backtrace")
            assert run(program, "-t", target.pid, "eval", "print(answer)") == "42\n"
        finally:
            target.kill()
    done = subprocess.run([program, "query", "SELECT 1"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "probing-sql" in done.stderr, done.stderr


@pytest.mark.timeout(400)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("kind", ["wheel", "archive"])
def test_runs_with_sql_on_an_old_system(kind, root, unpacked):
    inside = roots.path(root) / f"tmp/probing-{kind}"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(unpacked[kind], inside, symlinks=True)
    program = f"/tmp/probing-{kind}/bin/probing"
    script = (f"rm -f /tmp/up\npython3 -c \"{SLEEP}\" >/tmp/up & pid=$!\nuntil grep -q up /tmp/up; do sleep 0.1; done\n"
              f"{program} -t $pid eval 'print(answer)' && {program} -t $pid query --format csv '{SQL}'\nr=$?\nkill "
              f"$pid\nexit $r")
    try:
        out = run("unshare", "--fork", "--pid", "--mount", f"--mount-proc={roots.ROOTS / root}/proc", "--kill-child",
                  "chroot", roots.ROOTS / root,
                  "/bin/sh", "-c", script, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
        assert out.split() == ["42", "there,x", "true,42"]
    finally:
        shutil.rmtree(inside, ignore_errors=True)
