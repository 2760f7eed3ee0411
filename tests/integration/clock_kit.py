"""Nodes whose clocks are wrong, reached as by ssh: a launcher that enters a node's namespaces and gives its program
another clock."""
import subprocess
from contextlib import contextmanager
from pathlib import Path

import cluster_kit
import jobs

LAUNCHER = """#!/bin/bash
while [ "$1" != -- ]; do shift; done
node=$2
shift 2
. {folder}/$node
export PROBING_CLUSTER_NODE=$node OFFSET_CLOCK_NS
exec nsenter --target=$inside --pid --mount --wd=/ env LD_PRELOAD={library} "$@"
"""


def build_clock(folder):
    library = folder / "offset_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", str(library),
                    str(jobs.TOP / "tests/integration/targets/offset_clock.c"), "-ldl"],
                   check=True)
    return library


@contextmanager
def nodes(offsets, folder, serve=False, each=1):
    """A job whose nodes n0, n1, .. have clocks that are ahead by so many nanoseconds: the job, and the words that
    attach it."""
    library, job = build_clock(folder), cluster_kit.Job(folder, len(offsets) * each)
    job.token.write_text("0" * 64)
    job.token.chmod(0o600)
    launcher, hosts = folder / "launcher", folder / "hosts"
    launcher.write_text(LAUNCHER.format(folder=folder, library=library))
    launcher.chmod(0o755)
    hosts.write_text("".join(f"n{i}\n" for i in range(len(offsets))))

    @contextmanager
    def started(i):
        if i == len(offsets):
            yield
            return
        with cluster_kit.node(job, range(i * each, (i + 1) * each), serve=serve) as process:
            inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            (folder / f"n{i}").write_text(f"inside={inside}\nOFFSET_CLOCK_NS={offsets[i]}\n")
            with started(i + 1):
                yield
    with started(0):
        yield job, ["--hosts", hosts, "--launcher", launcher, "--match", job.mark]
