"""Expressions that are evaluated when a step of a training ends: `loss@train` is the variable `loss` of the function `train`.

Called by the torch probe (src/agent/probes/torch_track.c) in the thread that runs the steps, right after the optimizer's step, so a loss is that
of this step. A name is read from the frame without side effects; an expression (self.scale, meter["loss"].avg) has its own. Each value is a row
of python.variables, and all of a step are a row of training_logs, with the columns `loss` and `loss@train`. A number on a GPU is copied without waiting for the GPU and read at a later
step. Nothing here raises into the program. lr, grad_norm and throughput are known without a function.
"""
import sys

import _probing
from ._helpers import frame_locals
from ._watch import VARIABLES

KNOWN = ("lr", "grad_norm", "throughput")
PENDING_MAX, FRAMES_MAX = 64, 100


class Expression:
    def __init__(self, text):
        self.text, _, self.function = text.partition("@")
        if not self.function and self.text not in KNOWN:
            raise ValueError("'%s' names no function: write it as %s@FUNCTION; without one there are %s" % (text, text, ", ".join(KNOWN)))
        self.code = compile(self.text, "<track>", "eval", 0, True)
        self.column = "".join(c if c.isalnum() and c.isascii() else "_" for c in self.text) if hasattr(str, "isascii") else self.text
        self.whole = text if self.function else self.column
        self.last = self.last_text = None
        self.bad = False


_expressions = []
_pending = []  # numbers being copied from a GPU
_state = {"table": None}


def configure(text):
    """Sets the expressions from a list with commas. Returns how many there are; invalid ones are reported in probing.log."""
    made, wrong = [], []
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            made.append(Expression(each))
        except (ValueError, SyntaxError) as error:
            wrong.append("'%s' is not tracked: %s" % (each, error))
    _expressions[:] = made
    del _pending[:]
    for each in wrong:
        _probing.note("track", each)
    return len(made)


def step(number, optimizer, samples, seconds):
    """Evaluates all of them. number: of the step."""
    torch = sys.modules.get("torch")
    guard = getattr(torch._C, "DisableTorchFunction", None) if torch else None
    if guard is None:
        return
    with guard(), torch.no_grad():
        _collect(torch)
        values, frames, found = {}, {}, []
        for each in list(_expressions):
            try:
                found.append((each,) + _evaluate(torch, each, frames, optimizer, samples, seconds))
            except Exception:
                continue
        number = _own("step", found, frames, _own("global_step", found, frames, number))
        epoch = _own("epoch", found, frames, None)
        for each, value, place in found:
            _take(torch, number, each, value, place, values)
        if values:
            values.update({"step": number} if epoch is None else {"step": number, "epoch": epoch})
            _probing.log(**values)


def _own(name, found, frames, otherwise):
    """A number that the program counts itself: a tracked expression, else a variable of a function with tracked ones."""
    values = [value for each, value, _ in found if each.column == name] + [names.get(name) for _, names in frames.values() if names]
    return next((value for value in values if type(value) is int), otherwise)


def _evaluate(torch, each, frames, optimizer, samples, seconds):
    if not each.function:
        return _known(torch, each.text, optimizer, samples, seconds), (None, None, None)
    if each.function not in frames:
        frame = sys._getframe(2)
        for _ in range(FRAMES_MAX):
            if frame is None or frame.f_code.co_name == each.function:
                break
            frame = frame.f_back
        else:
            frame = None
        frames[each.function] = (frame, frame_locals(frame) if frame else None)
    frame, names = frames[each.function]
    if frame is None:
        raise LookupError(each.function)
    if each.text in names:
        value = names[each.text]
    else:
        value = eval(each.code, frame.f_globals, names)
    return value, (frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)


def _known(torch, name, optimizer, samples, seconds):
    if name == "lr":
        return optimizer.param_groups[0]["lr"]
    if name == "throughput":
        return samples / seconds if samples > 0 and seconds > 0 else None
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None and not p.grad.is_sparse]
    norms = torch._foreach_norm(grads)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]))


def _take(torch, number, each, value, place, values):
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.layout != torch.strided or value.is_meta:
            return
        value = value.detach()
        if value.device.type != "cpu":
            _copy_later(torch, number, each, value, place)
            return
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, (int, float)):
        _put(values, each, value)
        _write(number, each, float(value), repr(value), place)
    elif type(value) is str:
        _put(values, each, value[:200])
        _write(number, each, None, value[:200], place)


def _put(values, each, value):
    """Under both names; of several functions' variables of one name, the first has the short one."""
    values.setdefault(each.column, value)
    values.setdefault(each.whole, value)


def _copy_later(torch, number, each, value, place):
    if value.device.type != "cuda" or len(_pending) >= PENDING_MAX or torch.cuda.is_current_stream_capturing():
        return
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    host.copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    _pending.append((number, each, host, event, place))


def _collect(torch):
    """Writes rows for numbers that have arrived from GPUs since, each with the number of its own step."""
    while _pending and _pending[0][3].query():
        number, each, host, _, place = _pending.pop(0)
        value = float(host.item())
        _write(number, each, value, repr(value), place)
        values = {"step": number}
        _put(values, each, value)
        _probing.log(**values)


def _write(number, each, value, text, place):
    if _state["table"] is None:
        _state["table"] = _probing.table("python.variables", VARIABLES, "changes of variables that are watched, and values that are tracked")
    function, file, line = place
    _state["table"].append(each.text, function, file, line, each.last_text, text, each.last, value, "tracked", None, None, None)
    each.last, each.last_text = value, text
    bad = value is not None and (value != value or value in (float("inf"), float("-inf")))
    if bad and not each.bad:
        _probing.alert("nan" if value != value else "infinity", each.text, "%s is %s at step %d" % (each.text, text, number), number, value)
    each.bad = bad
