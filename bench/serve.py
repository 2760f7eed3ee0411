"""What the service costs and how fast it answers: build/venv/bin/python bench/serve.py [NAME...]

idle      8 processes, nobody asks: memory and CPU time of the service, threads in the processes
select    SELECT 1 over HTTP, one after the other
at_once   200 of them at once, again and again, and what other requests take meanwhile
page      the requests of the page on Now and on Activity, 8 processes, live at 1 Hz: CPU time of the service and its commands, and whether the
          steps of a program that computes take longer meanwhile
streams   1,000 clients of ten topics with an event a second each: do all events arrive, what does a client take
busy      128, 256 and 384 connections that ask without a pause: is any of them held up
slow      10,000,000 rows as CSV to a client that reads slowly: memory of service and worker
merged    the stacks of 64 processes, merged, as one request
restart   the service killed, and replaced by another installation, under load: how long clients get no answer, what is recorded meanwhile
"""
import http.client
import json
import os
import re
import resource
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import jobs  # noqa: E402
from serve_kit import Stream, rss, service  # noqa: E402

MARK = ("-X", f"serve{os.getpid()}")  # stands in the command lines of our processes alone


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def cpu_seconds(pid):
    """Of a process, of its children that have ended, and of all that still run."""
    ticks = 0
    for each in [pid, *descendants(pid)]:
        with suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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


LOAD = """
import json, selectors, socket, sys, time
host, port, token, clients, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
request = (f"POST /api/v1/query HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\nX-Probing-Token: {token}\\r\\nContent-Length: 8\\r\\n\\r\\nSELECT 1").encode()
took, statuses, end = [], {}, time.monotonic() + seconds
while time.monotonic() < end:
    waiting, begun = selectors.DefaultSelector(), time.monotonic()
    for _ in range(clients):
        client = socket.create_connection((host, port))
        client.sendall(request)
        waiting.register(client, selectors.EVENT_READ, [b""])
    while waiting.get_map():
        for key, _ in waiting.select(30):
            more = key.fileobj.recv(65536)
            key.data[0] += more
            if not more:
                took.append(time.monotonic() - begun)
                status = key.data[0][9:12].decode()
                statuses[status] = statuses.get(status, 0) + 1
                waiting.unregister(key.fileobj)
                key.fileobj.close()
print(json.dumps([took, statuses]))
"""


def at_once(s, running):
    """The clients are a process of their own, so that what they cost is not taken for the service's."""
    paths = ["/openapi.json", "/api/v1/targets", f"/api/v1/targets/{running[0].pid}/stacks", f"/api/v1/targets/{running[0].pid}/memory"]
    others = {path: [] for path in paths}
    with TemporaryFile("w+") as said:
        load = subprocess.Popen([sys.executable, "-c", LOAD, s.host, str(s.port), s.token, "200", "15"], stdout=said)
        while load.poll() is None:
            for path in paths:
                others[path].append(timed(lambda: s.ask(path)[0])[0])
                time.sleep(0.02)
        said.seek(0)
        took, statuses = json.load(said)
    show("at_once", f"{len(took)} in rounds of 200: {statuses}; {quantiles(took)}; others meanwhile ({sum(map(len, others.values()))}): "
         + quantiles([t for each in others.values() for t in each]), "all answered, others p99 100 ms")
    for path, each in others.items():
        print(f"{'':10} {path}: {quantiles(each)}")


COMPUTES = """
import time
def step():
    total = 0
    for i in range(100000):
        total += i * i
    return total
print("ready", flush=True)
while True:
    took = []
    for _ in range(100):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
        time.sleep(0.005)
    print("step", sorted(took)[50], flush=True)
"""
COST = """SELECT (SELECT sum(cpu_user_s + cpu_system_s) FROM system.threads WHERE name LIKE 'probing%' AND tid <> target_pid) AS cpu,
  (SELECT coalesce(sum(bytes), 0) FROM probing.tables) AS bytes"""


class Tab(threading.Thread):
    """What a view asks for, as web/src does: its stream of events, stacks a second after the last ones, its cost every five seconds."""

    def __init__(self, s, topics, path, target):
        super().__init__()
        self.s, self.topics, self.path, self.target, self.ended = s, topics, path, target, threading.Event()
        self.events = self.asked = 0

    def run(self):
        with Stream(self.s, self.topics) as stream:
            stream.socket.settimeout(0.05)
            stacks = cost = 0
            while not self.ended.is_set():
                with suppress(TimeoutError):
                    stream.read_more()
                now = time.monotonic()
                if self.path and now >= stacks:
                    assert self.s.ask(self.path)[0] == 200
                    stacks, self.asked = time.monotonic() + 1, self.asked + 1
                if now >= cost:
                    assert self.s.ask(f"/api/v1/query?target={self.target}&all=true", body=COST)[0] == 200
                    cost = time.monotonic() + 5
            self.events = len(stream.events())


def page(s, running):
    seconds = 20
    with jobs.python(COMPUTES, flags=MARK) as one:
        subprocess.run([jobs.PROGRAM, str(one.pid), "inject"], check=True, capture_output=True)

        def steps(act):
            had = one.output.count("step")
            found = act()
            return found, [float(line.split()[1]) for line in one.output.splitlines() if line.startswith("step")][had:]
        for view, topics, path in (("Now", "now,targets", None), ("Activity", "targets", f"/api/v1/stacks?target={MARK[1]}&all=true")):
            _, quiet = steps(lambda: time.sleep(seconds / 2))
            tab = Tab(s, topics, path, MARK[1])

            def look():
                tab.start()
                time.sleep(3)  # the first load is not what it costs to be open
                before, start = cpu_seconds(s.process.pid), time.monotonic()
                time.sleep(seconds)
                share = (cpu_seconds(s.process.pid) - before) / (time.monotonic() - start)
                tab.ended.set()
                tab.join()
                return share
            share, shown = steps(look)
            show("page", f"{view}: {share:.2%} of a core in the service and its commands ({tab.events} events, {tab.asked} stacks); a step takes "
                 f"{statistics.median(shown) * 1e3:.3f} ms, before {statistics.median(quiet) * 1e3:.3f}", "3%, step within the noise")


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


