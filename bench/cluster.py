"""What a question to many nodes takes: build/venv/bin/python bench/cluster.py [NAME...]

slurm     a real SLURM (tests/integration/slurm_nodes.sh), 4 nodes x 2 ranks: backtrace --merge and SQL, nothing running before
slurm32   the same with 32 nodes
services  1,250 services that answer recorded frames, 1 % dead, 1 % slow: when the last good answer was whole, the return
kept      the same, of which the connections are kept from the question before (backtrace --watch)
ranks     the stacks of 10,000 ranks, of 1,250 nodes with 8 ranks of 46 threads each, 2 % of them odd: the whole command
"""
import json
import os
import resource
import secrets
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/integration"), str(TOP / "tests")]
import surroundings  # noqa: E402

surroundings.take_folders()
import jobs  # noqa: E402
import slurm_kit  # noqa: E402

NODES, RANKS, THREADS, STAGES = 1250, 8, 46, 8


def show(name, text, must):
    print(f"{name:10} {text}; must: {must}", flush=True)


def frame(kind, data):
    return kind + struct.pack("<I", len(data)) + data


def pieces(kind, data):
    return b"".join(frame(kind, data[at:at + 65536]) for at in range(0, len(data), 65536))


def stack_set(ranks, odd):
    """A set of stacks as a node sends it (src/ask/stackset_wire.c): each rank has all threads, odd ones another first stack."""
    texts, stacks = {}, {}

    def text(value):
        return texts.setdefault(value, len(texts))

    frames = {}

    def number(function, line):
        return frames.setdefault((text(function), text("/opt/job/train_%d.py" % (line % 7)), line), len(frames))

    for rank in ranks:
        stage = rank // RANKS % STAGES
        for thread in range(THREADS):
            kind = "load" if rank in odd and thread == 0 else f"stage{stage}" if thread == 0 else "worker"
            depth = 12 + (thread * 7) % 20
            rows = tuple(number(f"{kind}_{thread}_{level}", 10 + level) for level in range(depth))
            stacks.setdefault(rows, []).append((rank, thread))
    u32, u64 = (lambda n: struct.pack("<I", n)), (lambda n: struct.pack("<Q", n))
    for rank in ranks:
        text(f"rank {rank}")
    text("MainThread")
    body = b"PBS1" + u64(len(ranks)) + u64(len(ranks) * THREADS) + u64(0) + u32(len(texts))
    for value in texts:
        body += u32(len(value)) + value.encode()
    body += u32(len(frames))
    for function, file, line in frames:
        body += struct.pack("<5I", 0, function, file, 0xffffffff, line) + u64(0)
    body += u32(len(stacks))
    for rows, members in stacks.items():
        body += u32(0) + u32(len(rows)) + b"".join(map(u32, rows)) + u64(len(members)) + u64(len(members)) + u32(len(members))
        body += b"".join(u32(rank) * 2 for rank, _ in members) + u32(len(members))
        body += b"".join(u32(texts[f"rank {rank}"]) + u32(texts["MainThread"]) + u32(1000 + thread) for rank, thread in members)
    return body


