"""The .deb and the .rpm: installed, used on a job and removed in roots of other systems, and nothing of them left."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import roots

TOP = Path(__file__).resolve().parent.parent.parent
JOB = "import time; answer = 42; print('up', flush=True); [time.sleep(0.05) for _ in range(6000)]"
PYTHON = {"bullseye": "python3", "sid": "python3.14"}
OWN = ("find / -xdev -path '*prob*' ! -path '/tmp/*' ! -path '/dev/*' ! -path '/proc/*' ! -path '/var/lib/dpkg/*'"
       " ! -path '/var/log/*'")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900),
              pytest.mark.skipif(os.environ.get("PROBING_SOAK") != "1", reason="packs for minutes (make soak)")]


@pytest.fixture(scope="module")
def packages():
    """{".deb": path, ".rpm": path}; the second only where rpmbuild is."""
    done = subprocess.run([TOP / "scripts/packages.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return {Path(name).suffix: TOP / name for name in re.findall(r"dist/\S+", done.stdout)}


@pytest.fixture(params=["bullseye", "sid"])
def root(request, tmp_path):
    """(its name, a copy of that root)"""
    copy = tmp_path / "root"
    subprocess.run(["cp", "-a", roots.path(request.param), copy], check=True)
    yield request.param, copy
    shutil.rmtree(copy)


def run_in(root, command):
    done = subprocess.run(["unshare", "--fork", "--pid", "--mount", f"--mount-proc={root}/proc", "--kill-child",
                           "chroot", root, "/bin/sh", "-c", command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})
    assert done.returncode == 0, done.stdout
    return done.stdout


def use(root, python):
    """Asks a job there, and the service as far as it goes without its library."""
    out = run_in(root, f"{python} -c \"{JOB}\" >/tmp/up & job=$!\nuntil grep -q up /tmp/up; do sleep 0.1; done\n"
                 "set -e\nprobing -t $job backtrace\nprobe -t $job eval 'print(answer)'\n"
                 "probing -t $job query --format csv 'SELECT 6 * 7 AS x'\nprobing version --json\n"
                 "probing serve 127.0.0.1:0 || true\nkill $job")
    assert "<module> (<string>:1)" in out and "\n42\nx\n42\n" in out, out
    about, = json.loads(re.search(r"^\[\n.*\n\]", out, re.M).group())
    assert (about["sql"], about["serve"], about["agents"], about["prefix"]) == ("yes", "yes", "glibc musl", "/usr")
    assert "libmicrohttpd" in out.splitlines()[-1], out


def test_the_deb_is_installed_used_and_removed_without_a_trace(packages, root):
    name, where = root
    shutil.copy(packages[".deb"], where / "tmp/probing.deb")
    before = run_in(where, OWN)
    run_in(where, "dpkg -i /tmp/probing.deb")
    use(where, PYTHON[name])
    assert run_in(where, "cd /usr/share && test -s bash-completion/completions/probe && zcat man/man1/probe.1.gz"
                  ).startswith(".TH PROBING 1")
    run_in(where, "dpkg -P probing && rm -rf /tmp/*")
    assert run_in(where, OWN) == before


def test_the_rpm_has_the_same_files(packages, tmp_path):
    if ".rpm" not in packages:
        pytest.skip("rpmbuild is not installed (make soak)")
    files, folders = set(), set()
    for line in subprocess.run(["dpkg-deb", "-c", packages[".deb"]], stdout=subprocess.PIPE, check=True,
                               universal_newlines=True).stdout.splitlines():
        path = line.split(None, 5)[5].split(" -> ")[0][1:]
        if "lintian" not in path and "changelog.Debian" not in path:
            (folders if path.endswith("/") else files).add(path.rstrip("/"))
    listed = set(subprocess.run(["rpm", "-qlp", packages[".rpm"]], stdout=subprocess.PIPE, check=True,
                                universal_newlines=True).stdout.split())
    assert len(files) > 60 and files <= listed and listed - files <= folders, listed ^ files


def test_lintian_has_nothing_to_say(packages):
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed (make soak)")
    done = subprocess.run(["lintian", "--allow-root", packages[".deb"]], stdout=subprocess.PIPE,
                          universal_newlines=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout
