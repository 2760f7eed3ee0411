"""What describes a tensor or takes its value runs no operation of torch and no code of the program, and is right."""
import json
import math
import sys

import jobs
import pytest
from jobs import probe, rows

pytestmark = pytest.mark.usefixtures("needs_torch")

# Everything that a program can put around torch's operations, around bodies that all probes look at.
LISTENING = """
import sys, time, torch, torch.nn as nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
calls = []
class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        calls.append("function %s" % getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))
class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls.append("dispatch %s" % func)
        return func(*args, **(kwargs or {}))
class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append("subclass %s" % getattr(func, "__name__", func))
        return super().__torch_function__(func, types, args, kwargs)
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes", dispatch_device=True, dispatch_layout=True)
    def __init__(self, inner): self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        calls.append("wrapper %s" % func)
        if "sym_size" in str(func): return args[0].inner.shape
        if "device" in str(func): return args[0].inner.device
        if "layout" in str(func): return args[0].inner.layout
        return NotImplemented
class Meta(type):
    def __eq__(cls, other): calls.append("__eq__ of a metaclass"); return cls is other
    def __hash__(cls): calls.append("__hash__ of a metaclass"); return 1
    def __getattribute__(cls, name): calls.append("attribute %s of a class" % name); return type.__getattribute__(cls, name)
class Odd(metaclass=Meta):
    def __getattribute__(self, name): calls.append("attribute %s" % name); return object.__getattribute__(self, name)
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): calls.append("forward of a function"); return x * 2
    @staticmethod
    def backward(ctx, grad): calls.append("backward of a function"); return grad * 2
plain, sub, wrapped, odd = torch.ones(3), torch.ones(3).as_subclass(Sub), Wrapped(torch.ones(3)), Odd()
number = torch.tensor(2.5)
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
net[0].weight.register_hook(lambda grad: calls.append("hook of a gradient"))
optimizer = torch.optim.SGD(net.parameters(), 0.001)
def look(value, more=None):
    seen = value
    seen = more
    return seen
def train(norms=None):
    loss = Double.apply(net(plain)).sum() + checkpoint(net, plain, use_reentrant=False).sum() * 0
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=False)
    return loss
def inside(x):
    seen = look(x)
    return x.sum()
def everything(): look(plain, number); look(sub, odd); look(wrapped, [odd, {"a": sub}]); train()
def with_functions():
    with Functions(): everything()
def with_dispatch():
    with Dispatched(): look(plain, number); train()
def with_both():
    with Functions(), Dispatched(): train()
def with_transformations():
    torch.func.vmap(inside)(torch.ones(2, 3)); torch.func.grad(inside)(plain)
def with_inference():
    with torch.inference_mode(): look(torch.ones(2) + 1, torch.tensor(3.0) + 1)
def with_compile():
    compiled(plain)
def with_trace():
    calls.extend("trace " + node.kind() for node in torch.jit.trace(net, torch.ones(2, 3), check_trace=False).inlined_graph.nodes())
def backend(graph, _): calls.append("compiled"); return graph.forward
@torch.compile(backend=backend, fullgraph=True)
def compiled(x):
    seen = look(x * 2)
    return net(x).sum()
def with_others():
    look(torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])); look(torch.empty(2, device="meta"))
def with_profiler():
    with torch.autograd.profiler.profile(use_kineto=False) as p: look(plain, number); train()
    calls.extend(sorted("profiler %s" % event.name for event in p.function_events))
bodies = [with_functions, with_dispatch, with_both, with_transformations, with_inference, with_others, with_profiler, with_compile, with_trace, everything]
def play():
    found = []
    for body in bodies:
        del calls[:]
        body()
        found.append(list(calls))
    return found
play(); first = play()
assert play() == first
print("ready", flush=True)
rounds, other = 0, set()
def more():
    global rounds
    for a, b, body in zip(play(), first, bodies):
        if a != b: other.add("%s: %s" % (body.__name__, sorted(set(a) - set(b)) or "another number: %d and %d" % (len(a), len(b))))
    rounds += 1
def main():
    while True: more()
main()
"""


def turns(job, n):
    told = lambda: int(probe(job.pid, "eval", "rounds").stdout)
    end = told() + n
    jobs.wait_until(lambda: told() >= end, 60, "rounds")


PROBES = {
    "trace": [("trace", "look", "train", "--args", "--locals", "seen,loss", "--yes")],
    "watch": [("watch", "seen@look", "value@look", "more@look", "loss@train")],
    "track": [("track", "seen@look", "loss@train", "plain@train", "lr", "grad_norm", "throughput")],
    "torch": [("config", "probing.torch.profiling=on")],
    "tables": [("config", "probing.torch.profiling=on"), ("query", "SELECT name, grad_norm FROM python.tensors"),
               ("query", "SELECT name, grad_norm FROM python.modules")],
    "inspect": [("inspect", name) for name in ("plain", "sub", "wrapped", "odd", "net", "optimizer", "sys")],
    "memory": [("config", "probing.memory.sampling=on")],
    "stacks": [("backtrace", "--locals"), ("catch", "--no-prompt")],
    "break": [("break", "SCRIPT:%d" % (LISTENING[:LISTENING.index("    seen = more")].count("\n") + 1), "--log",
               "there"), ("break", "--on-change", "seen@look", "--log", "another"),
              ("break", "--on-change", "loss@train", "--log", "another")],
}


