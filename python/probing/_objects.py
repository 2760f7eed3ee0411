"""Live objects of torch as tables: python.modules, python.tensors, python.optimizers. Made when a query names them (_live.py).

Objects are found from where the program can reach them: the locals of running functions and the globals of its modules, and on along the references
that Python's collector follows, which runs no code of the program. gc.get_objects() would hold the GIL for as long as a million objects take, and knows
nothing after gc.freeze(). Here the GIL is given up every other millisecond. A walk holds containers and modules alive for as long as it looks into them; of a tensor it keeps what the table says. What lies on a GPU is never read: that could spoil a capture of another thread's.
"""
import sys

import _probing
from ._helpers import frame_locals, frames_of, live_threads

INT64, FLOAT64, BOOL, STRING = 4, 10, 11, 13
MOST_SECONDS, MOST_ROWS, MOST_DEEP = 8.0, 20000, 200
SLICE, REST, LOOK_EVERY = 0.002, 0.0005, 64
# What leads to no object of torch's, or to everything.
LEAVES = frozenset([int, float, complex, bool, str, bytes, bytearray, type(None), type(Ellipsis), type(NotImplemented), range, slice, type, type(sys),
                    type(len), type(sys._getframe()), type((lambda: 0).__code__)])
# Libraries that keep no object of the program's in their globals, and have many of their own.
LIBRARIES = frozenset("torch numpy sympy mpmath networkx probing _probing functorch torchgen triton jinja2 pygments scipy pandas".split())

MODULES = {"name": STRING, "class": STRING, "model": STRING, "variable": STRING, "parameters": INT64, "bytes": INT64, "total_parameters": INT64,
           "trainable": INT64, "device": STRING, "dtype": STRING, "training": BOOL, "hooks": INT64, "grad_norm": FLOAT64, "address": INT64}
TENSORS = {"name": STRING, "class": STRING, "shape": STRING, "dtype": STRING, "device": STRING, "bytes": INT64, "requires_grad": BOOL, "is_leaf": BOOL,
           "has_grad": BOOL, "grad_norm": FLOAT64, "variable": STRING, "storage": INT64, "storage_bytes": INT64, "address": INT64}
OPTIMIZERS = {"name": STRING, "class": STRING, "groups": INT64, "parameters": INT64, "bytes": INT64, "state_bytes": INT64, "lr": FLOAT64,
              "weight_decay": FLOAT64, "momentum": FLOAT64, "device": STRING, "dtype": STRING, "grad_norm": FLOAT64, "address": INT64}


def _roots():
    """(label, namespace) of what runs and of what was imported, but for libraries."""
    for ident, frame in live_threads():
        if frame is None:
            continue
        frame = None
        for each in reversed(frames_of(ident)):  # from the outside in: the first name that leads to an object is the program's
            if each.f_code.co_name != "<module>":
                try:
                    yield each.f_code.co_name, frame_locals(each)
                except LookupError:
                    pass
    standard = getattr(sys, "stdlib_module_names", ())
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in LIBRARIES and (name == "__main__" or top not in standard) and type(module) is type(sys):
            yield "" if name == "__main__" else name, module.__dict__


