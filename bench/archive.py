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


def main():
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="archive-bench-") as folder:
        bench = Bench(Path(folder))
        try:
            measure(bench, int(sys.argv[1]) if len(sys.argv) > 1 else 5000000)
        finally:
            bench.end()
            shutil.rmtree(bench.runs, ignore_errors=True)


if __name__ == "__main__":
    main()
