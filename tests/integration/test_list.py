"""Runs of processes that have ended: how they are listed and named, also where a pid was used again."""
import json
import os
import re
import signal

import jobs
import pytest


class Place:
    """A folder of runs of its own, in which processes end."""

    def __init__(self, path):
        path.chmod(0o755)
        self.path, self.archive = path, path / "archive"
        self.env = {**os.environ, "PROBING_DIR": str(path), "PROBING_ARCHIVE": str(self.archive)}

    def probe(self, *words):
        return jobs.probe(*words, env=self.env)

    def folder(self, pid):
        return next(self.path.glob(f"probing-*/*-{pid}-*"))

    def end(self, rate, pid=None):
        """A probed process that was killed. rate: a setting that tells it from others. pid: the number it shall have
        had, as after 32,768 others its number is used again: the folder's name tells it."""
        with jobs.python(env={"PROBING_SAMPLE_RATE": rate}) as job:
            assert self.probe(job.pid, "inject").returncode == 0
            job.process.kill()
            job.process.wait()
            run = self.folder(job.pid)
            if pid:
                space, _, start = run.name.split("-")
                about = (run / "about").read_text().replace(f"pid={job.pid}\n", f"pid={pid}\n")
                (run / "about").write_text(about)
                run.rename(run.parent / f"{space}-{pid}-{start}")
            return pid or job.pid

    def rows(self):
        rows = json.loads(self.probe("list", "--json").stdout)
        mine = {path.name.split("-")[1] for path in self.path.glob("probing-*/*-*-*")}
        return [row for row in rows if row["state"] == "dead" and str(row["pid"]) in mine]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def rate_of(place, target):
    done = place.probe("-t", target, "config", "probing.sample_rate", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]["value"], done.stderr


def first_row(place, target):
    done = place.probe("-t", target, "query", "--format", "csv", "SELECT min(timestamp) AS t FROM memory_usage")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()[1]


def test_an_id_names_one_of_several_runs_that_had_the_same_pid(place):
    pid = place.end("0.25")
    os.utime(next(place.path.glob("probing-*/*/arena")), (1, 2_000_000_000))  # the newest, whatever comes
    place.end("0.5", pid=pid)
    place.end("0.75", pid=pid)
    rows = [row for row in place.rows() if row["pid"] == pid]
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == 3 and all(re.fullmatch(rf"{pid}@[0-9a-z]+", text) for text in ids)
    assert [row["id"] for row in place.rows() if row["pid"] == pid] == ids, "they stay the same"
    assert sorted(rate_of(place, text) for text in ids) == [("0.25", ""), ("0.5", ""), ("0.75", "")]
    rate, said = rate_of(place, pid)
    assert rate == "0.25", "the newest"
    assert said == (f"note: the newest, {ids[0]}, was taken; 2 ended runs had the same pid: -t {ids[1]}, -t {ids[2]} "
                    f"(probing list --dead)\n")
    for text in ids:
        for words in (["tables"], ["memory"], ["query", "SELECT count(*) FROM memory_usage"], ["archive", "--once"]):
            done = place.probe("-t", text, *words)
            assert done.returncode == 0 and "same pid" not in done.stderr, done.stderr
        assert place.probe(text, "tables").returncode == 0, "without -t"
        done = place.probe("-t", text, "eval", "1")
        assert done.returncode == 1
        assert f"has ended; what it left can still be read (probing -t {text} tables)" in done.stderr
    done = place.probe("-t", f"{pid}@zzzzzzz", "tables")
    assert done.returncode == 1 and f"there is no run {pid}@zzzzzzz (probing list --dead shows them)" in done.stderr


def test_an_id_goes_on_naming_a_run_of_which_only_the_archive_is_left(place):
    pid = place.end("0.25")
    place.end("0.5", pid=pid)
    ids = [row["id"] for row in place.rows() if row["pid"] == pid]
    first_rows = {}
    for text in ids:
        assert place.probe("-t", text, "archive", "--once").returncode == 0
        first_rows[text] = first_row(place, text)
    assert len(set(first_rows.values())) == 2
    for run in place.path.glob("probing-*/*"):
        for file in run.iterdir():
            file.unlink()
        run.rmdir()
    rows = [row for row in json.loads(place.probe("list", "--json").stdout) if row["state"] == "archived"]
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert {text: first_row(place, text) for text in ids} == first_rows


