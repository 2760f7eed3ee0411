"""GPU time of modules and phases: CUDA events around them, read when the GPU has passed them (src/agent/probes/torch/torch_gpu.c).

Called in threads of the program, in two steps of 16, with the thread's capture mode relaxed. Nothing here waits for a GPU, allocates its memory,
or touches a stream that is being captured. A pair of events belongs to one device and one stream; if the stream changes between the two, there is
no row.
"""
import sys
from collections import deque

import _probing

PENDING_MAX = 4096
_pending = deque()  # (stage, module, step, start, host ms, device, first event, last event, memory)
_free = []  # events that were read, for reuse


def _usable(cuda):
    return cuda.is_initialized() and not cuda.is_current_stream_capturing()


def begin():
    """An event in the current stream, with the stream's id; None: not possible."""
    cuda = sys.modules["torch"].cuda
    if not _usable(cuda) or len(_pending) >= PENDING_MAX:
        return None
    stream = cuda.current_stream()
    event = _free.pop() if _free else cuda.Event(enable_timing=True)
    event.record(stream)
    return event, stream.device_index, stream.cuda_stream


def end(first_event, stage, module, start, step):
    cuda = sys.modules["torch"].cuda
    first, device, number = first_event
    if not _usable(cuda):
        return
    stream = cuda.current_stream()
    if (stream.device_index, stream.cuda_stream) != (device, number):
        return
    last = _free.pop() if _free else cuda.Event(enable_timing=True)
    last.record(stream)
    used = _memory_of(device)[:3] if stage == "step" else (-1, -1, -1)
    _pending.append((stage, module, step, start, (_probing.gpu_now() - start) / 1e6, device, first, last, used))


def _memory_of(device):
    """Bytes of torch's allocator, from its own counters: allocated, reserved, and the most of both."""
    stats = sys.modules["torch"]._C._cuda_memoryStats(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return allocated["current"], reserved["current"], allocated["peak"], reserved["peak"]


def memory():
    cuda = sys.modules["torch"].cuda
    return _memory_of(cuda.current_device()) if cuda.is_initialized() else None


def collect():
    """Writes the rows of all events that the GPU has passed."""
    if not _pending or not _usable(sys.modules["torch"].cuda):
        return
    while _pending and _pending[0][7].query():
        stage, module, step, start, host, device, first, last, memory = _pending.popleft()
        _probing.gpu_row(stage, module, step, start, device, first.elapsed_time(last), host, *memory)
        if len(_free) < 256:
            _free.extend((first, last))
