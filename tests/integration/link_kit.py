"""Nodes with a network of their own: each is joined to a hub, where questions are asked, by a link that can be cut.

    with link_kit.nodes(3, folder) as job:
        job.probe("cluster", "attach", "name", *job.words)
        job.cut(1)
"""
import secrets
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cluster_kit
import jobs
import pytest


class Linked(cluster_kit.Job):
    def __init__(self, folder, world, hub):
        super().__init__(folder, world)
        self.hub = hub

    @property
    def words(self):
        return ["--services", self.services, "--token-file", self.token, "--match", self.mark]

    def at_hub(self, *words):
        return ["nsenter", f"--net=/proc/{self.hub.pid}/ns/net", *map(str, words)]

    def at_node(self, i, *words):
        first = Path(f"/proc/{self.nodes[i].pid}/task/{self.nodes[i].pid}/children").read_text().split()[0]
        return ["nsenter", f"--net=/proc/{first}/ns/net", *map(str, words)]

    def probe(self, *words, timeout=60):
        return subprocess.run(self.at_hub(jobs.PROGRAM, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout * jobs.SLOW)

    def cut(self, i):
        """The node's end goes down: the hub gets no answer, and no error at once either."""
        subprocess.run(self.at_node(i, "ip", "link", "set", "eth0", "down"), check=True)

    def mend(self, i):
        subprocess.run(self.at_node(i, "ip", "link", "set", "eth0", "up"), check=True)

    def join(self, process):
        """The link of a node that has just been started."""
        i = len(self.nodes)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        jobs.wait_until(lambda: children.read_text().split(), what="the node's first process")
        pid = children.read_text().split()[0]
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        for words in (self.at_hub("ip", "link", "add", f"node{i}", "type", "veth", "peer", "name", "eth0", "netns",
                                  pid),
                      self.at_hub("ip", "address", "add", f"10.88.{i}.1/30", "dev", f"node{i}"),
                      self.at_hub("ip", "link", "set", f"node{i}", "up"),
                      [*inside, "ip", "link", "set", "lo", "up"], [*inside, "ip", "address", "add", f"10.88.{i}.2/30",
                                                                   "dev", "eth0"],
                      [*inside, "ip", "link", "set", "eth0", "up"]):
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            assert done.returncode == 0, (words, done.stdout)


def needs_links():
    cluster_kit.needs_namespaces()
    done = subprocess.run(["unshare", "--net", "sh", "-c", "ip link add one type veth peer name two"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        pytest.skip(f"no links between network namespaces here: {done.stdout.strip()}")


@contextmanager
def nodes(count, folder):
    """So many nodes of one rank each, with a service at 10.88.NODE.2."""
    needs_links()
    with ExitStack() as stack:
        job = Linked(folder, count,
                     stack.enter_context(jobs.start("unshare", "--net", "sh", "-c", "echo ready; exec sleep 3600",
                                                    ready="ready")))
        job.token.write_text(secrets.token_hex(32))
        job.token.chmod(0o600)
        subprocess.run(job.at_hub("ip", "link", "set", "lo", "up"), check=True)
        for i in range(count):
            stack.enter_context(cluster_kit.node(job, [i], address=f"10.88.{i}.2:0", joined=job.join))
        yield job
