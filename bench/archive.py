"""What archiving takes, and what queries of archived rows take: build/venv/bin/python bench/archive.py [ROWS]

A C program fills an arena in shared memory (9 columns, 2 GB, segments of 256 KB). The aggregate is asked of the live rows, of
rows that are archived and still in the arena, and of rows of which only the archive is left: whole commands, the worker warm.
"""
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PROGRAM = TOP / "build/release/bin/probing"
TIMES = 9
ALL = "SELECT name, count(*), avg(ratio) FROM test.stream {where} GROUP BY name ORDER BY 2 DESC LIMIT 10"


class Bench:
    def __init__(self, folder):
        self.runs = Path(tempfile.mkdtemp(prefix="archive-bench-", dir="/dev/shm"))
        self.archive = folder / "archive"
        self.env = {**os.environ, "PROBING_DIR": str(self.runs), "PROBING_ARCHIVE": str(self.archive)}
        program = folder / "writer"
        subprocess.run(["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", f"-I{TOP / 'src'}", "-pthread", "-o", program,
                        TOP / "tests/integration/targets/archive_writer.c", *sorted((TOP / "src/table").glob("*.c"))], check=True)
        self.writer = subprocess.Popen([program, str(2 << 30), str(1 << 18), "bench", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       env=self.env, universal_newlines=True)
        self.writer.stdout.readline()

    def write(self, rows):
        self.writer.stdin.write(f"rows {rows}\n")
        self.writer.stdin.flush()
        self.writer.stdout.readline()

    def run(self, *words):
        begun = time.perf_counter()
        done = subprocess.run([PROGRAM, "-t", str(self.writer.pid), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env,
                              universal_newlines=True)
        took = time.perf_counter() - begun
        assert done.returncode == 0, done.stderr
        return took, done

    def measure(self, what, sql):
        self.run("query", sql)
        took = [1e3 * self.run("query", sql)[0] for _ in range(TIMES)]
        files = [line for line in self.run("query", "--stats", sql)[1].stderr.splitlines() if line.startswith("archived")]
        print(f"{what}: median {statistics.median(took):.1f} ms ({min(took):.1f} to {max(took):.1f}) {' '.join(files)}", flush=True)

    def end(self):
        self.writer.kill()
        self.writer.wait()

    def files(self):
        return list(self.archive.glob("test.stream/*/*/*/*/*.parquet"))


def measure(bench, rows):
    everything = ALL.format(where="")
    bench.write(rows)
    bench.measure("SELECT 1, without an archive", "SELECT 1")
    bench.measure("aggregate, live", everything)
    took, done = bench.run("archive", "--once")
    moved = int(re.search(r"test.stream: (\d+) rows", done.stdout).group(1))
    size = sum(file.stat().st_size for file in bench.files())
    print(f"archived {moved} rows in {took:.1f} s: {moved / took / 1e6:.2f} million a second, {len(bench.files())} files, {size / 1e6:.0f} MB")
    bench.measure("SELECT 1, with an archive", "SELECT 1")
    bench.measure("aggregate, archived and still in the arena", everything)
    bench.end()
    bench.run("archive", "--once")
    shutil.rmtree(bench.runs)
    bench.runs.mkdir()
    bench.measure("aggregate, archived only", everything)
    span = bench.run("query", "--format", "csv", "SELECT epoch_us(min(timestamp)), epoch_us(max(timestamp)) FROM test.stream")[1].stdout
    first, last = map(int, span.split()[1].split(","))
    bench.measure("the last 1% by time", ALL.format(where=f"WHERE timestamp > make_timestamp({last - (last - first) // 100})"))


def many_files(folder, ranks=8, days=7, files=50000):
    """An archive as 8 ranks fill it in a week where nothing was merged: the files of one run, under names of other times and ranks."""
    bench = Bench(folder)
    bench.write(20000)
    bench.end()
    bench.run("archive", "--once")
    shutil.rmtree(bench.runs)
    (file,) = bench.files()
    (run,) = (path for path in (bench.archive / "_probing").iterdir() if path.is_dir())
    about = (run / "about").read_text()
    told = re.match(r"\w+-(\d+)-(\d+)-(1of1-c\d+-r\d+)-", file.name)
    first, last = int(told.group(1)), int(told.group(2))
    a_day, spare = files // (ranks * days), folder / "copy"
    for rank in range(ranks):
        other = run.with_name(f"{rank + 1:016x}")
        other.mkdir()
        (other / "about").write_text(re.sub(r"(?m)^(pid|rank)=.*$", lambda m: f"pid={10_000_000 + rank}" if m.group(1) == "pid" else f"rank={rank}", about))
        for columns in run.glob("*.columns"):
            os.link(columns, other / columns.name)
        shutil.copy(file, spare)
        for day in range(days):
            date = time.strftime("%Y-%m-%d", time.gmtime(last / 1e6 - 86400 * day))
            place = file.parents[2] / f"rank={rank}" / f"date={date}"
            place.mkdir(parents=True, exist_ok=True)
            for i in range(a_day):
                back = day * 86400 * 10**6 + (a_day - 1 - i) * 80 * 10**6
                os.link(spare, place / f"{other.name}-{first - back}-{last - back}-{told.group(3)}-{(days - day) * a_day + i + 1:x}.parquet")
    shutil.rmtree(run)
    there = len(list(bench.archive.glob("test.stream/*/*/*/*/*.parquet")))
    sql = ("SELECT rank, count(*), avg(ratio) FROM test.stream WHERE timestamp > "
           f"make_timestamp({last - 60 * 10**6}) GROUP BY rank ORDER BY rank")

    def ask():
        begun = time.perf_counter()
        done = subprocess.run([PROGRAM, "query", "--archive", bench.archive, "--stats", sql], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=bench.env, universal_newlines=True)
        assert done.returncode == 0, done.stderr
        return 1e3 * (time.perf_counter() - begun), done

    ask()
    took = [ask()[0] for _ in range(TIMES)]
    files = [line for line in ask()[1].stderr.splitlines() if line.startswith("archived")]
    print(f"the last minute of an archive of {there} files ({ranks} ranks, {days} days): median {statistics.median(took):.1f} ms "
          f"({min(took):.1f} to {max(took):.1f}) {' '.join(files)}", flush=True)


def main():
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="archive-bench-") as folder:
        bench = Bench(Path(folder))
        try:
            measure(bench, int(sys.argv[1]) if len(sys.argv) > 1 else 5000000)
        finally:
            bench.end()
            shutil.rmtree(bench.runs, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="archive-bench-") as folder:
        many_files(Path(folder))


if __name__ == "__main__":
    main()