def answer(node, odd):
    """What a node answers to "stacks", and to "look": the latter passes over what it is not asked for."""
    ranks = range(node * RANKS, (node + 1) * RANKS)
    told = b"".join(frame(b"R", b"%d %d %d 1 %d -" % (rank, rank % RANKS, 100 + rank, NODES * RANKS)) + frame(b"X", b"\0") for rank in ranks)
    data = stack_set(ranks, odd)
    body = frame(b"V", b"1 0.1.0 n%d" % node) + told + pieces(b"O", struct.pack("<Q", len(data)) + data) + frame(b"Z", b"\0")
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def serve(listeners, answers, slow):
    """Answers whoever comes, as often as they ask, in one process for a part of the nodes."""
    poll, open_, due = select.epoll(), {}, []
    by_fd = {listener.fileno(): node for node, listener in listeners.items()}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)

    def answer_to(fd, node):
        try:
            open_[fd][0].sendall(answers[node])  # it fits the buffer of the socket
        except OSError:
            pass

    while True:
        for fd, _ in poll.poll(0.05 if due else None):
            node = by_fd.get(fd)
            if node is not None:
                connection, _ = listeners[node].accept()
                open_[connection.fileno()] = (connection, node)
                poll.register(connection.fileno(), select.EPOLLIN)
                continue
            connection, node = open_[fd]
            try:
                asked = connection.recv(65536)
            except OSError:
                asked = b""
            if not asked:
                open_.pop(fd)[0].close()
            elif node in slow:
                due.append((time.monotonic() + 3, connection, fd, node))
            else:
                answer_to(fd, node)
        now = time.monotonic()
        for at, connection, fd, node in due:
            if at <= now and open_.get(fd, (None,))[0] is connection:
                answer_to(fd, node)
        due = [one for one in due if one[0] > now]


