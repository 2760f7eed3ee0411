/* torch_profile: `torch profile`: torch.profiler for a few whole steps, the same steps on all targets. */
#pragma once

struct pb_call;
struct pb_err;

/* Writes the trace of each target as torch exports it (Chrome's JSON, which Perfetto opens). Operators and
 * kernels become rows of python.profile_hotspot in the process. */
int pb_torch_profile(const struct pb_call *call, struct pb_err *err);
