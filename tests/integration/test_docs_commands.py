"""The commands on the task pages of docs/ run as they stand on a real job, and the tables on them have the columns that
are shown."""
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack

import jobs
import pytest
from jobs import PROGRAM, TOP

pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.timeout(300)]

PAGES = ["start", "hang", "slow", "memory-grows", "nan", "crash", "gpu", "nodes", "production", "from-python", "debug"]

# Lines that are not run, by a part of them, with the reason.
NOT_RUN = {
    "probing core": "there is no core file (test_core.py makes some)",
    "PROBING=": "the package is not installed in this Python (test_starting.py installs it)",
    "PROBING_TORCH_PROFILING=": "the same",
    "gpu profile": "there is no GPU (test_gpu_profile.py has a stand-in)",
    "topics=": "it never ends (test_events.py follows topics)",
    "systemctl": "it is no command of ours",
    "pip install": "the same",
}

# A training with what the pages ask for. Without an argument it ends at once, for `launch`.
TRAIN = """
import os, sys, time
if len(sys.argv) < 2:
    sys.exit()
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
step, history = 0, []

def remember(history, x):
    history.append(x.clone())
    del history[:-100]

def train(loss):
    global step
    x = torch.randn(64, 16)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(torch.ones(10))
    remember(history, x)  # here
    step += 1
    time.sleep(0.01)
    return loss

loss = train(None)
print("ready", flush=True)
while True:
    loss = train(loss)
"""
LINE = TRAIN[1:].splitlines().index("    remember(history, x)  # here") + 1


def page(name):
    return (TOP / f"docs/{name}.md").read_text()


def steps(content):
    """(command, the first line of what it prints on the page or None) of each command line in the code blocks of a
    page."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", content, re.M | re.S):
        if language:
            continue
        lines = block.splitlines()
        for line, after in zip(lines, [*lines[1:], "$ "]):
            session = line.startswith("$ ")
            command = line.removeprefix("$ ")
            if re.match(r"(?:[A-Z_]+=\S+ )*(?:prob(?:ing|e)|curl|python|systemctl|pip) ", command):
                yield command, after if session and not after.startswith("$ ") else None


class Place:
    """The job, a folder to work in, and a runtime folder of our own, so that its service and cluster are nobody
    else's."""

    def __init__(self, job, folder, mark):
        self.job, self.folder, self.mark, self.address, self.token = job, folder, mark, "", ""
        bin = folder / "bin"
        bin.mkdir()
        for name in ("probing", "probe"):
            (bin / name).symlink_to(PROGRAM)
        run = folder / "run"
        run.mkdir(mode=0o700)
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(run), "HOME": str(folder),
                    "PATH": f"{bin}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}

    def written(self, command):
        """The command for this job: its pid, this folder's names, free ports, short times."""
        for pattern, instead in (
                (r"(-t|--from) \d{4}\b", rf"\1 {self.job.pid}"), (r"-t \w+\.py --all",
                                                                  f"-t {self.folder}/train.py --all"),
                (r"train\.py:\d+", f"train.py:{LINE}"), (r"-d \d+", "-d 1"), (r"flamegraph -o", "flamegraph -d 1 -o"),
            (r"\btop\b", "top --count 1"),
                (r"serve --background 127.0.0.1:7070", "serve --background"), (r"step > 597", "step > 0"),
                (r"(?:node7|127\.0\.0\.1):7070", self.address), (r"0\.0\.0\.0:5678", "127.0.0.1:0"),
                (r"--archive ~\S+", "--archive archive"), (r"cluster attach --(here|slurm \d+)",
                                                           f"cluster attach --here --match DOCS_JOB={self.mark}"),
                (r"^curl ", "curl -sS -m 10 ")):
            command = re.sub(pattern, instead, command)
        return command

    def run(self, command):
        done = subprocess.run(["bash", "-c", self.written(command)], cwd=self.folder,
                              env={**self.env, "PROBING_TOKEN": self.token},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=150 * jobs.SLOW)
        served = re.search(r"http://([\d.:]+)/\?token=(\w+)", done.stdout)
        if served:
            self.address, self.token = served[1], served[2]
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    (folder / "train.py").write_text(TRAIN[1:])
    (folder / "steps.py").write_text(re.search(r"```python\n(.*?)```", page("from-python"), re.S)[1])
    mark = uuid.uuid4().hex
    with ExitStack() as ranks:
        # Both at once: each waits for the other. A rank that is ready has made a step.
        first, second = [ranks.enter_context(jobs.start(sys.executable, folder / "train.py", folder / "store",
                                                        cwd=folder,
                                                        env={"RANK": str(rank), "WORLD_SIZE": "2", "DOCS_JOB": mark}))
                         for rank in range(2)]
        jobs.wait_until(lambda: "ready" in first.output and "ready" in second.output
                        or not (first.alive() and second.alive()), 150, "the first step")
        place = Place(first, folder, mark)
        everyone = f"probing -t {folder}/train.py --all"
        for command in ("inject", "archive --once --to archive"):
            done = place.run(f"{everyone} {command}")
            assert done.returncode == 0, first.output + second.output + done.stderr
        yield place
        for command in ("probing serve --stop", f"{everyone} record --stop", f"{everyone} detach"):
            place.run(command)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_do_what_it_says(place, name):
    ran = 0
    for command, shown in steps(page(name)):
        if any(part in command for part in NOT_RUN) or command.startswith("curl") and not shutil.which("curl"):
            continue
        done, until = place.run(command), time.monotonic() + 20
        # The next step fills what was switched on, and a recorder that has just started its first second.
        waits = " query " in command or "--from" in command
        while done.returncode != 0 and waits and time.monotonic() < until:
            time.sleep(0.5)
            done = place.run(command)
        assert done.returncode == 0, f"{place.written(command)}\n{done.stdout}{done.stderr}"
        if shown and " query " in command and len(done.stdout.splitlines()) > 0:
            assert done.stdout.split("\n")[0].split() == shown.split(), f"{command}: the page has other columns"
        elif shown:
            assert done.stdout + done.stderr, f"{command} prints nothing"
        ran += 1
    assert ran >= 2 and place.job.alive(), place.job.output


def test_lines_that_are_not_run_are_on_a_page():
    """Else the list would grow for ever."""
    everything = "".join(page(name) for name in PAGES)
    assert not [part for part in NOT_RUN if part not in everything]
