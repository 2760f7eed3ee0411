"""Live objects of torch: the tables python.modules, python.tensors and python.optimizers (for _live.py), and tensors() and modules() of the
prompt.

C code finds and describes the objects (src/agent/module/objects.c) in slices of 2 ms, between which the program runs. It returns only text: nothing here
holds an object of the program, so none is destroyed in our thread. The text is kept as strings in a few dicts, which the garbage collector does
not count: a table of many rows starts no collection of the program's garbage in our thread.
"""
import sys

import _probing
from . import _values
from ._live import _escape
from ._own import columns_of
from ._program import gc_module

MOST_SECONDS, MOST_ROWS, MOST_DEEP = 8.0, 100000, 100
SLICE_US, LONGEST_US = 2000, 20000  # the GIL is held so long per slice, at first and at most
LONGER = 0.5  # seconds after which slices get twice as long
MOST_WALKS = 3  # if the program freezes or unfreezes its objects meanwhile
REST = 0.0005  # seconds between two slices, for threads that wait for the GIL
OVER = 4  # the stage after the last
PART = "\x1e"
GETTERS = ("shape", "dtype", "device", "requires_grad"), ("numel", "element_size", "_is_view")


# --- the walk

def walk(types, plain, getters, refs=None):
    """Texts of records, a slice each. types: of tensors, modules, optimizers, others; None: not wanted."""
    import time

    gc = gc_module()
    functions = gc.get_objects, gc.disable, gc.enable, gc.isenabled
    if any(type(each) is not type(len) for each in functions):  # code of the program would run in the middle of a slice
        raise LookupError("the program has replaced functions of the module gc")
    mark, slice_us = _probing.objects_mark(), SLICE_US
    start = time.monotonic()
    rings, longer = _probing.objects_rings(*gc.get_threshold()), start + LONGER
    try:
        for _ in range(MOST_WALKS):
            stage, frozen = -1, _probing.objects_frozen(rings)
            while stage != OVER:
                how = (mark, rings, slice_us, types + plain, getters, refs, object.__getattribute__, dict, list, functions)
                stage, text = _probing.objects_next(how, stage)
                yield text
                if stage == OVER:
                    break
                time.sleep(REST)
                now = time.monotonic()
                if now > longer:
                    slice_us, longer = min(2 * slice_us, LONGEST_US), now + LONGER
                if now - start > MOST_SECONDS:
                    _probing.note("objects", "not all objects were looked at within %d s" % MOST_SECONDS)
                    return
            if frozen == _probing.objects_frozen(rings):
                return
    finally:
        _probing.objects_unmark(mark)


def references(kind, getter=None):
    """Weak references to the objects of a type and its subclasses; with a getter, a C function, its result for each."""
    found = []
    for _ in walk((None, None, None, kind), (None, None, None), getter, found):
        pass
    return list({id(each): each for each in found if each is not None}.values())  # some objects are met twice


def torch_here():
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "nn") and hasattr(torch, "Tensor") else None


class Found:
    """The records by address, without their first two fields; with `refs`, weak references by address too."""

    def __init__(self, torch, with_refs=False):
        if "free-threading" in sys.version:
            raise LookupError("a free-threaded Python has no moment at which objects could be looked into")
        self.tensors, self.modules, self.optimizers, self.refs = {}, {}, {}, {}
        base, optimizer = torch._C.TensorBase.__dict__, getattr(sys.modules.get("torch.optim.optimizer"), "Optimizer", None)
        getters = tuple(getattr(base.get(name), "__get__", None) for name in GETTERS[0]) + tuple(base.get(name) for name in GETTERS[1])
        places, refs = {"T": self.tensors, "M": self.modules, "O": self.optimizers}, [] if with_refs else None
        sharded = _values.known("torch.distributed.tensor", "DTensor") or _values.known("torch.distributed._tensor", "DTensor")
        for text in walk((torch.Tensor, torch.nn.Module, optimizer, None), (torch.Tensor, torch.nn.Parameter, sharded), getters, refs):
            addresses = []
            for line in text.split("\n"):
                if line:
                    letter, address, rest = line.split("\t", 2)
                    places[letter][int(address)] = rest
                    addresses.append(int(address))
            if with_refs:
                self.refs.update(zip(addresses, refs))
                del refs[:]

    def tensor(self, address):
        """[class, shape, dtype, device, bytes, requires_grad, is_view, numbers on this rank], as far as known."""
        return self.tensors.get(address, "").split("\t")

    def parts(self, record, letter):
        """(address, name) of the parts of a record."""
        for part in record.split(PART)[1:]:
            if part.startswith(letter):
                address, _, name = part[2:].partition("\t")
                yield int(address), name

    def roots(self):
        inside = {child for record in self.modules.values() for child, _ in self.parts(record, "C")}
        return [address for address in self.modules if address not in inside]

    def visit(self, root):
        """(address, path, record, children) of a module and all below it, each once, parents first."""
        waiting, seen = [(root, "", 0)], set()
        while waiting:
            address, path, deep = waiting.pop()
            record = self.modules.get(address)
            if record is None or address in seen or deep > MOST_DEEP:
                continue
            seen.add(address)
            yield address, path, record
            waiting += [(child, path + "." + name if path else name, deep + 1) for child, name in reversed(list(self.parts(record, "C")))]


