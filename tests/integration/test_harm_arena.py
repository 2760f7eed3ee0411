"""The tables cannot harm the process that writes them, whatever is done to their files, and outlive it all the same."""
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import jobs
import pytest
from jobs import probe

F_GET_SEALS, F_SEAL_SHRINK = 1034, 2


def probing(pid, *words, **options):
    return probe("-t", pid, *words, **options)


def rows_of(pid, **options):
    done = probing(pid, "query", "--format", "json", "SELECT count(*) AS n, max(timestamp) AS t FROM memory_usage",
                   **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]["n"]


@pytest.fixture
def place(tmp_path):
    """Runs go there, for tools and target."""
    return {"PROBING_DIR": str(tmp_path)}


@contextlib.contextmanager
def probed(place):
    env = {**os.environ, **place}
    with jobs.python(env=place) as job:
        done = probing(job.pid, "inject", env=env)
        assert done.returncode == 0, done.stderr
        copy, = Path(place["PROBING_DIR"]).glob(f"probing-*/*-{job.pid}-*/arena")
        yield job, copy, env


def alive(job):
    time.sleep(0.3)
    return job.alive()


@pytest.mark.parametrize("size", [0, 1, 4096, 1_200_000])
def test_a_cut_file_harms_nobody_and_is_written_anew(place, size):
    with probed(place) as (job, copy, env):
        for _ in range(3):
            os.truncate(copy, size)
            time.sleep(0.3)
        assert alive(job)
        before = rows_of(job.pid, env=env)
        time.sleep(2.2)
        assert rows_of(job.pid, env=env) >= before + 2
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        assert rows_of(job.pid, env=env) >= before


def test_a_removed_directory_harms_nobody_and_is_told(place):
    with probed(place) as (job, copy, env):
        copy.unlink()
        time.sleep(1.2)
        assert alive(job)
        done = probing(job.pid, "query", "SELECT count(*) FROM memory_usage", env=env)
        assert done.returncode == 0 and "will not outlive the process" in done.stderr


def test_a_full_disk_harms_nobody(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mounted], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with probed({"PROBING_DIR": str(mounted)}) as (job, copy, env):
            with contextlib.suppress(OSError), open(mounted / "big", "wb") as big:
                while True:
                    big.write(bytes(65536))
                    big.flush()
            time.sleep(2)
            assert alive(job)
            assert rows_of(job.pid, env=env) > 0
    finally:
        subprocess.run(["umount", "-l", mounted])


def test_rows_are_seen_at_once_and_read_only(place):
    with probed(place) as (job, copy, env):
        links = {}
        for task in Path(f"/proc/{job.pid}/task").iterdir():
            for fd in (task / "fd").iterdir():
                with contextlib.suppress(OSError):
                    links[os.readlink(fd)] = fd
        live = next(fd for link, fd in links.items() if link.startswith("/memfd:arena"))
        flags = int(re.search(r"flags:\s*(\d+)", (live.parent.parent / "fdinfo" / live.name).read_text()).group(1), 8)
        assert flags & os.O_ACCMODE == os.O_RDONLY
        with open(live, "rb") as memory:
            assert fcntl.fcntl(memory, F_GET_SEALS) & F_SEAL_SHRINK
        with pytest.raises(OSError):
            os.truncate(live, 0)
        assert rows_of(job.pid, env=env) > 0


def test_a_stopped_process_is_read_from_its_copy(place):
    with probed(place) as (job, copy, env):
        time.sleep(2.2)
        os.kill(job.pid, signal.SIGSTOP)
        try:
            began = jobs.calm()
            assert rows_of(job.pid, env=env) >= 2
            assert jobs.calm() - began < 3
        finally:
            os.kill(job.pid, signal.SIGCONT)


def test_a_killed_process_leaves_all_but_the_last_moment(place):
    with probed(place) as (job, copy, env):
        time.sleep(2.5)
        before = rows_of(job.pid, env=env)
        time.sleep(0.3)
        os.kill(job.pid, signal.SIGKILL)
        job.process.wait()
        assert rows_of(job.pid, env=env) >= before


def test_no_setting_lifts_what_the_place_has_room_for(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", mounted], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with probed({"PROBING_DIR": str(mounted)}) as (job, copy, env):
            def bound():
                return int.from_bytes(copy.read_bytes()[104:112], "little")

            first = bound()
            assert 0 < first <= 20 << 20  # the copy there takes half of what is free at most
            for setting in ["probing.sample_rate=0.5", "probing.max_memory=1GB"]:
                assert probing(job.pid, "config", setting, env=env).returncode == 0
                time.sleep(0.5)
                assert bound() <= 20 << 20
    finally:
        subprocess.run(["umount", "-l", mounted])
