"""Expressions that are evaluated when a step of a training ends: `loss@train` is the variable `loss` of the function `train`.

Called by the torch probe (src/agent/probes/torch/torch_track.c) in the thread that runs the steps, right after the optimizer's step, so a loss is that
of this step. A name is read from the frame without side effects; an expression (self.scale, meter["loss"].avg) has its own. Each value is a row
of python.variables, and all of a step are a row of training_logs, with the columns `loss` and `loss@train`. Tensors are read by layout, so what is
sharded over ranks is NULL, once with the reason. A number on a GPU is copied without waiting for the GPU, unseen by the program's modes, and read at
a later step. Nothing here raises into the program but what its own signal handlers raise meanwhile, which the agent raises there once our code has
ended. lr, grad_norm and throughput are known without a function, and loss, epoch and step where the program or its framework has them (_known.py).
"""
import sys

import _probing
from . import _known as _frameworks
from . import _values
from ._helpers import frame_locals
from ._own import make_table
from ._program import is_of_program
from ._signals import Guard

LOCAL = "grad_norm_local"  # of the shards that this rank has
USED = "grad_norm_used"  # of the gradients that the optimizer took, after the program has clipped them
KNOWN = ("lr", "grad_norm", LOCAL, USED, "throughput", "loss", "epoch", "step")
PENDING_MAX, FRAMES_MAX = 64, 100


class Absent(Exception):
    """The function of an expression is not among those that run."""


class Failed(Exception):
    """The text of what an expression of a person raised. That may come from code of the program, so it is kept apart from what signal handlers raise."""


class Expression:
    def __init__(self, text):
        self.text, _, self.function = text.partition("@")
        if not self.function and self.text not in KNOWN:
            raise ValueError("'%s' names no function: write it as %s@FUNCTION; without one there are %s" % (text, text, ", ".join(KNOWN)))
        self.code = compile(self.text, "<track>", "eval", 0, True)
        self.column = "".join(c if c.isalnum() and c.isascii() else "_" for c in self.text) if hasattr(str, "isascii") else self.text
        self.whole = text if self.function else self.column
        self.last = self.last_text = self.local = self.why = None
        self.bad = self.missed = False


_expressions = []
_pending = []  # numbers being copied from a GPU
_kept = []  # of a step that a gradient scaler may skip: its number, its epoch, and for each expression its value and place
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
    del _pending[:], _kept[:]
    for each in wrong:
        _probing.note("track", each)
    return len(made)


def step(number, optimizer, samples, seconds):
    """Evaluates all of them. number: of the step."""
    _collect()
    del _kept[:]
    number, epoch, found, missing = _gather(sys._getframe(1), number, optimizer, samples, seconds)
    _log_all(number, epoch, found)
    for each, why in missing:
        _miss(number, each, why)


def keep(number):
    """After the backward that may be the last of a step which a gradient scaler skips: at the next forward pass, where that is known, the program's
    variables are those of the next step. What belongs to the optimizer is left out, since it does not step, and gradients are still scaled."""
    number, epoch, found, _ = _gather(sys._getframe(1), number, None, 0, 0)
    plain = []
    for each, value, place in found:
        copied = _copy(value)
        plain.append((each, copied or _values.number_of(value, type(value))[0] if type(value) not in (int, str) else value, place))
    _kept[:] = [(number, epoch, plain)]


def skipped():
    """The step of the last keep() was skipped."""
    _collect()
    while _kept:
        _log_all(*_kept.pop())


def _gather(top, number, optimizer, samples, seconds):
    """optimizer: None: it has not stepped."""
    frames, found, missing = {}, [], []
    facts = _frameworks.look(top, optimizer is not None) if _expressions else {}
    for each in list(_expressions):
        if optimizer is None and not each.function and each.text not in _frameworks.NAMES_BEFORE:
            continue
        try:
            found.append((each,) + _evaluate(each, top, frames, optimizer, samples, seconds, facts))
        except Exception as error:
            if is_of_program(error):
                raise
            missing.append((each, _why(each, error)))
    number = _own("step", found, frames, _own("global_step", found, frames, facts.get("step", number)))
    return number, _own("epoch", found, frames, facts.get("epoch")), found, missing