def sizes_of(shape):
    return tuple(map(int, shape.split("x"))) if shape and shape != "scalar" else ()


def count_of(tensor):
    """Its number of elements."""
    count = 1
    for size in sizes_of(tensor[1]) if len(tensor) > 1 else ():
        count *= size
    return count if len(tensor) > 1 else 0


def bytes_of(tensor):
    return int(tensor[4]) if len(tensor) > 4 else 0


def common(tensors, field):
    """The common value, or how many different ones."""
    kinds = {tensor[field] for tensor in tensors if len(tensor) > field}
    return None if not kinds else kinds.pop() if len(kinds) == 1 else "%d kinds" % len(kinds)


def class_of(record):
    return record.partition(PART)[0].split("\t")[0]


# --- tables: functions that give lists of cells

def modules(found, roots_alone=False, norms={}):
    for root in found.roots():
        seen = set()
        model, totals, order = class_of(found.modules[root]), {}, list(found.visit(root))
        for address, path, record in reversed(order):  # children before their parents
            own = [part for part, _ in found.parts(record, "P") if part not in seen]
            seen.update(own)
            totals[address] = sum(count_of(found.tensor(part)) for part in own) + sum(totals.get(child, 0) for child, _ in found.parts(record, "C"))
        for address, path, record in order[:1] if roots_alone else order:
            head = record.partition(PART)[0].split("\t")
            parameters = [found.tensor(part) for part, _ in found.parts(record, "P")]
            tensors = parameters + [found.tensor(part) for part, _ in found.parts(record, "B")]
            yield (path or model, head[0], model, sum(map(count_of, parameters)), sum(map(bytes_of, tensors)), totals[address],
                   sum(count_of(tensor) for tensor in parameters if len(tensor) > 5 and tensor[5] == "1"), common(tensors, 3), common(tensors, 2),
                   head[1], head[2], address, sum(int(tensor[7]) for tensor in parameters if len(tensor) > 7), together([norms[part] for part, _ in found.parts(record, "P") if part in norms]))


def together(norms):
    return sum(norm * norm for norm in norms) ** 0.5 if norms and None not in norms else None


def tensors(found, norms={}):
    names = {}
    for root in found.roots():
        model = class_of(found.modules[root])
        for _, path, record in found.visit(root):
            for letter in "PB":
                for part, name in found.parts(record, letter):
                    names.setdefault(part, (path + "." + name if path else name) + "\t" + model)
    for address, record in found.tensors.items():
        name, _, model = names.get(address, "").partition("\t")
        fields = record.split("\t")
        yield (name or None, model or None, *fields[:7], *[None] * (7 - len(fields)), address, norms.get(address))


def optimizers(found, norms={}):
    for address, record in found.optimizers.items():
        kind, groups, lr, decay, momentum = record.partition(PART)[0].split("\t")
        changed = [found.tensor(part) for part, _ in found.parts(record, "G")]
        state = [found.tensor(part) for part, _ in found.parts(record, "S")]
        yield (kind, kind, groups, sum(map(count_of, changed)), sum(map(bytes_of, changed)), sum(map(bytes_of, state)), lr or None, decay or None,
               momentum or None, common(changed, 3), common(changed, 2), address)


TABLES = {"python.modules": modules, "python.tensors": tensors, "python.optimizers": optimizers}


def send(request, names):
    """Sends the tables of these names (_live.py has the format)."""
    torch = torch_here()
    norms = {}
    if torch is not None and names[-1] == "grad_norm":
        from . import _gradients

        norms = _gradients.ask()
    found = Found(torch) if torch is not None else None
    for full in [name for name in names if name in TABLES]:
        lines = ["T\t%s\n" % full] + ["C\t%s\t%d\n" % column[:2] for column in columns_of(full)]
        for number, row in enumerate(TABLES[full](found, norms=norms) if found is not None else ()):
            if number == MOST_ROWS:
                _probing.note("objects", "%s has the first %d rows" % (full, MOST_ROWS))
                break
            lines.append("R\t%s\n" % "\t".join("\\N" if cell is None or cell == "" else _escape(str(cell)) for cell in row))
            if len(lines) == 1000:
                request.send(1, "".join(lines))
                lines = []
        request.send(1, "".join(lines))
