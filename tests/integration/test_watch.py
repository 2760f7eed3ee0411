"""watch: changes of variables of a running program, as rows of python.variables."""
import json
import sys

import jobs
import pytest
from jobs import probe
from prompt_kit import COUNTING
from every_python import EVERY, program
from jobs import rows

CODE = """
import time
class Trainer:
    def __init__(self):
        self.lr, self.groups = 0.5, [{"lr": 1}]
    def step(self, n):
        self.lr *= 0.5
        if self.lr < 1e-6:
            self.lr = 0.5
        self.groups[0]["lr"] += 1
        name = "even" if n % 2 == 0 else "odd"
        api_key = "abc%d" % n
        seen = [n]
        seen.append(name)
        return seen
def fact(n):
    result = 1 if n < 2 else n * fact(n - 1)
    return result
def main():
    trainer, n = Trainer(), 0
    print("ready", flush=True)
    while True:
        n += 1
        trainer.step(n)
        fact(3)
        time.sleep(0.002)
main()
"""


def changes(job, name):
    return rows(job, f"SELECT * FROM python.variables WHERE name = $${name}$$ ORDER BY timestamp")


@EVERY
def test_changes_are_rows(python):
    with program(python, CODE) as job:
        names = ["self.lr@Trainer.step", "self.groups[0]['lr']@Trainer.step", "name@Trainer.step", "seen@Trainer.step",
                 "result@fact", "n@main", "api_key@Trainer.step"]
        done = probe(job.pid, "watch", *names)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == len(names), done.stderr
        jobs.wait_until(lambda: len(changes(job, "n")) > 15, what="changes")
        assert all(name in probe(job.pid, "watch").stdout for name in names)
        assert "n@main" in probe(job.pid, "watch", "--stop").stdout
        assert probe(job.pid, "watch").stdout == "nothing is watched\n"
        lr = changes(job, "self.lr")[-6:]  # while the others were added it may have missed one
        assert lr and all(row["old_number"] == 2 * row["new_number"] or row["new_number"] == 0.5 for row in lr)
        first = int(probe(job.pid, "eval", "Trainer.step.__code__.co_firstlineno").stdout)
        assert {row["line"] - first for row in lr} <= {1, 3} and {row["how"] for row in lr} == {"assigned"}
        numbers = [int(row["new_number"]) for row in changes(job, "n")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(row["new_number"] == row["old_number"] + 1 for row in changes(job, "self.groups[0]['lr']")[-6:])
        assert {(row["old"], row["new"]) for row in changes(job,
                                                            "name")[-6:]} <= {('"even"', '"odd"'), ('"odd"', '"even"')}
        in_place = [row for row in changes(job, "seen") if row["how"] == "in place"]
        assert in_place and all(len(json.loads(row["new"])) == 2 and row["line"] - first == 8 for row in in_place)
        named = probe(job.pid, "eval", "__import__('linecache').getline(Trainer.step.__code__.co_filename, "
                                       "Trainer.step.__code__.co_firstlineno)").stdout
        # a program of -c has no source
        assert {row["operation"] for row in in_place} == {"append()" if "def step" in named else None}
        assert not any(row["operation"] for row in lr)
        assert {row["new_number"] for row in changes(job, "result")} == {1, 2, 6}
        assert {row["new"] for row in changes(job, "api_key")} == {'"***"'}
        assert job.alive() and probe(job.pid, "detach").returncode == 0


def test_at_most_so_many_a_second():
    with jobs.python(COUNTING) as job:
        assert probe(job.pid, "watch", "step@train", "--rate", "5").returncode == 0
        jobs.wait_until(lambda: any(row["note"] for row in changes(job, "step")), what="a note")
        found = changes(job, "step")
        notes = [row["note"] for row in found if row["note"]]
        assert len(found) < 200 and all(" were not recorded: more than 5 a second" in note for note in notes), notes


IN_A_THREAD = """
import threading, time
def loop(n):
    while True:
        n += 1
        time.sleep(0.02)
threading.Thread(target=loop, args=(0,), daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


@pytest.mark.parametrize("command", [("watch", "n@loop"), ("trace", "loop"), ("break", "FILE:6", "--log", "{n}")])
def test_a_thread_that_runs_already_is_seen_or_it_is_said(command):
    with jobs.python(IN_A_THREAD) as job:
        done = probe(job.pid, *[word.replace("FILE", job.script) for word in command])
        assert done.returncode == 0, done.stderr
        assert ("a thread that runs it already is not seen" in done.stdout
                + done.stderr) == (sys.version_info < (3, 12)), done.stdout


@pytest.mark.parametrize("word, text", [("loss", "VARIABLE@FUNCTION"), ("f(x)@train", "nothing that calls"),
                                        ("x@nothing", "__main__ has no nothing; it has "),
                                        ("nosuch@train", "train has no variable nosuch; it has model, step, total"),
                                        ("nosuch.x@train", "no variable nosuch;")])
def test_refused(word, text):
    with jobs.python(COUNTING) as job:
        done = probe(job.pid, "watch", word)
        assert done.returncode == 1 and text in done.stderr, done.stderr


TENSORS = """
import time, torch
def helper(tensor):
    tensor.zero_()
def train():
    weight, n = torch.zeros(3), 0
    loss = torch.tensor(1.0, requires_grad=True)
    print("ready", flush=True)
    bias, groups = torch.zeros(2), [weight]
    while True:
        n += 1
        weight.add_(1)
        bias[0] = n
        torch.add(bias, 1, out=bias)
        bias += 1
        groups[0].mul_(0.5); helper(bias)
        loss = loss.detach() * 2 if n % 8 else torch.tensor(1.0)
        time.sleep(0.01)
train()
"""


# A function that is called anew for each change, of what lives on between its calls.
CALLED = """
import time, torch
held = torch.zeros(2)
def work(w, n):
    global held
    w += 1
    held += 1
    w = w * 1
    fresh = [n]
    return n
def whole(w):
    w.mul_(2)
class Owner:
    def step(self):
        self.w += 1
        return self
print("ready", flush=True)
w, n, owner = torch.zeros(3), 0, Owner()
owner.w = torch.zeros(1)
while True:
    n += 1
    work(w, n)
    owner.step()
    whole(w)
    time.sleep(0.005)
"""


def test_a_tensor_that_each_call_changes_is_changed_in_place(needs_torch):
    with jobs.python(CALLED, interpreter=sys.executable, ready_seconds=120) as job:
        assert probe(job.pid, "watch", "w@work", "held@work", "fresh@work", "w@whole",
                     "self.w@Owner.step").returncode == 0
        jobs.wait_until(lambda: all(len(changes(job, name)) > 12 for name in ("held", "fresh", "w")), 30, "changes")
        first = int(probe(job.pid, "eval", "work.__code__.co_firstlineno").stdout)
        told = lambda name, function: {(row["line"] - first, row["how"], row["operation"])
                                       for row in changes(job, name)[2:] if row["function"] == function
                                       and row["how"] != "first"}
        assert told("held", "work") == {(3, "in place", "+=")}
        assert told("fresh", "work") == {(5, "assigned", None)}
        assert {(2, "in place", "+="), (4, "assigned", None)} <= told("w", "work"), told("w", "work")
        assert told("self.w", "step") == {(11, "in place", "+=")}
        assert all(row["new_number"] == row["old_number"] + 1 for row in changes(job, "self.w")[2:])
        assert (8, "in place", "mul_") in told("w", "whole"), told("w", "whole")


def test_tensors(needs_torch):
    with jobs.python(TENSORS, interpreter=sys.executable, ready="") as job:
        jobs.wait_until(lambda: "ready" in job.output, seconds=60, what="torch")
        assert probe(job.pid, "watch", "weight@train", "loss@train", "bias@train").returncode == 0
        jobs.wait_until(lambda: len(changes(job, "loss")) > 5 and len(changes(job, "weight")) > 5
                        and len(changes(job, "bias")) > 9, what="changes")
        weight, loss = changes(job, "weight")[1:], changes(job, "loss")[1:]
        first = int(probe(job.pid, "eval", "train.__code__.co_firstlineno").stdout)
        assert {(row["how"], row["line"] - first, row["operation"])
                for row in weight} == {("in place", 7, "add_"), ("in place", 11, "helper(), mul_")}
        assert {(row["line"] - first, row["operation"])
                for row in changes(job, "bias")[1:]} == {(8, "[]="), (9, "add(out=)"), (10, "+="),
                                                         (11, "helper(), mul_")}
        assert json.loads(weight[0]["new"])["tensor"] == [3]
        assert {(row["how"], row["line"] - first) for row in loss} == {("assigned", 12)}
        assert all(row["new_number"] in (2 * row["old_number"], 1.0) for row in loss)
