"""What the framework around a training knows itself: its own number of the step, the epoch, the loss, the norm of gradients before they are clipped.

Looked for in the functions that run when an optimizer has stepped, innermost first. Fields are read from dicts and __slots__: properties of the
framework, which are its code, do not run. For _track.py.
"""
import sys

from . import _values
from ._helpers import frame_locals

FRAMES_MAX = 100
NAMES = ("loss", "epoch", "step", "grad_norm")
NAMES_BEFORE = ("loss", "epoch", "step")  # those that are known before the optimizer has stepped
# Of Lightning's trainer: what it has stepped by itself and what the program has (manual optimization).
LIGHTNING = ("fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
             "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed")
LIGHTNING_EPOCH = "fit_loop.epoch_progress.current.completed"

_losses = {"step": None, "sum": 0.0}  # of transformers, which adds them up


def field_of(value, path):
    for name in path.split("."):
        value = _values.own_field(value, name)
    return value


def paths_of_lightning(trainer):
    return [path for path in LIGHTNING if type(field_of(trainer, path)) is int]


def look(frame, stepped=True):
    """{name: value} of NAMES, as far as known. stepped: the optimizer has."""
    found = {}
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        code = frame.f_code
        for name, value in read(frame, code, code.co_filename.replace("\\", "/"), code.co_varnames + code.co_cellvars, stepped).items():
            if value is not None:
                found.setdefault(name, value)
        frame = frame.f_back
    times = found.pop("times", None)
    if type(times) is int and times > 1 and "loss" in found:  # Lightning divides what its closure returns
        loss = _values.number_of(found["loss"], type(found["loss"]))[0]
        found["loss"] = loss if loss is None else loss * times
    return found


def read(frame, code, file, names, stepped):
    if file.endswith("/torch/optim/optimizer.py"):  # what a closure returned
        return {"loss": frame_locals(frame).get("out")} if code.co_name == "wrapper" and "out" in names else {}
    if "/torch/" in file and "/keras/" not in file:
        return {}
    if file.endswith("/transformers/trainer.py"):
        return of_transformers(frame, stepped) if "self" in names else {}
    if "/lightning/pytorch/loops/" in file or "/pytorch_lightning/loops/" in file:
        trainer = _values.own_field(frame_locals(frame).get("self"), "trainer") if "self" in names else None
        steps = [field_of(trainer, path) for path in paths_of_lightning(trainer)]
        return {"step": sum(steps) if steps else None, "epoch": field_of(trainer, LIGHTNING_EPOCH),
                "times": _values.own_field(trainer, "accumulate_grad_batches")}
    if file.endswith("/deepspeed/runtime/engine.py"):
        return {"step": _values.own_field(frame_locals(frame).get("self"), "global_steps")} if "self" in names else {}
    wanted = [name for name in ("loss", "epoch", "global_step", "step") if name in names]
    if not wanted and code.co_name != "<module>":
        return {}
    kept = frame_locals(frame)
    found = {name: kept.get(name) for name in ("loss", "epoch")}
    numbers = [kept.get(name) for name in ("global_step", "step")]
    found["step"] = next((number for number in numbers if type(number) is int), None)
    if type(found["epoch"]) is not int:
        found["epoch"] = None
    return found


def counter():
    """(the object that counts the steps of a training, the path from it to their number); None: nobody that is known does. For torch_number.c."""
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        file = frame.f_code.co_filename.replace("\\", "/")
        if "self" in frame.f_code.co_varnames:
            if file.endswith("/transformers/trainer.py"):
                trainer = frame_locals(frame).get("self")
                if type(field_of(trainer, "state.global_step")) is int:
                    return trainer, "state.global_step"
            elif "/lightning/pytorch/loops/" in file or "/pytorch_lightning/loops/" in file:
                trainer = _values.own_field(frame_locals(frame).get("self"), "trainer")
                paths = paths_of_lightning(trainer)
                if paths:
                    return trainer, "+".join(paths)
            elif file.endswith("/deepspeed/runtime/engine.py"):
                engine = frame_locals(frame).get("self")
                if type(_values.own_field(engine, "global_steps")) is int:
                    return engine, "global_steps"
        frame = frame.f_back
    return None


def of_transformers(frame, stepped):
    kept = frame_locals(frame)
    trainer = kept.get("self")
    state = _values.own_field(trainer, "state")
    step, epoch = _values.own_field(state, "global_step"), _values.own_field(state, "epoch")
    if type(step) is not int:
        return {}
    return {"step": step, "epoch": int(epoch) if type(epoch) is float or type(epoch) is int else None, "grad_norm": kept.get("grad_norm"),
            "loss": added(trainer, step) if stepped else None}


def added(trainer, step):
    """What this step added to the sum of losses, which begins anew when the framework logs it."""
    summed = _values.own_field(trainer, "_tr_loss")
    number = _values.number_of(summed, type(summed))[0]
    if number is None or _losses["step"] == step:
        return None
    logged = _values.own_field(trainer, "_globalstep_last_logged") == step
    known = logged or _losses["step"] == step - 1
    loss = number - (0.0 if logged else _losses["sum"]) if known else None
    _losses["step"], _losses["sum"] = step, number
    return loss


def now(levels=2):
    return look(sys._getframe(levels))