def _log_all(number, epoch, found):
    values = {}
    for each, value, place in found:
        _take(number, each, value, place, values)
    if values:
        values.update({"step": number} if epoch is None else {"step": number, "epoch": epoch})
        _probing.log(**values)


def _why(each, error):
    """A text, since the error itself refers to the frames of the program."""
    if type(error) is Absent:
        return "no function %s runs" % each.function
    arguments, kind = BaseException.args.__get__(error), _values.own_name(type(error))
    text = arguments[0] if arguments and type(arguments[0]) is str else ""
    return text if type(error) is Failed else "%s: %s" % (kind, text) if text else kind


def _miss(number, each, why):
    """Says once why an expression has no value: it may be misspelt."""
    if each.missed:
        return
    each.missed = True
    _probing.note("track", "%s has no value: %s" % (each.whole, why))
    _write(number, each, None, None, (each.function, None, None), why)


def _own(name, found, frames, otherwise):
    """A number that the program counts itself: a tracked expression, else a variable of a function with tracked ones."""
    values = [value for each, value, _ in found if each.column == name] + [names.get(name) for _, names in frames.values() if names]
    return next((value for value in values if type(value) is int), otherwise)


def _evaluate(each, top, frames, optimizer, samples, seconds, facts):
    if not each.function:
        return _known(each.text, optimizer, samples, seconds, facts), (None, None, None)
    if each.function not in frames:
        frame = top
        for _ in range(FRAMES_MAX):
            if frame is None or frame.f_code.co_name == each.function:
                break
            frame = frame.f_back
        else:
            frame = None
        frames[each.function] = (frame, frame_locals(frame) if frame else None)
    frame, names = frames[each.function]
    if frame is None:
        raise Absent
    if each.text in names:
        value = names[each.text]
    else:
        value = _evaluate_code(each, frame, names)
    return value, (frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)


def _evaluate_code(each, frame, names):
    """An expression of a person, whose operations are not shown to the program's torch functions. Nothing of torch's state is changed that an
    interruption could leave behind: the guard is C code, which leaves with the block."""
    value = failed = None
    with Guard(runner=_evaluate_code) as guard:
        try:
            guard.typed = True
            with _values.known("torch._C", "DisableTorchFunction")():
                value = eval(each.code, frame.f_globals, names)
        except BaseException as error:
            guard.typed = False  # first: what follows runs code of ours, which no handler may interrupt
            failed = _why(each, error)
    if guard.error is not None:
        raise guard.error
    if failed is not None:
        raise Failed(failed)
    return value


def _known(name, optimizer, samples, seconds, facts):
    if name == "throughput":
        return samples / seconds if samples > 0 and seconds > 0 else None
    if facts.get(name) is not None:
        return facts[name]
    if name in _frameworks.NAMES and name != "grad_norm":
        raise Failed("no function that runs has a variable of that name, and no framework that is known tells it: name the function, as in %s@train" % name)
    groups = _values.own_field(optimizer, "param_groups")
    if groups is None:
        raise Failed("the optimizer is not torch's")
    if name == "lr":
        return groups[0]["lr"]
    return norm_of([parameter for group in groups for parameter in group["params"]])


class Norm:
    """Of gradients. local: of the shards that this rank has; whole is None where that is not all, with the reason."""

    def __init__(self, whole, local, why):
        self.whole, self.local, self.why = whole, local, why


def norm_of(parameters):
    """None: none of them has a gradient."""
    total, sharded, count = 0.0, False, 0
    for parameter in parameters:
        found = _values.squares_of_gradient(parameter)
        if found is None or found[0] is None:
            continue
        squares, is_shard = found
        if type(squares) is str:
            return Norm(None, None, "a gradient is not read: " + squares)
        count, total, sharded = count + 1, total + squares, sharded or is_shard
    if not count:
        return None
    return Norm(None if sharded else total ** 0.5, total ** 0.5, _values.SHARDED if sharded else None)


