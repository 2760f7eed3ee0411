"""What the service costs and how fast it answers: build/venv/bin/python bench/serve.py [NAME...]

idle      8 processes, nobody asks: memory and CPU time of the service, threads in the processes
select    SELECT 1 over HTTP, one after the other
at_once   200 of them at once, and what other requests take meanwhile
streams   1,000 clients of ten topics with an event a second each: do all events arrive, what does a client take
slow      10,000,000 rows as CSV to a client that reads slowly: memory of service and worker
merged    the stacks of 64 processes, merged, as one request
"""
import os
import re
import resource
import selectors
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import jobs  # noqa: E402
from serve_kit import Stream, rss, service  # noqa: E402

MARK = ("-X", f"serve{os.getpid()}")  # stands in the command lines of our processes alone


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def show(name, text, must):
    print(f"{name:10} {text}; must: {must}", flush=True)


def quantiles(times):
    times = sorted(times)
    return f"p50 {statistics.median(times) * 1e3:.1f} ms, p99 {times[int(len(times) * 0.99)] * 1e3:.1f}, most {times[-1] * 1e3:.1f}"


def timed(ask):
    start = time.perf_counter()
    answer = ask()
    return time.perf_counter() - start, answer


def idle(s, running):
    threads = [job.threads() for job in running]
    before, start = cpu_seconds(s.process.pid), time.monotonic()
    time.sleep(20)
    share = (cpu_seconds(s.process.pid) - before) / (time.monotonic() - start)
    same = sum(job.threads() == had for job, had in zip(running, threads))
    show("idle", f"{rss(s.process.pid) / 1024:.1f} MB RSS, {share:.2%} of a core, {same} of {len(running)} processes with the threads that they had",
         "15 MB, 0.5%, no thread beyond the agent's")


def select(s, running):
    for _ in range(5):
        s.json("/api/v1/query", body="SELECT 1")
    show("select", quantiles([timed(lambda: s.json("/api/v1/query", body="SELECT 1"))[0] for _ in range(300)]), "p50 4 ms")


def at_once(s, running):
    others = []
    with ThreadPoolExecutor(208) as pool:
        work = [pool.submit(timed, lambda: s.ask("/api/v1/query", body="SELECT 1")[0]) for _ in range(200)]
        while not all(each.done() for each in work):
            others.append(timed(lambda: s.ask("/openapi.json")[0])[0])
    statuses = [each.result()[1] for each in work]
    show("at_once", f"{statuses.count(200)} answered, {statuses.count(503)} told to come back (503); {quantiles([each.result()[0] for each in work])}; "
         f"others meanwhile ({len(others)}): {quantiles(others)}", "all answered, others p99 100 ms")


def streams(s, running):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    topics = ",".join(f"stacks:{job.pid}" for job in running[:10])
    before = rss(s.process.pid)
    clients = [Stream(s, topics) for _ in range(1000)]
    waiting = selectors.DefaultSelector()
    for client in clients:
        client.socket.setblocking(False)
        waiting.register(client.socket, selectors.EVENT_READ, client)
    start, burnt = time.monotonic(), cpu_seconds(s.process.pid)
    most = 0
    while time.monotonic() - start < 25:
        for key, _ in waiting.select(0.5):
            key.data.read_more()
        most = max(most, rss(s.process.pid))
    elapsed, burnt = time.monotonic() - start, cpu_seconds(s.process.pid) - burnt
    numbers = [[int(n) for n in re.findall(rb"id: [0-9a-f]{16}-(\d+)", client.bytes)] for client in clients]
    # From the first event that all have to the last that all have.
    first, last = max(n[0] for n in numbers), min(n[-1] for n in numbers)
    wanted = set().union(*numbers)
    wanted = {n for n in wanted if first <= n <= last}
    missing = sum(len(wanted - set(n)) for n in numbers)
    for client in clients:
        client.socket.close()
    show("streams", f"{len(wanted)} events in {elapsed:.0f} s to each of {len(clients)}, {missing} of {len(wanted) * len(clients)} missing, "
         f"{(most - before) / len(clients):.1f} KB a client, {burnt / elapsed:.0%} of a core (client on the same two)", "every event, 30 KB each")


def slow(s, running):
    import socket
    body = b"SELECT range, range * 2, 'some text' FROM range(10000000)"
    before, most, worker = rss(s.process.pid), 0, 0
    with socket.create_connection((s.host, s.port)) as client:
        client.sendall(b"POST /api/v1/query?format=csv&timeout=600 HTTP/1.1\r\nHost: localhost\r\nX-Probing-Token: %s\r\nContent-Length: %d\r\n\r\n%s"
                       % (s.token.encode(), len(body), body))
        end = time.monotonic() + 20
        got = 0
        while time.monotonic() < end:
            got += len(client.recv(16384))
            time.sleep(0.01)
            most = max(most, rss(s.process.pid))
            for child in descendants(s.process.pid):
                try:
                    worker = max(worker, rss(child))
                except (FileNotFoundError, TypeError):
                    pass
    show("slow", f"{got / 1e6:.0f} MB read in 20 s: service +{(most - before) / 1024:.1f} MB, largest of its commands {worker / 1024:.0f} MB", "bounded")


def merged(s, running):
    with ExitStack() as stack:
        for _ in range(64 - len(running)):
            stack.enter_context(jobs.python(flags=MARK))
        path = f"/api/v1/stacks?target={MARK[1]}&all=true&merge=true"
        seen = len(s.json(path))
        times = [timed(lambda: s.json(path))[0] for _ in range(30)]
    show("merged", f"{seen} processes: {quantiles(times)}", "p50 100 ms")


def main():
    wanted = sys.argv[1:] or ["idle", "select", "at_once", "streams", "slow", "merged"]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        running = [stack.enter_context(jobs.python(flags=MARK)) for _ in range(10 if "streams" in wanted else 8)]
        for job in running[:8]:
            subprocess.run([jobs.PROGRAM, str(job.pid), "inject"], check=True, capture_output=True)
        s = stack.enter_context(service(Path(folder) / "r"))
        for name in wanted:
            globals()[name](s, running)


if __name__ == "__main__":
    main()