class Walk:
    """One look at everything, in slices. found: (object, where it was found) for each object of the kinds that are looked for."""

    def __init__(self, torch, keep):
        import gc
        import time

        self.torch, self.keep, self.referents = torch, keep, gc.get_referents
        self.clock, self.sleep = time.perf_counter, time.sleep
        self.kinds, self.seen, self.looked = {}, set(), 0
        self.begun = self.slice = self.clock()
        self.cut = False

    def kind(self, type_of):
        """'tensor', 'module', 'optimizer', None, or 'leaf'. By its bases, without asking the object."""
        found = self.kinds.get(type_of)
        if found is None:
            optimizer = getattr(sys.modules.get("torch.optim.optimizer"), "Optimizer", None)
            mro = type.__dict__["__mro__"].__get__(type_of)
            found = ("tensor" if self.torch.Tensor in mro else "module" if self.torch.nn.Module in mro else
                     "optimizer" if optimizer in mro else "leaf" if type_of in LEAVES or type in mro else "container")
            self.kinds[type_of] = found
        return found

    def pause(self):
        """Lets the program have the GIL. False: the time is over."""
        self.looked += 1
        if self.looked % LOOK_EVERY == 0 and self.clock() - self.slice > SLICE:
            self.sleep(REST)
            self.slice = self.clock()
            self.cut = self.cut or self.slice - self.begun > MOST_SECONDS
        return not self.cut

    def run(self):
        for label, namespace in _roots():
            for name, value in list(namespace.items()):
                if type(name) is str and not name.startswith("__") and not self.follow(value, label + "." + name if label else name):
                    return

    def follow(self, value, label):
        """All that can be reached from the value and was not before. False: the time is over."""
        waiting, kinds, seen = [iter([value])], self.kinds, self.seen
        while waiting:
            for thing in waiting[-1]:
                kind = kinds.get(type(thing)) or self.kind(type(thing))
                if kind == "leaf":
                    continue
                if not self.pause():
                    return False
                if id(thing) in seen:
                    continue
                inside = [each for each in self.inside(thing) if kinds.get(type(each)) != "leaf"]
                if kind == "container" and not inside:
                    continue  # most are such: they are looked at again rather than remembered
                seen.add(id(thing))
                if kind != "container":
                    self.keep(kind, thing, label)
                if inside and len(waiting) < MOST_DEEP:
                    waiting.append(iter(inside))
                    break
            else:
                waiting.pop()
        return True

    def inside(self, thing):
        if type(thing) is type(self.inside):  # a bound method: of its object
            return [thing.__self__]
        if type(thing) is type(_roots):  # a function leads to all globals
            return [cell for cell in (thing.__closure__ or ())] + list(thing.__defaults__ or ())
        return self.referents(thing)


def _torch():
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "nn") and hasattr(torch, "Tensor") else None


def _size(tensor):
    try:
        return tensor.numel(), tensor.numel() * tensor.element_size()
    except Exception:  # without storage, of a symbolic size, or of somebody's class
        return 0, 0


def _norm(torch, tensors):
    """The norm of their gradients, of those in the CPU's memory; None: there are none."""
    grads = []
    for each in tensors:
        grad = each.grad if each.is_leaf else None
        if grad is not None and grad.device.type == "cpu" and grad.layout == torch.strided:
            grads.append(grad.detach())
    return float(sum(float(torch.linalg.vector_norm(grad.double())) ** 2 for grad in grads)) ** 0.5 if grads else None


def _one(values):
    """What all have in common, as a text; several are counted."""
    values = {str(each) for each in values}
    return None if not values else values.pop().replace("torch.", "") if len(values) == 1 else "%d kinds" % len(values)


def _guarded(torch):
    return torch._C.DisableTorchFunction()


def _walk(sql, wanted):
    """Calls wanted(kind, thing, label) for each object, under torch's own guard, so that no mode of the program's sees it."""
    torch = _torch()
    if torch is None:
        return None
    with _guarded(torch), torch.no_grad():
        walk = Walk(torch, wanted)
        walk.run()
    if walk.cut:
        walk.cut, walk.begun = False, walk.clock()
        _probing.note("objects", "python.%s: not all objects were looked at within %d s" % (sql, MOST_SECONDS))
    return walk


def _own_parts(module):
    """Parameters and buffers that are the module's own, without asking it."""
    fields = module.__dict__
    return ([each for each in list(fields.get("_parameters", {}).values()) if each is not None],
            [each for each in list(fields.get("_buffers", {}).values()) if each is not None])