def test_the_program_sees_no_operation_of_ours():
    with jobs.python(LISTENING, interpreter=sys.executable, ready="ready", ready_seconds=120) as job:
        seen = {}
        for name, commands in PROBES.items():
            for command in commands:
                command = [word.replace("SCRIPT", job.script) for word in command]
                done = probe(job.pid, *command)
                failed = done.returncode != 0 and [" ".join(command) + ": " + done.stderr] or []
                turns(job, 2)
            told = json.loads(probe(job.pid, "eval", "import json; found = sorted(other); other.clear(); "
                                                     "print(json.dumps(found))").stdout)
            if told or failed:
                seen[name] = failed + told
        assert not seen
        assert {row["name"] for row in rows(job, "SELECT DISTINCT name FROM "
                                                 "python.variables")} >= {"seen", "more", "loss", "lr", "grad_norm"}
        assert rows(job, "SELECT count(*) > 3 AS yes FROM python.break_hits WHERE message = 'there'") == [{"yes": True}]
        assert job.alive() and probe(job.pid, "detach").returncode == 0


# What torch itself says of tensors of all kinds, beside what is read by layout.
KINDS = """
import time, torch, torch.nn as nn, numpy as np
torch.set_num_threads(1)
made = {str(d)[6:] + name: t for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
                                       torch.bool, torch.uint16, torch.uint32, torch.uint64)
        for name, t in (("", torch.tensor(1).to(d)), (" 3", torch.arange(24).reshape(2, 3, 4).to(d)))}
parameter = nn.Parameter(torch.randn(5, 5)); (parameter * torch.randn(5, 5)).sum().backward()
freed = torch.ones(100); freed.untyped_storage().resize_(0)
with torch.inference_mode(): inference = torch.tensor(4.0) + 1
made.update(huge=torch.tensor(2**63 - 5), hugeu=torch.tensor(2**64 - 5, dtype=torch.uint64), dims=torch.arange(128.).reshape(*[2] * 7)[:, 1:],
            turned=torch.arange(24.).reshape(2, 3, 4).permute(2, 0, 1), steps=torch.arange(24.)[3::5], spread=torch.arange(3.)[None].expand(4, 3),
            last=torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), numpy=torch.from_numpy(np.arange(3.)), empty=torch.empty(0, 3),
            parameter=parameter, inference=inference, half=torch.tensor([6e-8, 65504.0, -0.5], dtype=torch.float16), lazy=torch._lazy_clone(torch.arange(3.)),
            complex=torch.tensor(1 + 2j), gradient=parameter.grad, changed=torch.zeros(2).add_(1).mul_(3))
unread = dict(conjugated=torch.tensor([1 + 2j]).conj(), negated=torch.tensor([1 + 2j]).conj().imag, zero=torch._efficientzerotensor((2,)),
              sparse=torch.eye(3).to_sparse(), csr=torch.eye(3).to_sparse_csr(), meta=torch.empty(3, device="meta"), freed=freed,
              quantized=torch.quantize_per_tensor(torch.ones(3), .1, 0, torch.qint8), nested=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
              jagged=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged))
def compare(read):
    wrong = []
    for name, t in made.items():
        found = read.tensor(t)
        told = [list(t.shape), str(t.dtype)[6:], str(t.device), None if t.is_inference() else t._version]
        number = t.item() if t.numel() == 1 and not t.is_complex() else None
        one = read.tensor_number(t)
        if found[:5] != told + [t.numel()] or one != number or type(one) is not type(number) or (found[5] is None) != (t.numel() > 0): wrong.append((name, found, told, number))
        if t.numel() == 0 or t.is_complex(): continue
        if found[6] != t.data_ptr() and name != "lazy" or found[8] != list(t.stride()): wrong.append((name, found))
        exact = t.double()
        if read.tensor_range(t) != [exact.min().item(), exact.max().item(), 0]: wrong.append((name, read.tensor_range(t)))
        if abs(read.tensor_squares(t) - exact.square().sum().item()) > 1e-12 * exact.square().sum().item(): wrong.append((name, read.tensor_squares(t)))
    for name, t in unread.items():
        if read.tensor_number(t) is not None or type(read.tensor(t)[5]) is not str or read.tensor(t)[6] is not None or type(read.tensor_squares(t)) is not str: wrong.append((name, read.tensor(t)))
    inside = []
    torch.func.vmap(lambda x: inside.append(read.tensor(x)) or x.sum())(torch.ones(2, 3)); torch.func.grad(lambda x: inside.append(read.tensor(x)) or x.sum())(torch.ones(3))
    if [(type(found[5]), found[6]) for found in inside] != [(str, None)] * 2: wrong.append(inside)
    if read.tensor_gradient(parameter) is not parameter.grad or read.tensor_gradient(made["huge"]) is not None: wrong.append("a gradient")
    if [read.tensor(each) for each in (3, [1], torch, nn.Linear(1, 1), np.ones(2), torch.Tensor)] != [None] * 6: wrong.append("no tensor")
    return wrong
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def test_what_is_read_is_what_torch_says():
    with jobs.python(KINDS, interpreter=sys.executable, ready_seconds=120) as job:
        done = probe(job.pid, "eval", "--timeout", "60", "import probing, _probing; print(compare(_probing))")
        assert done.stdout == "[]\n", done


TRAINING = """
import json, sys, time, torch, torch.nn as nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 1).to(torch.float64))
net[2].float()
optimizer = torch.optim.SGD(net.parameters(), 1e-9)
norms, losses = {}, {}
def train(step):
    loss = net(torch.randn(4, 300)).square().mean()
    many = torch.ones(2)
    scale = torch.ones(1, device="meta")
    optimizer.zero_grad(); loss.backward()
    norms[repr(loss.item())] = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()])).item()
    optimizer.step()
    time.sleep(0.01)
