"""The checks of gpu_metrics.sh: a torch job keeps a GPU busy, is recorded, and what was recorded is compared."""
import json
import os
import signal
import subprocess
import sys

from checks import check, probing, rows, verdict

JOB = """
import sys, torch
a = torch.randn(8192, 8192, device="cuda")
kept = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
while True:
    b = a @ a
    torch.cuda.synchronize()
"""


def smi(fields, *more):
    text = subprocess.run(["nvidia-smi", f"--query-{fields}", "--format=csv,noheader,nounits", *more],
                          stdout=subprocess.PIPE, universal_newlines=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def near(a, b, share, least=0):
    return a is not None and abs(a - b) <= max(share * b, least)


def main():
    job = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, universal_newlines=True)
    try:
        assert job.stdout.readline() == "ready\n", "torch has no GPU here"
        probing(job.pid, "record", "--duration", "8")
        truth = smi("gpu=name,memory.used,memory.total,temperature.gpu,power.draw,uuid")
        seen = rows(job.pid, "SELECT * FROM gpu_metrics ORDER BY timestamp, gpu")
        check("rows a second", len(truth) * 7 <= len(seen) <= len(truth) * 10,
              f"{len(seen)} in 8 s of {len(truth)} GPU")
        last = next((row for row in reversed(seen) if row["gpu"] == 0), {})
        name, used, total, temperature, power, uuid = truth[0]
        check("name, uuid", (last.get("name"), last.get("uuid")) == (name, uuid),
              f"{last.get('name')}, nvidia-smi {name}")
        check("memory_used_mb", near(last.get("memory_used_mb"), float(used), 0.05, 1024),
              f"{last.get('memory_used_mb')}, nvidia-smi {used}")
        check("memory_total_mb", near(last.get("memory_total_mb"), float(total), 0.02),
              f"{last.get('memory_total_mb')}, nvidia-smi {total}")
        check("temperature_c", near(last.get("temperature_c"), float(temperature), 0, 10),
              f"{last.get('temperature_c')}, nvidia-smi {temperature}")
        check("power_w", near(last.get("power_w"), float(power), 0.5), f"{last.get('power_w')}, nvidia-smi {power}")
        busy = rows(job.pid, "SELECT avg(gpu_util) AS util FROM gpu_metrics WHERE timestamp > now() - 60")
        check("gpu_util of a busy GPU", bool(busy) and (busy[0]["util"] or 0) > 50, busy)
        # NVML knows processes by their pids outside of containers: nvidia-smi shows whether it knows this one.
        listed = {int(pid): float(mb) for pid, mb in smi("compute-apps=pid,used_memory") if mb[0].isdigit()}
        mine = last.get("process_memory_mb")
        if job.pid in listed:
            check("process_memory_mb", near(mine, listed[job.pid], 0.05), f"{mine}, nvidia-smi {listed[job.pid]}")
        else:
            check("process_memory_mb, not known to nvidia-smi either", mine is None,
                  f"{mine}; nvidia-smi lists {listed}")

        probing(job.pid, "inject")
        held = json.loads(probing(job.pid, "eval", "__import__('json').dumps([torch.cuda.memory_allocated(), "
                                                   "torch.cuda.memory_reserved()])").strip().strip("'"))
        shown = json.loads(probing(job.pid, "memory", "--json"))[0]
        check("memory: torch_cuda_bytes", near(shown["torch_cuda_bytes"], held[0], 0.4, 512 << 20),
              f"{shown['torch_cuda_bytes']}, torch {held[0]}")
        check("memory: reserved", near(shown["torch_cuda_reserved_bytes"], held[1], 0.01),
              f"{shown['torch_cuda_reserved_bytes']}, torch {held[1]}")
        if job.pid in listed:
            check("memory: gpu_bytes", near(shown["gpu_bytes"], listed[job.pid] * 2**20, 0.2),
                  f"{shown['gpu_bytes']}, nvidia-smi {listed[job.pid]} MB")
        check("memory: Python heap", (shown["heap_blocks"] or 0) > 10000, shown["heap_blocks"])
        print(probing(job.pid, "memory"))
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        after = rows(job.pid, "SELECT count(*) AS n FROM gpu_metrics")
        check("what is left when the job has died", bool(after) and after[0]["n"] == len(seen), after)
    finally:
        job.kill()
    return verdict()


sys.exit(main())
