"""Targets in another root, pid namespace and libc: as the tool on the node sees the processes of a container."""
import json
import os
import subprocess

import jobs
import pytest
import roots
from jobs import probe

CODE = """
import time
def train():
    loss = 2.5
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
train()
"""

EVERY = [(name, program) for name in roots.INTERPRETERS for program in roots.INTERPRETERS[name]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", EVERY)
def test_a_process_in_a_container_is_probed_like_any_other(name, program):
    with roots.start(name, program, "-c", CODE, env={"RANK": "4"}) as target:
        target.wait_for("ready")
        done = probe(target.pid, "inject")
        assert done.returncode == 0, done.stderr
        assert probe(target.pid, "eval", "print(loss)").stdout == "2.5\n"
        assert probe(target.pid, "eval", "import os; os.getpid()").stdout == "1\n", "it is process 1 in there"
        row = next(row for row in json.loads(probe("list", "--format", "json").stdout) if row["pid"] == target.pid)
        assert row["state"] == "probed"
        assert row["rank"] == "4"
        assert row["python"].startswith(program.rpartition("python")[2])
        assert "memory_usage" in probe(target.pid, "tables").stdout
        started = open(f"/proc/{target.pid}/stat").read().rpartition(")")[2].split()[19]
        inside = f"{os.stat(f'/proc/{target.pid}/ns/pid').st_ino}-1-{started}"
        runs = [path for place in ("dev/shm", "tmp", "var/tmp")
                for path in (target.root / place).glob(f"probing-0/{inside}")]
        assert len(runs) == 1, "the run directory is in the target's own view"
        assert probe(target.pid, "detach").returncode == 0
        assert not (runs[0] / "control").exists()
        done = probe(target.pid, "query", "--format", "csv", "SELECT count(*) > 0 AS n FROM memory_usage")
        assert done.stdout.split()[1] == "true", "what it recorded is read in its view"
        assert "not probed any more" in done.stderr, "what it recorded is read in its view"
        assert target.alive()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name, program", EVERY)
def test_a_held_gil_is_named_there_too(name, program):
    hold = "import ctypes; print('ready', flush=True); ctypes.PyDLL(None).sleep(30)"
    with roots.start(name, program, "-c", hold) as target:
        target.wait_for("ready")
        done = probe(target.pid, "eval", "1", "--timeout", "0.5")
        assert done.returncode == 1 and "held by thread 1 (main thread)" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def musl_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("musl")
    (folder / "sleeper.c").write_text('#include <stdio.h>\n#include <unistd.h>\n'
                                      'int main(void) { puts("ready"); fflush(stdout); for (;;) sleep(1); }\n')
    subprocess.run(["musl-gcc", "-O1", "-o", folder / "sleeper", folder / "sleeper.c"], check=True)
    return folder / "sleeper"


def test_a_musl_program_gets_the_agent_made_for_it(musl_program):
    with jobs.start(musl_program, ready="ready") as job:
        done = probe(job.pid, "inject")
        assert done.returncode == 0, done.stderr
        assert "memory_usage" in probe(job.pid, "tables").stdout
        assert sorted(job.threads()) == ["probing", "probing-start", "probing-wake", "sleeper"]
        done = probe(job.pid, "eval", "1")
        assert done.returncode == 1 and "there is no Python" in done.stderr
        assert probe(job.pid, "detach").returncode == 0
        jobs.wait_until(lambda: job.threads() == ["sleeper"])
        assert job.alive()


def test_the_agents_ask_for_old_symbols_only(top):
    text = subprocess.run(["objdump", "-T", top / "build/release/lib/probing/libprobing-glibc.so"],
                          stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    versions = {tuple(map(int, word[6:].rstrip(")").split("."))) for line in text.splitlines()
                for word in line.replace("(", "").split()
                if word.startswith("GLIBC_")}
    print(sorted(versions))
    assert versions and max(versions) <= (2, 17)