def busy(s, running):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for clients in (127, 128, 129, 256, 384):
        waiting, took, begun = selectors.DefaultSelector(), [], {}
        for _ in range(clients):
            client = socket.create_connection((s.host, s.port))
            waiting.register(client, selectors.EVENT_READ)
            begun[client] = time.monotonic()
            client.sendall(request)
        start = time.monotonic()
        while time.monotonic() - start < 5:
            for key, _ in waiting.select(1):
                assert key.fileobj.recv(4096).endswith(b'"ok"}\n')
                now = time.monotonic()
                took.append(now - begun[key.fileobj])
                begun[key.fileobj] = now
                key.fileobj.sendall(request)
        oldest = time.monotonic() - min(begun.values())
        for client in begun:
            client.close()
        show("busy", f"{clients} connections: {len(took) / 5:.0f} answers/s, {quantiles(took)}; the longest that waits at the end {oldest * 1e3:.0f} ms", "no stall")


def slow(s, running):
    rows = 10_000_000
    body = b"SELECT range, range * 2, 'some text' FROM range(%d)" % rows
    before, most, worker = rss(s.process.pid), 0, 0
    with socket.create_connection((s.host, s.port), timeout=60) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(b"POST /api/v1/query?format=csv HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Probing-Token: %s\r\nContent-Length: %d\r\n\r\n%s"
                       % (s.token.encode(), len(body), body))
        start, got, looked, slowly = time.monotonic(), 0, 0, 0
        end = b""
        while more := client.recv(65536):
            got += len(more)
            end = (end + more)[-200:]
            if time.monotonic() - start < 15:
                time.sleep(0.02)
                slowly = got
            if time.monotonic() - looked > 0.2:
                looked = time.monotonic()
                most = max(most, rss(s.process.pid))
                for child in descendants(s.process.pid):
                    with suppress(FileNotFoundError, TypeError, ProcessLookupError):
                        worker = max(worker, rss(child))
        took = time.monotonic() - start
    whole = end.endswith(b"Probing-Result: whole\r\n\r\n")
    show("slow", f"{slowly / 1e6:.0f} MB in 15 s, {got / 1e6:.0f} MB in {took:.0f} s, {'whole' if whole else 'broken off'}: service +{(most - before) / 1024:.1f} MB, "
         f"largest of its commands {worker / 1024:.0f} MB", "bounded")


def merged(s, running):
    with ExitStack() as stack:
        for _ in range(64 - len(running)):
            stack.enter_context(jobs.python(flags=MARK))
        path = f"/api/v1/stacks?target={MARK[1]}&all=true&merge=true"
        seen = len(s.json(path))
        times = [timed(lambda: s.json(path))[0] for _ in range(30)]
    show("merged", f"{seen} processes: {quantiles(times)}", "p50 100 ms")


def restart(s, running):
    """In another folder: the service that the others use goes on."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        folder = Path(folder)
        upgraded = folder / "upgraded"
        shutil.copytree(jobs.PROGRAM.parent.parent, upgraded, ignore=lambda _, names: set(names) - {"bin", "lib"} if "bin" in names else set())
        one = stack.enter_context(jobs.python(flags=MARK))
        began, stop, good = time.monotonic(), threading.Event(), []

        def ask_again(at):
            while not stop.is_set():
                with suppress(OSError, http.client.HTTPException, AssertionError):
                    at.json("/api/v1/query", body="SELECT 1 AS a", timeout=5)
                    good.append(time.monotonic())
        stack.callback(stop.set)
        address, gaps = "127.0.0.1:0", []
        for n, program in enumerate([jobs.PROGRAM, jobs.PROGRAM, upgraded / "bin/probing"]):
            with service(folder / "r", address, program=program) as at:
                address = at.address
                if n == 0:
                    assert at.ask(f"/api/v1/targets/{one.pid}/recording?rate=20&idle", method="POST")[0] == 200
                    for _ in range(4):
                        threading.Thread(target=ask_again, args=(at,), daemon=True).start()
                time.sleep(4)
                ended = time.monotonic()
                if n < 2:
                    at.process.kill()
                    at.process.wait()
                gaps.append(ended)
        stop.set()
        moments = sorted(good)
        lost = [max((after - before for before, after in zip(moments, moments[1:]) if before <= at + 1 and after >= at), default=float("nan")) for at in gaps[:2]]
        rows = jobs.rows(one, "SELECT sum(samples) AS n, max(gap) AS gap FROM (SELECT samples, epoch_ms(timestamp) - lag(epoch_ms(until)) OVER (ORDER BY timestamp) AS gap FROM python.samples)")
        jobs.probe("-t", one.pid, "record", "--stop")
        show("restart", f"{len(good)} answers; none for {lost[0] * 1e3:.0f} ms after the kill, {lost[1] * 1e3:.0f} ms over the upgrade; the process "
             f"{'lives' if one.alive() else 'HAS DIED'}; recorded in {time.monotonic() - began:.0f} s: {rows[0]['n']} samples at 20 Hz, longest gap {rows[0]['gap']} ms",
             "processes unharmed, clients reconnect, nothing recorded is lost")


def main():
    wanted = sys.argv[1:] or ["idle", "select", "at_once", "page", "streams", "busy", "slow", "merged", "restart"]
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
