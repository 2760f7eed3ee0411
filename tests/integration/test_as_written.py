"""docs/as-written.md: each of its lines is run as it stands, on a training that keeps books of its own, and compared
with those."""
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import cluster_kit
import jobs
import pytest
from jobs import TOP, probe, rows
from starting_kit import site_of_tests

PAGE = (TOP / "docs/as-written.md").read_text()
pytestmark = [pytest.mark.usefixtures("needs_torch"), pytest.mark.timeout(300)]

# What the training writes into its books: a line a step with epoch, step and loss, a line a collective.
TRAIN = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
books = open(sys.argv[1], "a", buffering=1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=0, world_size=1)
kept = []

def keep(batch):
    kept.append(batch.clone())

def train(epoch):
    for i in range(25):
        batch = torch.randn(64, 16)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep(batch)
        dist.all_reduce(torch.ones(10))
        books.write(json.dumps({"epoch": epoch, "step": epoch * 25 + i, "loss": loss.item()}) + "\\n")
        time.sleep(0.01)

print("ready", flush=True)
for epoch in range(100000):
    train(epoch)
"""


def block(heading):
    """The code of a section."""
    return re.search(rf"^## {heading}\n.*?```\w*\n(.*?)```", PAGE, re.M | re.S).group(1)


class Training:
    def __init__(self, job, books, folder):
        self.job, self.pid, self.books, self.folder, self.script = job, job.pid, books, folder, folder / "train.py"

    def steps(self):
        """What it says of itself."""
        return [json.loads(line) for line in self.books.read_text().splitlines() if line.endswith("}")]


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("as-written")
    (folder / "train.py").write_text(TRAIN)
    (folder / "script.py").write_text("print('in the process', __import__('os').getpid())\n")
    (folder / "books").write_text("")
    with jobs.start(sys.executable, folder / "train.py", folder / "books", ready="ready", ready_seconds=90, cwd=folder,
                    env={"RANK": "0", "WORLD_SIZE": "1"}) as job:
        yield Training(job, folder / "books", folder)
        probe(job.pid, "pprof", "--stop")
        probe("serve", "--stop")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


PORTS = {written: str(free_port()) for written in ("1234", "1235", "1236")}  # others may have those of the page


def with_ports(line):
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: PORTS[found.group()], line)


def environment():
    return {**os.environ, "PATH": f"{jobs.PROGRAM.parent}:{os.environ['PATH']}"}


def run(training, line, timeout=60):
    """The line as a shell runs it, with the process for 4711."""
    return subprocess.run(["bash", "-c", re.sub(r"\b4711\b", str(training.pid), with_ports(line))],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          universal_newlines=True, timeout=timeout, cwd=training.folder, env=environment())


# --- commands: a check for each ---------------------------------------------------------------------

def is_loss(training, text, began):
    """A loss that the training had since `began`, as Python prints a tensor."""
    value = float(re.search(r"tensor\((-?[0-9.e-]+)", text).group(1))
    losses = [step["loss"] for step in training.steps()[began:]]
    assert any(abs(value - loss) < 1e-3 for loss in losses), (value, losses)


def is_stack(training, text):
    """The stack of a thread that is in train(), called from the script: in whatever form, its line is one of that
    function's."""
    source = training.script.read_text().splitlines()
    lines = [int(number) for number in re.findall(r"train\.py[:\"]\D{0,8}(\d+)", text)]
    begin, end = source.index("def train(epoch):") + 1, source.index('print("ready", flush=True)')
    assert any(begin < line < end for line in lines) and "train" in text, (lines, text)


def answers(port, send, expect):
    with socket.create_connection(("127.0.0.1", int(PORTS[port])), 10) as client:
        client.settimeout(20)
        client.sendall(send)
        got = b""
        while expect not in got:
            more = client.recv(4096)
            assert more, got
            got += more
        return got.decode()


def check_list(t, done, began):
    assert re.search(rf"^ *{t.pid} +(python|probed) ", done.stdout, re.M), done.stdout


def check_inject(t, done, began):
    assert "probing" in t.job.threads()


