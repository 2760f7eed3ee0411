"""Live GPU memory by the line that allocated it, out of torch's memory history (src/agent/probes/allocations/allocations_cuda.c).

While it is on, torch keeps a Python stack for each block that it gives out ("state": no list of events but the newest), and every ten seconds a snapshot says which of them are alive. Nothing
here waits for a GPU. A history that the program records is left alone: one that is on before ours is, and one that it begins later, which shows by its list of events. A snapshot
imports torch._inductor, for which it holds the GIL for seconds, so none is taken before the program has imported it. Runs in a thread of ours that has the GIL.
"""
import sys

import _probing

BLOCKS_MAX = 4000  # more would make the snapshot too long
ROWS_MAX = 500  # of one snapshot, the largest
FRAMES = 40
ITS_OWN = "not of the GPU's allocator: the program records its own memory history"

_on = False
_alive = {}  # (device, address): size of blocks that are rows


def _torch():
    torch = sys.modules["torch"]
    return torch, torch.cuda.memory, getattr(torch._C, "_cuda_isHistoryEnabled", None)


def _blocks(torch):
    stats = [torch._C._cuda_memoryStats(device) for device in range(torch.cuda.device_count())]
    return sum(each[name]["all"]["current"] for each in stats for name in ("active", "inactive_split"))


def _cannot(torch, memory, enabled):
    code = getattr(getattr(memory, "_record_memory_history_impl", None), "__code__", None)
    if not enabled or not code or "global_record_annotations" not in code.co_varnames:
        return "not of the GPU's allocator: the memory history of this torch is too old"
    if enabled():
        return ITS_OWN
    if "_inductor" not in vars(torch):
        return "not of the GPU's allocator: torch's memory history needs torch._inductor, which the program has not imported"
    return ""


def _live(snapshot):
    """(device, address): size and frames of the blocks whose stack is known."""
    found = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block.get("frames"):
                found[segment["device"], address] = block.get("requested_size", block["size"]), block["frames"]
            address += block["size"]
    return found


def _write(snapshot):
    live = _live(snapshot)
    for key in [each for each, size in _alive.items() if each not in live or live[each][0] != size]:
        del _alive[key]
        _probing.cuda_freed(key[1])
    new = sorted((each for each in live if each not in _alive), key=lambda each: -live[each][0])
    for key in new[:ROWS_MAX]:
        size, frames = live[key]
        _alive[key] = size
        _probing.cuda_row(key[0], size, size, key[1], tuple((frame["name"], frame["filename"], int(frame["line"])) for frame in frames[:FRAMES]))


def _is_theirs(snapshot):
    """Whether the program has started one that lists events; ours lists only the newest."""
    return any(len(trace) > 1 for trace in snapshot["device_traces"])


def look():
    """Switches it on, or looks. What it gives is a sentence where nothing can be seen."""
    global _on
    torch, memory, enabled = _torch()
    if not _on:
        why = _cannot(torch, memory, enabled)
        if not why:
            # Else torch would have a callback of this thread alone, and warn on stderr when another one switches the history off.
            memory._record_memory_history("state", context="alloc", stacks="python", global_record_annotations=True)
            _on = True
        return why
    if not enabled():  # the program has switched it off
        _on = False
        return ITS_OWN
    blocks = _blocks(torch)
    if blocks > BLOCKS_MAX:
        return "not of the GPU's allocator: it has %d blocks" % blocks
    snapshot = memory._snapshot()
    if _is_theirs(snapshot):
        _on = False
        return ITS_OWN
    _write(snapshot)
    return ""


def end():
    global _on
    torch, memory, enabled = _torch()
    if _on and enabled() and not _is_theirs(memory._snapshot()):
        memory._record_memory_history(None)
    _on = False