def test_what_a_process_left_is_read_before_its_parent_has_waited_for_it(place):
    with jobs.python(env={"PROBING_SAMPLE_RATE": "0.25"}) as job:
        assert place.probe(job.pid, "inject").returncode == 0
        os.kill(job.pid, signal.SIGKILL)
        jobs.wait_until(lambda: " Z" in open(f"/proc/{job.pid}/stat").read(), what="the zombie")
        assert rate_of(place, job.pid) == ("0.25", "")
        done = place.probe(job.pid, "eval", "1")
        assert done.returncode == 1, done.stderr
        assert f"process {job.pid} (python) has ended and is a zombie" in done.stderr, done.stderr


def test_a_process_that_runs_goes_before_runs_that_had_its_pid(place):
    with jobs.python(env={"PROBING_SAMPLE_RATE": "1"}) as job:
        place.end("0.5", pid=job.pid)
        dead, = (row["id"] for row in place.rows() if row["pid"] == job.pid)
        assert place.probe(job.pid, "inject").returncode == 0
        rate, said = rate_of(place, job.pid)
        assert rate == "1"
        assert said == (f"note: process {job.pid}, which runs, was taken; 1 ended run had the same pid: -t {dead} "
                                        "(probing list --dead)\n")
        assert rate_of(place, dead) == ("0.5", "")
        live = next(row["id"] for row in json.loads(place.probe("list", "--json").stdout) if row["pid"] == job.pid
                    and row["state"] == "probed")
        assert live != dead and rate_of(place, live) == ("1", "")
        assert place.probe("-t", live, "eval", "6 * 7").stdout == "42\n"
        done = place.probe("-t", dead, "eval", "6 * 7")
        assert done.returncode == 1 and "has ended" in done.stderr, "never the process that has the pid now"
        done = place.probe("-t", job.pid, "eval", "6 * 7")
        assert (done.stdout, done.stderr) == ("42\n", ""), "a command for live processes alone has nothing to confuse"
        os.kill(job.pid, signal.SIGKILL)


def test_a_person_sees_the_newest_five_that_ended_and_how_many_more_there_are(place):
    first = place.end("0.5")
    space = place.folder(first).name.split("-")[0]
    for i in range(7):  # of one run many, since only their folders are looked at
        copy = place.folder(first).parent / f"{space}-{4_000_000 + i}-77{i}"
        copy.mkdir(mode=0o700)
        for name in ("about", "arena"):
            (copy / name).write_bytes((place.folder(first) / name).read_bytes())
        os.utime(copy / "arena", (1, 2_000_000_000 + i))
    (short, whole, after) = (place.probe("list", *more).stdout.splitlines() for more in ([], ["--dead"], []))
    dead = [line.split()[0] for line in short if line.split()[1] == "dead"]
    assert dead == [str(4_000_000 + i) for i in (6, 5, 4, 3, 2)]
    few, many = sorted(int(re.fullmatch(r"and (\d+) more that ended \(probing list --dead\)", lines[-1]).group(1))
                       for lines in (short, after))
    ended = [line.split() for line in whole if line.split()[1] in ("dead", "archived")]
    assert few <= len(ended) - 5 <= many, "processes of other tests end meanwhile"
    assert [words[0] for words in ended[:7]] == [str(4_000_000 + i) for i in reversed(range(7))]
    assert not whole[-1].startswith("and ")
    assert len([row for row in place.rows() if row["pid"] >= 4_000_000]) == 7, "a program gets all"


def test_a_long_command_line_is_cut_in_a_table_only():
    with jobs.python(flags=("-X", "long=" + "\u00e9x" * 6000)) as job:
        line = next(line for line in jobs.probe("list").stdout.splitlines() if line.split()[0] == str(job.pid))
        assert len(line) < 300 and line.endswith("..."), line
        told = next(row for row in json.loads(jobs.probe("list", "--json").stdout) if row["pid"] == job.pid)
        assert len(told["command"]) > 12000