@contextmanager
def services(dead, slow, odd):
    """1,250 addresses of 127.0.0.0/8 that answer, in 4 processes; dead ones take no connection (their queue is full)."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    children, addresses, full = [], [], []
    listeners = {}
    for node in range(NODES):
        listener = socket.socket()
        listener.bind((f"127.9.{node // 250}.{node % 250 + 1}", 0))
        listener.listen(0 if node in dead else 64)
        addresses.append("%s:%d" % listener.getsockname())
        if node in dead:
            full.append(listener)
            for _ in range(3):
                waiting = socket.socket()
                waiting.setblocking(False)
                waiting.connect_ex(listener.getsockname())
                full.append(waiting)
        else:
            listeners[node] = listener
    for part in range(4):
        own = {node: listener for node, listener in listeners.items() if node % 4 == part}
        answers = {node: answer(node, odd) for node in own}
        pid = os.fork()
        if pid == 0:
            try:
                serve(own, answers, slow)
            finally:
                os._exit(1)
        children.append(pid)
    try:
        yield addresses
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for one in [*full, *listeners.values()]:
            one.close()


@contextmanager
def attached(name, dead, slow, odd):
    """1,250 services as the cluster of this name."""
    with TemporaryDirectory() as folder, services(dead, slow, odd) as addresses:
        token = Path(folder, "token")
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        # The file as `cluster attach` keeps it: the list is too long for a command line.
        kept = Path(os.environ["XDG_RUNTIME_DIR"], "probing-clusters")
        kept.mkdir(mode=0o700, exist_ok=True)
        lines = ["probing-cluster 1", f"name {name}", "way services", f"program {jobs.PROGRAM}", f"token-file {token}", f"world {NODES * RANKS}", "seen 0"]
        lines += [f"node n{node} {address} -" for node, address in enumerate(addresses)]
        lines += [f"rank {rank} {rank // RANKS} {rank % RANKS} {100 + rank} 1 pp={rank // RANKS % STAGES},tp={rank % RANKS}" for rank in range(NODES * RANKS)]
        (kept / f"{name}.cluster").write_text("\n".join([*lines, "end", ""]))
        (kept / f"{name}.cluster").chmod(0o600)
        yield
        (kept / f"{name}.cluster").unlink()


def ask_services(name, *words, dead, slow, odd):
    """Attaches 1,250 services and asks them: the answer's JSON, seconds, the most memory the command took, its CPU time."""
    results = []
    with attached(name, dead, slow, odd):
        for _ in range(5):
            begun = time.monotonic()
            process = subprocess.Popen([str(jobs.PROGRAM), "-t", f"cluster:{name}", "backtrace", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            said = process.stdout.read()
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
            results.append((said, time.monotonic() - begun, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime))
    return results


def bench_kept():
    dead, slow = set(range(7, NODES, 100)), set(range(57, NODES, 100))
    lasts = []
    with attached("bench", dead, slow, set()):
        with subprocess.Popen([str(jobs.PROGRAM), "-t", "cluster:bench", "backtrace", "--json", "--watch", "--interval", "300ms"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, universal_newlines=True) as process:
            text, decoder = "", json.JSONDecoder()
            while len(lasts) < 6:
                text += os.read(process.stdout.fileno(), 1 << 20).decode()
                try:
                    answer_, end = decoder.raw_decode(text.lstrip())
                except ValueError:
                    continue
                text = text.lstrip()[end:]
                lasts.append(max(node["ms"] for node in answer_["nodes"] if node["state"] == "answered"))
            process.terminate()
    show("kept", f"last good answer {lasts[0]} ms with new connections, then {min(lasts[1:])} to {max(lasts[1:])} ms", "<= 150 ms")


def bench_services():
    dead, slow = set(range(7, NODES, 100)), set(range(57, NODES, 100))
    results = ask_services("bench", "--json", dead=dead, slow=slow, odd=set())
    lasts, returns, good = [], [], NODES - len(dead) - len(slow)
    for said, took, _, _ in results:
        answer_ = json.loads(said)
        if answer_["answered"] != good:
            print(f"services   only {answer_['answered']} of {good} good nodes answered: the machine is busy")
        lasts.append(max(node["ms"] for node in answer_["nodes"] if node["state"] == "answered"))
        returns.append(took * 1000)
    show("services", f"last good answer {min(lasts)} to {max(lasts)} ms, return {min(returns):.0f} to {max(returns):.0f} ms of 2,000, "
         f"{min(r[3] for r in results):.2f} s CPU",
         "<= 300 ms, return <= 2,100 ms")


def bench_ranks():
    odd = set(range(3, NODES * RANKS, 50))
    results = ask_services("bench", "--merge", "--timeout", "20", dead=set(), slow=set(), odd=odd)
    text = results[0][0].decode()
    assert text.startswith(f"{NODES * RANKS} ranks"), text[:200]
    show("ranks", f"10,000 ranks merged and printed in {min(r[1] for r in results):.2f} to {max(r[1] for r in results):.2f} s, "
         f"{min(r[3] for r in results):.2f} s CPU, {max(r[2] for r in results):.0f} MB",
         "<= 1 s, <= 100 MB")


def bench_slurm(nodes=4, must="<= 0.3 s"):
    reason = slurm_kit.why_not()
    if reason:
        print(f"slurm      left out: {reason}")
        return
    with TemporaryDirectory() as folder, slurm_kit.cluster(nodes, Path(folder)) as slurm:
        job = slurm.submit(nodes)
        times = []
        for _ in range(7):
            done = slurm.probe("-t", f"cluster:slurm-{job}", "backtrace", "--json", "--timeout", "20")
            answer_ = json.loads(done.stdout)
            assert answer_["answered"] == nodes, done.stderr
            times.append(answer_["ms"])
        show("slurm", f"{nodes} nodes x 2 ranks: {min(times)} to {max(times)} ms", must)
        times = []
        for _ in range(7):
            begun = time.monotonic()
            done = slurm.probe("-t", f"cluster:slurm-{job}", "query", "--format", "csv", "--timeout", "20",
                               "SELECT rank, count(*) FROM system.threads GROUP BY rank ORDER BY rank")
            times.append(1000 * (time.monotonic() - begun))
            assert done.returncode == 0 and done.stdout.count("\n") == 2 * nodes + 1, (done.stdout, done.stderr)
        show("slurm", f"SQL, the whole command: {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}; the first {times[0]:.0f})", "<= 500 ms" if nodes == 4 else must)


def main():
    every = {"slurm": bench_slurm, "slurm32": lambda: bench_slurm(32, "<= 1 s"), "services": bench_services,
             "kept": bench_kept, "ranks": bench_ranks}
    for name in sys.argv[1:] or every:
        every[name]()


if __name__ == "__main__":
    main()