print("ready", flush=True)
def main():
    step = 0
    while True:
        step += 1
        train(step)
main()
"""


def test_tracked_numbers_are_those_of_the_job():
    with jobs.python(TRAINING, interpreter=sys.executable, ready_seconds=120) as job:
        assert probe(job.pid, "track", "loss@train", "many@train", "scale@train", "grad_norm").returncode == 0
        logged = lambda: rows(job, "SELECT loss, grad_norm FROM training_logs WHERE loss IS NOT NULL AND "
                                   "grad_norm IS NOT NULL")
        jobs.wait_until(lambda: "training_logs" in probe(job.pid, "tables").stdout and len(logged()) > 5, 30, "steps")
        norms = json.loads(probe(job.pid, "eval", "import json; print(json.dumps(norms))").stdout)
        found = logged()[:6]
        assert all(norms[repr(row["loss"])] == pytest.approx(row["grad_norm"], rel=1e-5)
                   for row in found), (found, norms)
        why = rows(job, "SELECT name, new_number, note FROM python.variables WHERE note IS NOT NULL ORDER BY name")
        assert [(row["name"], row["new_number"]) for row in why] == [("many", None), ("scale", None)], why
        assert "several elements" in why[0]["note"] and "meta" in why[1]["note"]


SHARDED = """
import json, os, subprocess, sys, time, torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
store, rank = sys.argv[1] if len(sys.argv) > 1 else __file__ + ".store", int(sys.argv[2]) if len(sys.argv) > 2 else 0
other = subprocess.Popen([sys.executable, __file__, store, "1"]) if rank == 0 else None
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
optimizer, norms = torch.optim.SGD(net.parameters(), 1e-9), []
def train(step):
    loss = net(torch.ones(4, 8) * (rank + 1)).square().mean()
    loss.backward()
    norms.append(nn.utils.get_total_norm([p.grad for p in net.parameters()]).full_tensor().item())
    optimizer.step(); optimizer.zero_grad()
    ends = torch.tensor([float(os.path.exists(store + ".end"))]); dist.all_reduce(ends)
    return ends.item() > 0
step = 0
train(step)
if rank == 0: print("ready", other.pid, flush=True)
while not train(step):
    step += 1
    time.sleep(0.02)
dist.destroy_process_group()
if rank == 0: sys.exit(other.wait())
"""


def test_norms_of_sharded_gradients_start_no_collective():
    """A collective of ours in one rank would wait for ever for the other, or take the place of one of the program's."""
    with jobs.python(SHARDED, interpreter=sys.executable, ready_seconds=120) as job:
        other = int(job.output.split("ready ")[1].split()[0])
        for pid in (job.pid, other):
            assert probe(pid, "track", "grad_norm").returncode == 0
        local = lambda pid: rows(pid, "SELECT new_number FROM python.variables WHERE name = 'grad_norm_local' ORDER "
                                      "BY timestamp")
        for pid in (job.pid, other):
            jobs.wait_until(lambda: "python.variables" in probe(pid, "tables").stdout and len(local(pid)) > 3, 30,
                            "steps")
        note = rows(job.pid, "SELECT new_number, note FROM python.variables WHERE name = 'grad_norm'")
        assert [row["new_number"] for row in note] == [None] and "collective" in note[0]["note"]
        # the same in all steps: nearly nothing is learned
        whole = json.loads(probe(job.pid, "eval", "norms[0]").stdout)
        parts = [local(pid)[-1]["new_number"] for pid in (job.pid, other)]
        assert math.sqrt(sum(part * part for part in parts)) == pytest.approx(whole, rel=1e-3), (parts, whole)
        assert rows(job.pid, "SELECT count(*) AS n FROM python.modules WHERE grad_norm IS NOT NULL") == [{"n": 0}]
        open(job.script + ".store.end", "w").close()
        jobs.wait_until(lambda: not job.alive(), 30, "the end of both ranks")
        assert job.process.returncode == 0, job.output
