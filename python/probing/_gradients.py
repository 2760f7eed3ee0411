"""Norms of gradients, for the column grad_norm of python.modules and python.tensors, where a query names it.

Reading a gradient from another thread races with a backward. So the thread that steps takes the norms, once, when an optimizer has stepped (src/agent/probes/torch_step.c
calls `at_step` there), and the query waits for that. Norms on a GPU are copied without waiting for it and read when a later step ends.
"""
import sys
import time

import _probing

MOST_SECONDS = 3.0


class Norms:
    def __init__(self):
        self.by_address, self.copied, self.taken, self.over = {}, [], set(), False

    def at_step(self, optimizer, counted):
        """counted: whether a step of the training has ended with it; other optimizers come before that one."""
        if self.over:
            return
        try:
            torch = sys.modules["torch"]
            if id(optimizer) not in self.taken:
                self.taken.add(id(optimizer))
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    self.take(torch, optimizer)
            while self.copied and self.copied[0][2].query():
                addresses, host, _ = self.copied.pop(0)
                self.by_address.update(zip(addresses, host.tolist()))
            self.over = bool(counted) and not self.copied and bool(self.by_address)
        except Exception:
            self.over = True

    def take(self, torch, optimizer):
        by_device = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                if type(grad) is torch.Tensor and grad.layout == torch.strided and not grad.is_meta:
                    by_device.setdefault(grad.device, []).append((id(parameter), grad))
        for device, found in by_device.items():
            norms = torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm([grad for _, grad in found])])
            addresses = [address for address, _ in found]
            if device.type == "cpu":
                self.by_address.update(zip(addresses, norms.tolist()))
            elif device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
                host = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
                host.copy_(norms, non_blocking=True)
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(device))
                self.copied.append((addresses, host, event))


def ask():
    """Norms by the address of the parameter; empty where none can be had, with a line in probing.log."""
    norms = Norms()
    if not _probing.torch_each_optimizer(norms.at_step):
        _probing.note("objects", "grad_norm is taken when an optimizer steps: probing.torch.profiling must be on")
        return {}
    try:
        end = time.monotonic() + MOST_SECONDS
        while not norms.over and time.monotonic() < end:
            time.sleep(0.005)
    finally:
        _probing.torch_each_optimizer(None)
    if not norms.by_address:
        _probing.note("objects", "grad_norm: no optimizer with gradients has stepped within %d s" % MOST_SECONDS)
    return norms.by_address
