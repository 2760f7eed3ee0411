"""The checks of nccl.sh: ends of NCCL's collectives against CUPTI's kernels, their cost, and the job's losses."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks import check, probing, rows, verdict

HERE, RANKS = Path(__file__).resolve().parent, 4
KERNELS = {
    "AllReduce": "allreduce",
    "AllGather": "allgather_base",
    "ReduceScatter": "reduce_scatter_base",
    "Broadcast": "broadcast"
}
SETTING = "probing.torch.profiling"


class Job:
    def __init__(self, steps, port, script="nccl_job.py", more=()):
        self.folder = Path(tempfile.mkdtemp())
        self.word = self.folder / "word"
        self.word.write_text("")
        self.ranks = []
        for rank in range(RANKS):
            env = dict(os.environ,
                       RANK=str(rank),
                       WORLD_SIZE=str(RANKS),
                       LOCAL_RANK="0",
                       NCCL_HOSTID=f"host{rank}",
                       NCCL_SOCKET_IFNAME="lo",
                       NCCL_IB_DISABLE="1",
                       MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port),
                       OMP_NUM_THREADS="2",
                       **dict(more))
            self.ranks.append(
                subprocess.Popen([sys.executable, HERE / script, self.word, self.folder,
                                  str(steps)],
                                 env=env,
                                 stdout=open(self.folder / f"log-{rank}", "w"),
                                 stderr=subprocess.STDOUT))

    def say(self, text):
        self.word.write_text(self.word.read_text() + text + " ")

    def wait(self, what, seconds=120):
        end = time.time() + seconds
        while time.time() < end and len(list(self.folder.glob(what + "-*"))) < RANKS:
            if any(each.poll() for each in self.ranks):
                break
            time.sleep(0.1)
        if len(list(self.folder.glob(what + "-*"))) < RANKS:
            raise RuntimeError(f"{what}: " + "\n".join(
                (self.folder / f"log-{r}").read_text()[-600:] for r in range(RANKS)))

    def told(self):
        return [json.loads((self.folder / f"told-{rank}.json").read_text()) for rank in range(RANKS)]

    def each(self, *words):
        for rank in self.ranks:
            probing(rank.pid, *words)

    def end(self):
        self.say("exit")
        for rank in self.ranks:
            try:
                rank.wait(60)
            except subprocess.TimeoutExpired:
                rank.kill()
        return [rank.wait() for rank in self.ranks]


def compare(told, found):
    """How many kernels have a row, and of these how many have the same time."""
    same = total = 0
    worst = []
    for kind, op in KERNELS.items():
        kernels = [(at, ms) for at, ms, name in told["kernels"] if f"_{kind}" in name]
        of_op = [row for row in found if row["op"] == op]
        total += max(len(kernels), len(of_op))
        for (_, ms), row in zip(kernels, of_op):
            good = row["ms"] is not None and abs(row["ms"] - ms) <= max(0.01 * ms, 0.020)
            same += good
            if not good:
                worst.append((op, round(ms, 4), row["ms"]))
    return same, total, worst[:5]


def ends():
    job = Job(0, 29611)
    try:
        job.wait("ready")
        job.each("inject")
        job.each("config", f"{SETTING}=on")
        time.sleep(3)
        job.say("go")
        time.sleep(12)
        told = None
        deadline = time.time() + 60
        while time.time() < deadline:
            last = rows(job.ranks[0].pid, "SELECT count(*) AS n FROM python.comm_collective")[0]["n"]
            if last > 400:
                break
            time.sleep(1)
        time.sleep(1.5)
        seen = []
        for rank in job.ranks:
            seen.append(
                rows(
                    rank.pid,
                    "SELECT epoch_ns(timestamp) / 1e9 AS at, op, group_name, state, duration_ms AS ms, "
                    "collective_seq AS n FROM python.comm_collective ORDER BY timestamp"))
        states = {}
        for row in seen[0]:
            states[(row["op"], row["group_name"], row["state"])] = states.get(
                (row["op"], row["group_name"], row["state"]), 0) + 1
        print("states of rank 0:", json.dumps({" ".join(map(str, k)): v for k, v in states.items()}), flush=True)
        print(probing(job.ranks[0].pid, "probes"),
              probing(job.ranks[0].pid, "query", "SELECT * FROM comm_metrics ORDER BY timestamp DESC LIMIT 5"),
              subprocess.run([
                  sys.argv[1], "-t", "nccl_job.py", "--all", "query",
                  "SELECT rank, operation, count(*) AS n, median(latency_ms) AS ms, "
                  "median(wait_ms) AS wait, median(busbw_gbps) AS bus FROM comm_metrics GROUP BY ALL ORDER BY ALL"
              ],
                             stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT,
                             text=True).stdout,
              flush=True)
        print(probing(job.ranks[0].pid, "query", "SELECT * FROM python.torch_overhead ORDER BY timestamp DESC LIMIT 3"),
              flush=True)
        old = [row for row in seen[0] if row["at"] < time.time() - 3]
        over = sum(row["state"] == "completed" for row in old)
        check("rows with an end", over >= 0.99 * len(old), f"{over} of {len(old)}")
        job.each("config", f"{SETTING}=off")
        time.sleep(2)
        still = [
            rows(rank.pid, "SELECT count(*) AS n FROM python.comm_collective WHERE state <> 'completed'")[0]["n"]
            for rank in job.ranks
        ]
        check("rows that look open once it is off", max(still) == 0, still)
        job.say("end")
        job.wait("done")
        told = job.told()
        for rank in range(RANKS):
            found = [row for row in seen[rank] if told[rank]["begun"] <= row["at"] <= told[rank]["ended"]]
            same, total, worst = compare(told[rank], found)
            check(f"rank {rank}: time as CUPTI's kernels have it", same >= 0.99 * total, f"{same} of {total} {worst}")
        check("timing is off again", not any(each for rank in told for each in rank["timed"]), told[0]["timed"])
        return job.end()
    finally:
        job.end()


def blocks(job, folder_times, marks):
    """The median step of each block."""
    found = {"on": [], "off": []}
    for (begun, ended, which) in marks:
        of_block = [took for at, took in folder_times if begun <= at <= ended]
        if of_block:
            found[which].append(statistics.median(of_block) * 1e3)
    return found


def cost(steps):
    losses = []
    for probed in (False, True):
        job = Job(steps, 29650 + probed)
        marks = []
        try:
            job.wait("ready")
            if probed:
                job.each("inject")
            job.say("go")
            while probed and len(list(job.folder.glob("done-*"))) == 0:
                for which in ("on", "off", "off", "on"):
                    job.each("config", f"{SETTING}={which}")
                    begun = time.time() + 0.7
                    time.sleep(3.2)
                    marks.append((begun, time.time() - 0.1, which))
            job.wait("done", 200)
            told = job.told()
            losses.append([each["losses"] for each in told])
            if probed:
                found = blocks(job, told[0]["times"], marks)
                on, off = statistics.median(found["on"]), statistics.median(found["off"])
                print("blocks, ms a step:", {k: [round(v, 3) for v in found[k]] for k in found})
                check("cost", on <= off * 1.005, f"{on:.3f} against {off:.3f} ms a step, {100 * (on / off - 1):+.2f}%")
        finally:
            job.end()
    check("losses, bit for bit", losses[0] == losses[1], f"{len(losses[0][0])} a rank")


if __name__ == "__main__":
    for each in (ends, lambda: cost(int(os.environ.get("STEPS", "1500")))):
        try:
            each()
        except Exception as error:
            check("the check itself", False, repr(error)[:3000])
    sys.exit(verdict())
