"""`probing groups`: the process groups of torch.distributed in this process: the roles that they give it, and their timeouts, raised while a
breakpoint may hold a rank.

What torch, Megatron and others keep is read: nothing is imported, no function of the program is called, no operation runs. A timeout counts for
operations that are issued later (torch copies it into each). The timeout from before is stored by the group's name and not with the group: a
reference of ours would keep a group that the program destroys.
"""
import sys

import _probing
from . import _hooks, _trace, _watch
from ._program import at_detach

ROLES_MAX, NAME_MAX = 6, 15
# Names of groups as programs write them, without "group", "parallel" and numbers.
KNOWN = {"tensor": "tp", "tensor_model": "tp", "model": "tp", "pipeline": "pp", "pipeline_model": "pp", "pipe": "pp", "data": "dp", "context": "cp",
         "expert": "ep", "expert_model": "ep", "sequence": "sp", "tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "sp": "sp"}
MEGATRON = ("megatron.core.parallel_state", "megatron.core.mpu", "megatron.mpu.initialize")
MEGATRON_GROUPS = (("tp", "_TENSOR_MODEL_PARALLEL_GROUP"), ("pp", "_PIPELINE_MODEL_PARALLEL_GROUP"), ("dp", "_DATA_PARALLEL_GROUP"),
                   ("cp", "_CONTEXT_PARALLEL_GROUP"), ("ep", "_EXPERT_MODEL_PARALLEL_GROUP"))
COORDINATED = ("vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state")


def c10d():
    """torch's module of process groups, if the program has one."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    return module if type(getattr(module, "_pg_map", None)) is dict else None


def is_group(thing):
    kind = getattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroup", None)
    return kind is not None and issubclass(type(thing), kind)


# --- roles

def roles():
    """[(name, number)], from the first source that knows any."""
    for source in (of_megatron, of_coordinators, of_descriptions, of_meshes):
        found = source()
        if found:
            return found[:ROLES_MAX]
    return []


def of_megatron():
    for name in MEGATRON:
        variables, found = getattr(sys.modules.get(name), "__dict__", {}), []
        for role, variable in MEGATRON_GROUPS:
            group = variables.get(variable)
            group = group[0] if type(group) is list and group else group
            if is_group(group):
                found.append((role, group.rank()))
        if found:
            return found
    return []


def of_coordinators():
    """vLLM and SGLang keep an object for each kind of group."""
    for name in COORDINATED:
        variables, found = getattr(sys.modules.get(name), "__dict__", {}), []
        for role in ("tp", "pp", "dp", "ep"):
            number = fields(variables.get("_" + role.upper())).get("rank_in_group")
            if type(number) is int:
                found.append((role, number))
        if found:
            return found
    return []


def of_descriptions():
    """By the descriptions of groups: a device mesh names its own "mesh_NAME", and programs as they like."""
    found = {}
    for group in all_groups():
        text = group.about
        role = text[5:] if text.startswith("mesh_") and text != "mesh_default" else known(text)
        if role and not role.startswith("dim_"):
            found.setdefault(role_name(role), group.group.rank())
    return [(name, number) for name, number in found.items() if name]


def known(text):
    words = [word for word in text.lower().replace("-", "_").split("_") if word not in ("group", "groups", "pg", "parallel") and not word.isdigit()]
    return KNOWN.get("_".join(words))


def of_meshes():
    """The coordinate in the device mesh with the most named dimensions; one over all ranks has no groups of its own."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if kind is None or _hooks.FREE_THREADED:  # there is no moment at which objects could be looked for
        return []
    from . import _objects

    best = []
    try:
        found = _objects.references(kind)
    except LookupError:  # functions of the module gc are replaced
        return []
    for each in found:
        mesh = fields(each())
        names, at = mesh.get("_mesh_dim_names") or mesh.get("mesh_dim_names"), mesh.get("_coordinate_on_dim")
        if type(names) is tuple and (type(at) is list or type(at) is tuple) and len(names) == len(at) > len(best):
            best = [(role_name(name), number) for name, number in zip(names, at) if type(number) is int and role_name(name)]
    return best


def fields(thing):
    """Its attributes, without code of its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def role_name(text):
    """As the tool takes it; "": not."""
    text = str(text).lower()
    return text if text[:1].isalpha() and len(text) <= NAME_MAX and all(letter in "abcdefghijklmnopqrstuvwxyz0123456789_" for letter in text) else ""


# --- groups

class Group:
    def __init__(self, module, group):
        self.group, self.name = group, str(getattr(group, "group_name", None) or module._pg_names.get(group))
        self.about = str(getattr(group, "group_desc", "") or "")
        self.ranks = sorted(module._pg_group_ranks.get(group) or ())
        self.backends = []
        for backend in [group._get_backend(device) for device in group._device_types] if hasattr(group, "_device_types") else [group]:
            backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts another around it
            if not any(backend is each for each in self.backends):
                self.backends.append(backend)

    def operations(self):
        """How many collectives this process has issued; None: not counted."""
        try:
            return self.group._get_sequence_number_for_group()
        except (RuntimeError, AttributeError):
            return None

    def timeouts(self):
        return [timeout_of(each) for each in self.backends]


def timeout_of(backend):
    """A timedelta; None: it does not tell."""
    return getattr(getattr(backend, "options", None), "_timeout", None)


def all_groups():
    module, found = c10d(), []
    for group in list(module._pg_map) if module is not None else ():
        try:
            found.append(Group(module, group))
        except (RuntimeError, AttributeError, LookupError):  # destroyed meanwhile, or of a kind without backends
            pass
    return found


def ranges(numbers):
    parts, first = [], None
    for at, number in enumerate(numbers):
        first = number if first is None else first
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            parts.append("%d-%d" % (first, number) if first != number else str(number))
            first = None
    return ",".join(parts)


# --- timeouts

def raised():
    """{(name, which backend): (timeout before, timeout that was set)}, and until when."""
    return _probing.shared.setdefault("group timeouts", {"at": {}, "until": 0})


def raise_all(more_ms):
    state = raised()
    for group in all_groups():
        for which, (backend, now) in enumerate(zip(group.backends, group.timeouts())):
            if now is None or not hasattr(backend, "_set_default_timeout"):
                continue
            before, ours = state["at"].get((group.name, which), (now, now))
            if now != ours:  # the program has set another one since
                before = now
            wanted = before + type(now)(milliseconds=more_ms)
            if wanted > now:
                backend._set_default_timeout(wanted)
                state["at"][group.name, which] = before, timeout_of(backend)
    state["until"] = max(state["until"], _probing.milliseconds() + more_ms)
    at_detach("group timeouts", restore)
    _hooks.at_end(end_raised)


def restore():
    state = raised()
    at, state["at"], state["until"] = state["at"], {}, 0
    for group in all_groups():
        for which, backend in enumerate(group.backends):
            before, ours = at.get((group.name, which), (None, None))
            if before is not None and timeout_of(backend) == ours:
                backend._set_default_timeout(before)


def end_raised(now_ms):
    state = raised()
    if state["until"] and now_ms >= state["until"]:
        restore()
    return state["until"]


def rows():
    for group in all_groups():
        for which, (backend, timeout) in enumerate(zip(group.backends, group.timeouts())):
            before, ours = raised()["at"].get((group.name, which), (None, None))
            yield (group.name, group.about or None, str(backend.name()) if hasattr(backend, "name") else type(backend).__name__, ranges(group.ranks),
                   group.group.rank(), None if timeout is None else "%.9g" % timeout.total_seconds(),
                   "%.9g" % before.total_seconds() if before is not None and timeout == ours else None, group.operations())


def change(options):
    if options["do"] == "raise":
        raise_all(int(options["ms"]))
    elif options["do"] == "restore":
        restore()
    elif options["do"] == "roles":
        return ",".join("%s=%d" % role for role in roles())
    return _trace.table(rows())


def serve_control(arguments, channel):
    """Lines of NAME=VALUE; the answer is "ok " and the roles, or a line for each group."""
    _watch.answer(arguments, channel, dict.fromkeys(("rows", "raise", "restore", "roles"), lambda options, names: change(options)))