def modules(sql):
    torch, found = _torch(), []
    walk = _walk("modules", lambda kind, thing, label: found.append((thing, label)) if kind == "module" else None)
    if walk is None:
        return []
    wants_norm, inside, rows, done = "grad_norm" in sql, set(), [], set()
    for module, _ in found:
        inside.update(id(child) for child in list(module.__dict__.get("_modules", {}).values()))

    def visit(module, path, model, label):
        """Own and total number of parameters."""
        if id(module) in done or len(rows) >= MOST_ROWS or not walk.pause():
            return 0
        done.add(id(module))
        row, at = {}, len(rows)
        rows.append(row)
        parameters, buffers = _own_parts(module)
        own = sum(_size(each)[0] for each in parameters)
        total = own
        for name, child in list(module.__dict__.get("_modules", {}).items()):
            if child is not None and len(path) < 1000:
                total += visit(child, path + "." + str(name) if path else str(name), model, label)
        fields = module.__dict__
        rows[at] = {"name": path or type(module).__name__, "class": type(module).__name__, "model": model, "variable": label, "parameters": own,
                    "bytes": sum(_size(each)[1] for each in parameters + buffers), "total_parameters": total,
                    "trainable": sum(_size(each)[0] for each in parameters if each.requires_grad), "device": _one(each.device for each in parameters + buffers),
                    "dtype": _one(each.dtype for each in parameters + buffers), "training": bool(fields.get("training")),
                    "hooks": sum(len(value) for name, value in list(fields.items()) if name.endswith("_hooks") and isinstance(value, dict)),
                    "grad_norm": _norm(torch, parameters) if wants_norm else None, "address": id(module)}
        return total

    with _guarded(torch), torch.no_grad():
        for module, label in found:
            if id(module) not in inside and "_parameters" in module.__dict__:
                visit(module, "", type(module).__name__, label)
    return [row for row in rows if row]


def tensors(sql):
    torch, rows, names, wants_norm = _torch(), [], {}, "grad_norm" in sql

    def keep(kind, thing, label):
        if kind == "module":
            for each in ("_parameters", "_buffers"):
                for name, value in list(thing.__dict__.get(each, {}).items()):
                    names.setdefault(id(value), "%s.%s" % (type(thing).__name__, name))
        if kind != "tensor" or len(rows) >= MOST_ROWS:
            return
        try:
            leaf = thing.is_leaf
            storage = address = None
            try:
                storage = thing.untyped_storage()
                storage, address = storage.nbytes(), storage.data_ptr()
            except Exception:  # sparse, quantized, fake, or before torch 2
                pass
            rows.append({"class": type(thing).__name__, "shape": "x".join(map(str, thing.shape)), "dtype": str(thing.dtype).replace("torch.", ""),
                         "device": str(thing.device), "bytes": _size(thing)[1], "requires_grad": thing.requires_grad, "is_leaf": leaf,
                         "has_grad": leaf and thing.grad is not None, "grad_norm": _norm(torch, [thing]) if wants_norm and leaf else None,
                         "variable": label, "storage": address, "storage_bytes": storage, "address": id(thing)})
        except Exception:
            pass

    if _walk("tensors", keep) is None:
        return []
    for row in rows:
        row["name"] = names.get(row["address"])
    return rows


def optimizers(sql):
    torch, found = _torch(), []
    walk = _walk("optimizers", lambda kind, thing, label: found.append((thing, label)) if kind == "optimizer" else None)
    rows = []
    if walk is None:
        return rows
    with _guarded(torch), torch.no_grad():
        for optimizer, label in found:
            fields = optimizer.__dict__
            groups = list(fields.get("param_groups") or ())
            parameters = [each for group in groups for each in group.get("params", ())]
            state = [value for part in list((fields.get("state") or {}).values()) if isinstance(part, dict) for value in list(part.values())
                     if walk.kind(type(value)) == "tensor"]
            first = groups[0] if groups else {}
            numbers = {name: float(first[name]) if type(first.get(name)) in (int, float) else None for name in ("lr", "weight_decay", "momentum")}
            rows.append({"name": label, "class": type(optimizer).__name__, "groups": len(groups), "parameters": sum(_size(each)[0] for each in parameters),
                         "bytes": sum(_size(each)[1] for each in parameters), "state_bytes": sum(_size(each)[1] for each in state),
                         "device": _one(each.device for each in parameters), "dtype": _one(each.dtype for each in parameters),
                         "grad_norm": _norm(torch, parameters) if "grad_norm" in sql else None, "address": id(optimizer), **numbers})
    return rows


TABLES = {"python.modules": (modules, MODULES), "python.tensors": (tensors, TENSORS), "python.optimizers": (optimizers, OPTIMIZERS)}
