"""Norms of gradients, for the column grad_norm of python.modules and python.tensors, where a query names it.

Reading a gradient from another thread races with a backward. So the thread that steps takes the norms, once, when an optimizer has stepped (src/agent/probes/torch/torch_step.c
calls `at_step` there), and the query waits for that. Norms on a GPU are copied without waiting for it and read when a later step ends.
"""
import time

import _probing
from . import _values
from ._program import is_of_program

MOST_SECONDS = 3.0


class Norms:
    def __init__(self):
        self.by_address, self.left_out, self.taken, self.over = {}, {}, set(), False

    def at_step(self, optimizer, counted):
        """counted: whether a step of the training has ended with it; other optimizers come before that one."""
        if self.over:
            return
        try:
            if id(optimizer) not in self.taken:
                self.taken.add(id(optimizer))
                self.take(optimizer)
            self.over = bool(counted) and bool(self.by_address)
        except BaseException as error:
            self.over = True
            if is_of_program(error):  # the agent raises it in the program
                raise

    def take(self, optimizer):
        for group in _values.own_field(optimizer, "param_groups"):
            for parameter in group["params"]:
                found = _values.squares_of_gradient(parameter)
                if found is None or found[0] is None:
                    continue
                squares, is_shard = found
                if is_shard or type(squares) is str:
                    why = _values.SHARDED if is_shard else squares
                    self.left_out[why] = self.left_out.get(why, 0) + 1
                    self.by_address[id(parameter)] = None  # a module with it has no norm either
                else:
                    self.by_address[id(parameter)] = squares ** 0.5


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
    for why, count in norms.left_out.items():
        _probing.note("objects", "grad_norm is NULL for %d parameter%s: %s" % (count, "" if count == 1 else "s", why))
    if not norms.by_address:
        _probing.note("objects", "grad_norm: no optimizer with gradients has stepped within %d s" % MOST_SECONDS)
    return norms.by_address
