"""Trainings of the harm suite: training.py loader|modes|ways|profiled|ddp|ddp_static|fsdp. The losses of each epoch are
those of the first one, bit by bit.

The first epochs run before the program is probed (kit.py), so the program is its own control.
"""
import os
import subprocess
import sys
import threading

import kit
import torch
from torch import nn

torch.set_num_threads(1)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(16, generator=generator), torch.randn(1, generator=generator)


def epoch(batches, wrap=lambda model: model):
    """Losses of a small model from the same start, as bits."""
    torch.manual_seed(7)
    model = wrap(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def loader():
    """A data loader with two workers, which come and go with each epoch."""
    first = None
    while kit.going():
        losses = epoch(torch.utils.data.DataLoader(Noise(), batch_size=8, num_workers=2))
        first = first or losses
        if losses != first:
            kit.complain("the losses are others")
        kit.last = None  # starting workers may take any time
        end_feeders()
        kit.say()


def modes():
    """A training under the program's own modes, which count what torch does: the same in every epoch."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    batches, first = [Noise()[i] for i in range(16)], None
    while kit.going():
        del seen[:]
        with Functions(), Operations():
            losses = epoch(batches)
        found = losses, len(seen)
        first = first or found
        if found != first:
            kit.complain("the losses are others, or its modes saw %d operations and not %d" % (len(seen), first[1]))
        kit.say()


def ways():
    """Ways in which modules are called and gradients come about, with the hooks of the program's own: DataParallel,
    checkpoints, a function with a backward of its own, gradients of each sample by vmap."""
    from torch.func import functional_call, grad, vmap
    from torch.utils.checkpoint import checkpoint
    seen, samples = [], [Noise()[i] for i in range(16)]
    batches = [samples[i:i + 2] for i in range(0, 16, 2)]
    batches = [(torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])) for batch in batches]

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            seen.append("backward")
            return 2 * ctx.saved_tensors[0] * gradient

    class Checkpointed(nn.Module):
        def __init__(self, inner, reentrant):
            super().__init__()
            self.inner, self.reentrant = inner, reentrant

        def forward(self, x):
            x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
            x.register_hook(lambda _: seen.append("tensor"))
            return Twice.apply(x)

    def wrap(model):
        model = nn.DataParallel(nn.Sequential(Checkpointed(model[0], False), Checkpointed(model[1], True), model[2]))
        for module in model.modules():
            module.register_forward_hook(lambda module, given, result: seen.append(type(module)))
            module.register_full_backward_hook(lambda module, inner, outer: seen.append(type(module)))
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
        return model

    def of_each_sample():
        model = nn.Linear(16, 1)
        values = {name: value.detach() * 0 + 0.5 for name, value in model.named_parameters()}
        loss = lambda values, x, y: nn.functional.mse_loss(functional_call(model, values, (x,)), y)  # noqa: E731
        found = vmap(grad(loss), in_dims=(None, 0, 0))(values, *batches[0])
        return [value.sum().item().hex() for value in found.values()]

    first = None
    while kit.going():
        del seen[:]
        found = epoch(batches, wrap), of_each_sample(), list(map(str, seen))
        first = first or found
        if found != first:
            kit.complain("the losses, the gradients of samples or the calls of its hooks are others")
        kit.say()


def profiled():
    """The same in a program that has used torch's profiler: its first use starts a thread of torch's for good."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        nn.Linear(2, 2)(torch.ones(1, 2))
    loader()


def end_feeders():
    """The threads that fill the queues of the workers: the loader tells them to end and does not wait for it."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)


def sharded(model):
    """Its parameters are DTensors: an operation of one rank alone on one of them would wait for the other rank for
    ever."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def fsdp(*words):
    ddp(*words, wrap=sharded)


def ddp_static(*words):
    ddp(*words, wrap=lambda model: nn.parallel.DistributedDataParallel(model, static_graph=True))


def ddp(rank="0", store=None, wrap=nn.parallel.DistributedDataParallel):
    """Two ranks with gloo. Rank 1 tells rank 0 what it noticed, by an all_reduce."""
    import torch.distributed as dist
    rank = int(rank)
    store = store or kit.REPORT + ".store"
    if rank == 0:
        other = subprocess.Popen([sys.executable, __file__, sys.argv[1], "1", store])
        with open(kit.REPORT + ".also", "w") as file:
            file.write(str(other.pid))
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    batches = [Noise()[i] for i in range(rank * 16, rank * 16 + 16)]
    first = None
    while True:
        flags = torch.zeros(2)
        if rank == 0:
            flags[0] = kit.going()
        else:
            flags[1] = first is not None and losses != first  # noqa: F821 (set by the round before)
        dist.all_reduce(flags)
        if flags[1]:
            kit.complain("the losses of rank 1 are others")
        if not flags[0]:
            break
        losses = epoch(batches, wrap)
        first = first or losses
        if rank == 0 and losses != first:
            kit.complain("the losses are others")
    # Without destroy_process_group, which aborts a rank now and then when the other one leaves, probed or not.
    status = other.wait() if rank == 0 else 0
    if status:
        sys.stderr.write("rank 1 ended with %d\n" % status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if status else 0)


if __name__ == "__main__":
    {"loader": loader, "modes": modes, "profiled": profiled, "ways": ways, "ddp": ddp,
     "ddp_static": ddp_static, "fsdp": fsdp}[sys.argv[1]](*sys.argv[2:])