def check_stacks(t, done, began):
    is_stack(t, done.stdout + done.stderr)


def check_loss(t, done, began):
    is_loss(t, done.stdout, began)


def check_no_gpu(t, done, began):
    assert done.stdout == "False\n"


def check_script(t, done, began):
    assert done.stdout == f"in the process {t.pid}\n"


def check_frames(t, done, began):
    found = [line.split() for line in done.stdout.splitlines()[1:]]
    assert 0 < len(found) <= 5 and all(os.path.exists(row[-2]) and int(row[-1]) > 0 for row in found), done.stdout


def check_memory(t, done, began):
    said = float(re.search(r"in RAM +([0-9.]+) MB", done.stdout).group(1))
    is_ = int(open(f"/proc/{t.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    assert abs(said - is_) < 0.1 * is_, (said, is_)


def check_flamegraph(t, done, began):
    name = done.stdout.split(":")[0]
    assert "train.py" in (t.folder / name).read_text() and name.endswith(".svg")


def check_config(t, done, began):
    assert re.search(r"^probing\.sample_rate +", done.stdout, re.M)


def check_rate(t, done, began):
    assert "0.05" in probe(t.pid, "config", "probing.sample_rate").stdout


def check_size(t, done, began):
    assert "1GB" in probe(t.pid, "config", "probing.max_memory").stdout


def check_catch(t, done, began):
    assert "are recorded in python.exceptions" in done.stderr, (done.stdout, done.stderr)
    assert re.search(r"^nc 127\.0\.0\.1 \d+$", done.stdout, re.M), (done.stdout, done.stderr)


def check_listen(t, done, began):
    is_loss(t, answers("1235", b"loss\n", b"tensor"), began)


def check_service(t, done, began):
    assert with_ports("127.0.0.1:1234") in done.stdout + done.stderr
    with urllib.request.urlopen(with_ports("http://127.0.0.1:1234/health"), timeout=10) as answer:
        assert answer.status == 200


def check_sampling(t, done, began):
    """The line that it prints, pasted into a shell, gets a picture of what was sampled since."""
    line = re.search(r"curl .*", done.stdout).group(0)
    time.sleep(1.5)
    subprocess.run(["bash", "-c", re.sub(r">.*", "> flamegraph.svg", line)], check=True, cwd=t.folder, timeout=30,
                   stderr=subprocess.DEVNULL)
    picture = (t.folder / "flamegraph.svg").read_text()
    assert "<svg" in picture and "train.py" in picture, (line, picture[:300])


def check_pause(t, done, began):
    before = len(t.steps())
    time.sleep(0.5)
    assert len(t.steps()) <= before + 1, "it does not train while it is paused"
    answers("1236", b"loss\n", b"tensor")
    assert probe(t.pid, "continue").returncode == 0 or answers("1236", b"continue\n", b"") is not None
    jobs.wait_until(lambda: len(t.steps()) > before + 2, 30, "the training")


COMMANDS = {
    "probing list": check_list,
    "probe 4711 inject": check_inject,
    "probe 4711 dump": check_stacks,
    "probing -t 4711 backtrace": check_stacks,
    'probing 4711 eval "print(loss)"': check_loss,
    'probing -t 4711 eval "import torch; print(torch.cuda.is_available())"': check_no_gpu,
    'probe 4711 execute "import traceback;traceback.print_stack()"': check_stacks,
    "probe 4711 execute script.py": check_script,
    'probing 4711 query "SELECT func, file, lineno FROM python.backtrace LIMIT 5"': check_frames,
    "probing -t 4711 memory": check_memory,
    "probing -t 4711 flamegraph": check_flamegraph,
    "probing -t 4711 config": check_config,
    "probing -t 4711 config probing.sample_rate=0.05": check_rate,
    "probing -t 4711 config probing.max_memory=1GB": check_size,
    'echo "loss" | probing -t 4711 repl': check_loss,
    "probe 4711 inject -c": check_catch,
    "probe 4711 catch": check_catch,
    "probe 4711 listen 127.0.0.1:1235": check_listen,
    "probe 4711 inject -b -a 127.0.0.1:1234": check_service,
    "probe 4711 inject -P": check_sampling,
    "probe 4711 pprof": check_sampling,
    "probing 127.0.0.1:1234 backtrace": check_stacks,
    'probing -t 127.0.0.1:1234 eval "print(loss)"': check_loss,
    'echo "loss" | probing -t 127.0.0.1:1234 repl': check_loss,
    "probing cluster attach": None,  # below
    "probe 4711 pause 127.0.0.1:1236": check_pause,
}


def test_the_page_has_the_commands_that_are_checked():
    assert block("Commands").splitlines() == list(COMMANDS)


@pytest.mark.parametrize("line", [line for line in COMMANDS if COMMANDS[line]])
def test_a_command_gives_what_the_training_knows(training, line):
    began = len(training.steps())
    done = run(training, line)
    assert done.returncode == 0, (done.stdout, done.stderr)
    COMMANDS[line](training, done, max(0, began - 3))
    assert training.job.alive()


# attach finds the ranks of every job of the machine: this one is alone in a pid namespace, with a home without
# clusters.
ATTACH = """
RANK=0 WORLD_SIZE=1 "$1" "$2" >"$3/log" &
until grep -q ready "$3/log"; do sleep 0.05; done
probing cluster attach && echo "the rank is $!" && probing -t cluster eval "__import__('os').getpid()" && probing cluster detach
"""


def test_attach_finds_the_rank_of_the_machine(tmp_path):
    cluster_kit.needs_namespaces()
    (tmp_path / "train.py").write_text(jobs.TRAINING)
    own = {name: str(tmp_path) for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_STATE_HOME",
                                            "XDG_CONFIG_HOME")}
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", ATTACH, "attach",
                           sys.executable,
                           tmp_path / "train.py", tmp_path], env={**environment(), **own}, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, universal_newlines=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.search(r"\b1 rank\b", done.stdout + done.stderr), (done.stdout, done.stderr)
    pid = re.search(r"the rank is (\d+)", done.stdout).group(1)
    assert re.search(rf"\b{pid}\b", done.stdout.partition("the rank is")[2].split("\n", 1)[1]), done.stdout


