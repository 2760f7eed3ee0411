"""Reports collectives and transfers of torch.distributed to the agent when they are issued (src/agent/probes/torch/torch_comm.c).

DDP's reducer issues its own from C++, so patches in Python would miss them. Every operation passes torch's dispatcher: a kernel of ours at the
key BackendSelect, where these operations have none, reports it and passes it on. Autograd's keys are left out by DTensor,
FSDP's hooks and torch.inference_mode; this one is not. The dispatcher is used below torch.library, whose registry would keep
the program from registering kernels of its own. Runs in threads that hold the GIL; nothing here
raises into the program but what its signal handlers raise meanwhile.
"""
import sys
import weakref

import _probing
from . import _values
from ._program import is_library, is_of_program

OPERATIONS = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "allgather_coalesced_",
              "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_",
              "scatter_", "alltoall_", "alltoall_base_", "barrier", "send", "recv_", "recv_any_source_")
INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
# Direction of the rank that an operation names: (argument, whether that rank sends).
DIRECTIONS = {"send": ("dst", False), "recv_": ("src", True), "broadcast_": ("root_rank", True), "scatter_": ("root_rank", True),
              "reduce_": ("root_rank", False), "gather_": ("root_rank", False)}
KEY = "BackendSelect"
FRAMES_MAX = 100

_registered = []  # the dispatcher's handles: kernels are removed with them
_libraries = {}  # file -> whether it is a library's
_groups = {}  # name of a group -> _Group
_timed = set()  # names of groups whose operations on the GPU are timed since we asked for it


def _flat(value):
    return [each for part in value for each in _flat(part)] if issubclass(type(value), (list, tuple)) else [value]


def _caller(torch):
    """file:line of the innermost frame of the program's own code; where there is none, of the innermost that is neither torch's nor ours; "" if C++
    issued it in a thread without frames (DDP's reducer)."""
    frame, outside = sys._getframe(2).f_back, None  # autograd's threads (GPUs) have none above ours
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        name = frame.f_code.co_filename
        known = _libraries.get(name)
        if known is None:
            known = _libraries[name] = is_library(name)
        if not known:
            return "%s:%d" % (name, frame.f_lineno)
        if outside is None and not name.startswith((torch, "<")):
            outside = "%s:%d" % (name, frame.f_lineno)
        frame = frame.f_back
    return outside or ""


def _nccl_of(group):
    """The object of torch that runs a group's operations on GPUs by NCCL; None: there is none."""
    torch, distributed = sys.modules["torch"], sys.modules["torch.distributed.distributed_c10d"]
    kind = getattr(distributed, "ProcessGroupNCCL", None)
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:  # this group has none for GPUs
        return None
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    return backend if kind is not None and type(backend) is kind else None


class _Group:
    """What is asked once: an answer of torch takes microseconds."""

    def __init__(self, group, ranks, issued):
        self.ranks, self.rank, self.issued, self.alive = ranks, group.rank(), issued, weakref.ref(group)
        self.text = ",".join(map(str, ranks[:64]))
        backend = _nccl_of(group)
        self.nccl = 1 if backend is not None else 0
        if self.nccl and _probing.comm_timing(backend, -1) == 0:  # where the switch is not known it is left alone: it could not be put back
            _probing.comm_timing(backend, 1)
            _timed.add(group.group_name)


class _Operation:
    def __init__(self, torch, name):
        self.name = name.strip("_")
        self.folder = torch.__file__[:-len("__init__.py")]
        self.op = getattr(torch.ops.c10d, name).default
        names = [argument.name for argument in self.op._schema.arguments]
        self.group = names.index("process_group")
        self.inputs = next(names.index(each) for each in INPUTS if each in names)
        self.asynchronous = names.index("async_op") if "async_op" in names else None
        other, self.sends = DIRECTIONS.get(name, (None, False))
        self.other = names.index(other) if other else None
        self.after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        self.unbox = torch._C._distributed_c10d.ProcessGroup.unbox
        self.ranks = sys.modules["torch.distributed.distributed_c10d"].get_process_group_ranks

    def __call__(self, keyset, *args, **kwargs):
        entry = -1
        try:
            if _probing.comm_wanted():
                entry = self.tell(args)
        except Exception as error:
            if is_of_program(error):
                raise
        try:
            result = self.op.redispatch(keyset & self.after, *args, **kwargs)
        except BaseException:
            if entry >= 0:
                _probing.comm_refused(entry)
            raise
        if entry >= 0:
            _probing.comm_issued(entry)
        return result

    def tell(self, args):
        group = self.unbox(args[self.group])
        name = group.group_name
        known = _groups.get(name)
        if known is None or known.alive() is not group:  # a group that is made anew may have the name of one before
            known = _groups[name] = _Group(group, self.ranks(group), known.issued if known else 0)
        known.issued += 1
        tensors = [each for each in map(_values.tensor, _flat(args[self.inputs])) if each is not None]
        ranks, own = known.ranks, known.ranks[known.rank]
        sender = receiver = -1
        if self.other is not None:
            other = ranks[args[self.other]]
            sender, receiver = (other, -1) if self.sends else (-1, other)
            if self.name in ("send", "recv"):
                sender, receiver = (other, own) if self.sends else (own, other)
        nccl = known.nccl and (not tensors or tensors[0].device.startswith("cuda"))
        asynchronous = args[self.asynchronous] if self.asynchronous is not None and self.asynchronous < len(args) else True
        return _probing.comm_begin(self.name, name, known.rank, len(ranks), known.issued, sum([each.nbytes for each in tensors]),
                                   tensors[0].dtype or "" if tensors else "", "x".join(map(str, tensors[0].shape or ())) if tensors else "",
                                   1 if asynchronous else 0, sender, receiver, own, _caller(self.folder), known.text, 1 if nccl else 0)


def install():
    """Whether every operation is reported from now on; False until the program has set up torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized() and install_now()


def install_now():
    """The same on request of the program: also before torch.distributed is set up."""
    torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if _registered:
        return True
    if torch is None or distributed is None or not distributed.is_available():
        return False
    handle = torch._C._dispatch_library("IMPL", "c10d", "", "<probing>", 1)
    for name in OPERATIONS:
        if not hasattr(torch.ops.c10d, name):
            continue
        try:
            operation = _Operation(torch, name)
            if not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::" + name, KEY):
                handle.impl(name, KEY, operation, True)
        except Exception:  # operations that this version describes differently are not reported
            pass
    _registered.append(handle)
    return True


def remove():
    del _registered[:]
    _groups.clear()
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group in list(world.pg_map) if world is not None and _timed else ():
        backend = _nccl_of(group) if group.group_name in _timed else None
        if backend is not None:
            _probing.comm_timing(backend, 0)
    _timed.clear()