def _take(number, each, value, place, values):
    kind = type(value)
    if kind is Norm:
        if value.whole is None and value.local is not None and each.text != LOCAL and not any(other.text == LOCAL for other in _expressions):
            each.local = each.local or Expression(LOCAL)
            _put(number, each.local, value.local, repr(value.local), None, place, values)
        found = value.local if each.text == LOCAL else value.whole
        _put(number, each, found, repr(found), value.why, place, values)
    elif kind is str:
        _log(values, each, value[:200])
        _write(number, each, None, value[:200], place)
    elif not _copy_later(number, each, value, place):
        found, why = _values.number_of(value, kind)
        if found is not None or why is not None:
            _put(number, each, found, repr(value if kind is int else found), why, place, values)


def _put(number, each, value, text, why, place, values):
    """The number, or once the reason why there is none."""
    if value is not None:
        _log(values, each, value)
        each.why = None
        _write(number, each, value, text, place)
    elif why != each.why:
        each.why = why
        _probing.note("track", "%s is NULL: %s" % (each.text, why))
        _write(number, each, None, None, place, why)


def _log(values, each, value):
    """Under both names; of several functions' variables of one name, the first has the short one. Columns that count (epoch) take no float."""
    if type(value) is float and value.is_integer():
        value = int(value)
    values.setdefault(each.column, value)
    values.setdefault(each.whole, value)


# --- numbers on a GPU

def _unseen():
    """What keeps our operations from the program's modes, C code that leaves with the block: (torch, torch.cuda, guards); None: this torch has none."""
    torch, c = sys.modules.get("torch"), "torch._C"
    guards = _values.known(c, "DisableTorchFunction"), _values.known(c, "_DisableTorchDispatch")
    cuda = sys.modules.get("torch.cuda")
    return (torch, cuda, guards) if torch and cuda and None not in guards else None


class Copy:
    """A number on its way from a GPU."""

    def __init__(self, host, event):
        self.host, self.event = host, event


def _copy_later(number, each, value, place):
    copied = value if type(value) is Copy else _copy(value)
    if copied is not None:
        _pending.append((number, each, copied.host, copied.event, place))
    return copied is not None


def _copy(value):
    """Begins to copy a single number of a plain tensor on a GPU. None: it is none, or no copy may be made now."""
    kind = type(value)
    if kind is not _values.known("torch", "Tensor") and kind is not _values.known("torch.nn.parameter", "Parameter"):
        return None
    read, known = _values.tensor(value), _unseen()
    if read is None or read.shape is None or not read.device.startswith("cuda") or known is None or len(_pending) >= PENDING_MAX:
        return None
    torch, cuda, guards = known
    if [size for size in read.shape if size != 1]:
        return None
    with guards[0](), guards[1]():
        if cuda.is_current_stream_capturing():
            return None
        host = torch.empty(tuple(read.shape), dtype=value.dtype, pin_memory=True)
        host.copy_(value.detach(), non_blocking=True)
        event = cuda.Event()
        event.record()
    return Copy(host, event)


def _collect():
    """Writes rows for numbers that have arrived from GPUs since, each with the number of its own step."""
    while _pending and _pending[0][3].query():
        number, each, host, _, place = _pending.pop(0)
        values = {}
        found = _values.number_of(host, type(host))[0]
        if found is not None:
            _put(number, each, found, repr(found), None, place, values)
            _probing.log(**dict(values, step=number))


def _write(number, each, value, text, place, note=None):
    if _state["table"] is None:
        _state["table"] = make_table("python.variables")
    function, file, line = place
    _state["table"].append(each.text, function, file, line, each.last_text, text, each.last, value, "tracked", None, note, None)
    each.last, each.last_text = value, text
    bad = value is not None and (value != value or value in (float("inf"), float("-inf")))
    if bad and not each.bad:
        _probing.alert("nan" if value != value else "infinity", each.text, "%s is %s at step %d" % (each.text, text, number), number, value)
    each.bad = bad