# --- queries ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def recorded(training):
    assert probe(training.pid, "config", "probing.torch.profiling=on,exprs=loss@train,epoch@train",
                 "probing.memory.sampling=on,interval=64KB").returncode == 0
    first = training.steps()[-1]["epoch"]
    jobs.wait_until(lambda: training.steps()[-1]["epoch"] > first + 3, 90, "epochs")
    training.whole = [first + 2, first + 3]  # recorded from their first step to their last
    jobs.wait_until(lambda: rows(training.job, "SELECT count(*) AS n FROM memory_usage")[0]["n"] > 2, 20, "rows")
    return training


def near(a, b, share=0.02):
    return abs(a - b) <= share * abs(b)


def is_line_of(row):
    """Whether the file has a function of that name above that line."""
    lines = open(row["file"]).read().splitlines()
    return row["func"] == "<module>" or any(re.match(rf"\s*def {row['func'].split('.')[-1]}\(", line)
                                            for line in lines[:row["lineno"]])


def query_frames(t, got):
    whole = rows(t.job, "SELECT func, file, lineno FROM python.backtrace WHERE func IS NOT NULL")  # of another moment
    frames = [row for row in got if row["func"] and "<" not in row["func"][1:]]
    assert 0 < len(got) <= 5 and frames and all(map(is_line_of, frames)), got
    assert any(row["func"] == "train" and row["file"] == str(t.script) and 14 < row["lineno"] < 40
               for row in whole), whole


def query_stack(t, got):
    depths = [row["depth"] for row in got if row["depth"] is not None]  # NULL: a thread without a Python stack
    assert depths == sorted(depths) and 0 in depths and len(got) <= 10


def query_modules(t, got):
    names = {row["module"] for row in got if row["stage"] == "forward"}
    assert names == {"Sequential", "0", "1", "2"}, names
    assert {row["module_type"] for row in got if row["module"] == "0"} == {"Linear"}


