"""A signal handler of the program that raises while our hooks of a training step run: the program gets the exception,
as if it had been in its own code, and nothing of torch's state is left changed."""
import json
import sys

import jobs
import pytest

pytest.importorskip("torch")
PROGRAM = """
import json, random, signal, time, torch, traceback
class Alarm(Exception): pass
random.seed(1)
torch.set_num_threads(1)
found = {"inside": 0, "swallowed": 0, "twice": 0, "frames": [], "grad": 0, "handlers": 0, "steps": 0}
raised = 0
lasts = 0.01
inside = []
def alarm(number, frame):
    global raised, inside
    raised += 1
    stack = [each[0].f_code for each in traceback.walk_stack(frame)]
    inside = [each.co_filename + " " + each.co_name for each in stack] if any("probing>" in each.co_filename for each in stack) else []
    found["inside"] += bool(inside)
    raise kind("now")
signal.signal(signal.SIGALRM, alarm)
class Meter:
    @property
    def slow(self):
        for i in range(20000): pass
        return 1.5
    @property
    def broken(self):
        raise Alarm("of its own")
params = [torch.nn.Parameter(torch.ones(2)) for _ in range(300)]
for each in params: each.grad = torch.ones(2)
optimizer = torch.optim.SGD(params, lr=0.0)
meter = Meter()
def train():
    global lasts
    loss = torch.ones(())
    before, error = raised, None
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, lasts))
        begin = time.monotonic()
        optimizer.step()
        lasts = time.monotonic() - begin  # with our hooks: the signal comes in one of the next step's
        while raised == before: time.sleep(0.0005)
        time.sleep(0.0005)
        found["swallowed"] += 1
        found["where"] = inside
    except kind as caught:
        error = caught
    found["twice"] += raised != before + 1
    found["grad"] += bool(inside) and not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    found["handlers"] += signal.getsignal(signal.SIGALRM) is not alarm
    trace = error.__traceback__ if error else None
    while trace is not None:
        if "probing>" in trace.tb_frame.f_code.co_filename: found["frames"].append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    found["steps"] += 1
kind = KIND
optimizer.step()
print("ready", flush=True)
until = time.monotonic() + 40
while found["inside"] < 2000 and time.monotonic() < until: train()
optimizer.step()
print("END", json.dumps(found), flush=True)
time.sleep(100)
"""
TRACKED = {"values": "loss@train,grad_norm", "expression": "meter.slow@train,meter.broken@train"}


@pytest.mark.parametrize("kind", ["Alarm", "KeyboardInterrupt"])
@pytest.mark.parametrize("tracked", TRACKED)
def test_what_a_handler_raises_in_a_step_reaches_the_program(kind, tracked):
    code = PROGRAM.replace("KIND", kind)
    env = {"PROBING_TORCH_PROFILING": "on,exprs=" + TRACKED[tracked], "PYTHONPATH": str(jobs.TOP / "python")}
    with jobs.python(code, interpreter=jobs.PROGRAM, flags=["launch", "--", sys.executable], ready="END",
                     ready_seconds=110, env=env) as job:
        found = json.loads(job.output.split("END ", 1)[1].splitlines()[0])
        assert found["inside"] > 0, found
        assert (found["swallowed"], found["twice"], found["frames"], found["grad"],
                found["handlers"]) == (0, 0, [], 0, 0), found