def query_operations(t, got):
    calls = {row["operation_name"]: row["call_count"] for row in got}
    assert calls["0"] == calls["2"], calls
    assert near(calls["0"], calls["Sequential"], 0.05), calls
    assert all(row["avg_duration"] > 0 for row in got), calls
    averages = [row["avg_duration"] for row in got]
    assert averages == sorted(averages, reverse=True) and len(got) <= 10


def query_usage(t, got):
    now = int(open(f"/proc/{t.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    assert near(got[-1]["memory_mb"], now, 0.1), (got[-1], now)


def query_hours(t, got):
    assert 1 <= len(got) <= 2 and got[0]["avg(memory_mb)"] > 50


def query_all_timed(t, got):
    assert {"0", "Sequential", "backward", "SGD", "step"} - {row["operation_name"] for row in got} <= {"step"}, got


def query_epochs(t, got):
    """Each step is in the epoch in which it was, with the loss that it had."""
    of = {row["epoch"]: row for row in got}
    for epoch in t.whole:
        losses = [step["loss"] for step in t.steps() if step["epoch"] == epoch]
        assert of[epoch]["steps"] == len(losses) == 25, (of[epoch], len(losses))
        assert near(of[epoch]["avg(loss)"], sum(losses) / 25, 1e-4), of[epoch]
        assert near(of[epoch]["min(loss)"], min(losses), 1e-4), of[epoch]


def query_ranks(t, got):
    assert [(row["src_rank"], row["dst_rank"]) for row in got] == [(0, -1)], got
    assert 0 < got[0]["avg(latency_ms)"] < 1000, got


def query_gpus(t, got):
    assert got == [{"avg(gpu_util)": None}] or 0 <= got[0]["avg(gpu_util)"] <= 100


def query_leak(t, got):
    assert got[0]["function_name"] == "keep", got[:3]


def query_python_memory(t, got):
    assert got[-1]["pid"] == t.pid
    assert near(got[-1]["rss_bytes"], int(open(f"/proc/{t.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE"),
                0.1)


def query_process(t, got):
    assert [row["pid"] for row in got] == [t.pid] and str(t.script) in got[0]["command"]


QUERIES = [query_frames, query_stack, query_modules, query_operations, query_usage, query_hours, query_all_timed,
           query_epochs, query_ranks, query_gpus, query_leak, query_python_memory, query_process]
STATEMENTS = [statement.strip() for statement in block("Queries").split(";") if statement.strip()]


def test_each_query_of_the_page_has_a_check():
    assert len(STATEMENTS) == len(QUERIES)


@pytest.mark.parametrize("check, sql", zip(QUERIES, STATEMENTS), ids=[check.__name__ for check in QUERIES])
def test_a_query_gives_what_the_training_knows(recorded, check, sql):
    check(recorded, rows(recorded.job, sql))


# --- from the start ---------------------------------------------------------------------------------

SHORT = TRAIN.replace("range(100000)", "range(4)").replace("time.sleep(0.01)", "pass") + """
time.sleep(2.5)
import probing
print(json.dumps([dict(row) for row in probing.query("SELECT epoch, step, loss FROM training_logs ORDER BY timestamp")]))
print(json.dumps([dict(row) for row in probing.query("SELECT name, value FROM probing.config")]))
"""


def check_started(lines, books):
    assert lines[0] == "ready" and len(books) == 100


def check_tracked(lines, books):
    logged = json.loads(lines[1])
    assert [(row["epoch"], row["step"], round(row["loss"], 5))
            for row in logged] == [(step["epoch"], row["step"], round(step["loss"], 5))
                                   for step, row in zip(books, logged)]
    assert len(logged) == len(books) == 100, "no step is lost, the first neither"


def check_settings(lines, books):
    settings = {row["name"]: row["value"] for row in json.loads(lines[2])}
    assert (settings["probing.sample_rate"], settings["probing.retention_days"]) == ("0.1", "7"), settings


def check_example(lines, books):
    assert [line.split(",")[0] for line in lines
            if line.startswith("epoch ")] == ["epoch 0: 20 steps", "epoch 1: 20 steps", "epoch 2: 20 steps"], lines


STARTS = {
    "PROBING=1 python train.py": check_started,
    'PROBING_TORCH_PROFILING="on,exprs=loss@train,epoch@train" PROBING=1 python train.py': check_tracked,
    'PROBE_TORCH_EXPRS="loss@train,epoch@train" PROBE=1 python train.py': check_tracked,
    "PROBING_SAMPLE_RATE=0.1 PROBING_RETENTION_DAYS=7 PROBING=1 python train.py": check_settings,
    "PROBE=1 python examples/test_probing.py": check_example,
}


def test_the_page_has_the_starts_that_are_checked():
    assert block("From the start").splitlines() == list(STARTS)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package installed in an environment of its own, whose python is on the PATH."""
    folder = tmp_path_factory.mktemp("installed")
    program = site_of_tests(folder)
    (folder / "train.py").write_text(SHORT)
    (folder / "examples").symlink_to(TOP / "examples")
    return folder, program


@pytest.mark.parametrize("line", list(STARTS))
def test_a_program_that_is_started_so_is_recorded(installed, line, tmp_path):
    folder, program = installed
    env = {k: v for k, v in environment().items() if k not in ("PROBING", "PROBE")}
    env.update(PATH=f"{program.parent}:{env['PATH']}", PROBING_PROGRAM=str(jobs.PROGRAM))
    done = subprocess.run(["bash", "-c", line.replace("train.py", f"train.py {tmp_path}/books")],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          universal_newlines=True, timeout=120, cwd=folder, env=env)
    assert done.returncode == 0 and done.stderr == "", (done.stdout[-500:], done.stderr)
    books = [json.loads(row)
             for row in (tmp_path / "books").read_text().splitlines()] if (tmp_path / "books").exists() else []
    STARTS[line](done.stdout.splitlines(), books)


# --- in Python --------------------------------------------------------------------------------------

PYTHON = """
import json, time, torch, torch.distributed, sys
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
t = torch.ones(100)
def train_some():
    time.sleep(0.3)
%s
def inner(loss):
    loss = loss * 0.5
    return loss
%s
def training_step():
    loss = 8.0
    loss = loss - 1
    loss = inner(loss)
    return loss
assert training_step() == 3.5
time.sleep(1.5)
ask = lambda sql: [dict(row) for row in probing.query(sql)]
print(json.dumps({"memory": ask("SELECT count(*) AS n, min(memory_mb) AS least FROM memory_usage"), "logs": ask("SELECT epoch, step, loss FROM training_logs"),
                  "collectives": ask("SELECT op, bytes FROM collective_ops"),
                  "watched": ask("SELECT function, name, new_number FROM python.variables WHERE how = 'assigned' ORDER BY timestamp")}))
"""


def test_the_lines_in_python_do_what_they_say(installed, tmp_path):
    folder, program = installed
    lines = block("In Python").splitlines()
    decorators, plain = [line for line in lines
                         if line.startswith("@")], [line for line in lines if not line.startswith("@")]
    (tmp_path / "own.py").write_text(PYTHON % ("\n".join(plain), "\n".join(decorators)))
    done = subprocess.run([program, tmp_path / "own.py", tmp_path / "store"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=120,
                          env={**environment(), "PROBING_PROGRAM": str(jobs.PROGRAM)})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    got = json.loads(done.stdout)
    assert got["memory"][0]["n"] > 20 and got["memory"][0]["least"] > 20, "a row every 10 ms inside of the block"
    assert got["logs"] == [{"epoch": 1, "step": 10, "loss": 0.3}]
    assert [(row["op"], row["bytes"]) for row in got["collectives"]] == [("allreduce", 400)], got["collectives"]
    values = [(row["function"], row["new_number"]) for row in got["watched"] if row["name"].startswith("loss")]
    assert ("training_step", 7.0) in values, got["watched"]
    assert ("training_step", 3.5) in values, got["watched"]
    assert ("inner", 3.5) in values, got["watched"]
