/* known: see known.h. */
#include "engine/shared/known.h"

#include "control/crash_columns.h"

#define COLUMNS(list) .columns = list, .ncolumns = sizeof(list) / sizeof(list[0])

/* --- live: columns in the order that live*.c fills them --- */

static const struct pb_column process[] = {
    {"pid", PB_I32, 0, NULL, "process id"},
    {"ppid", PB_I32, 0, NULL, "process id of the parent"},
    {"name", PB_STRING, 0, NULL, "name of the program"},
    {"state", PB_STRING, 0, NULL, "R runs, S sleeps, D waits for a disk, T stopped, Z ended"},
    {"command", PB_STRING, 0, NULL, "command line, secrets masked"},
    {"exe", PB_STRING, 0, NULL, "path of the program"},
    {"cwd", PB_STRING, 0, NULL, "its working directory"},
    {"uid", PB_I32, 0, NULL, "user it runs as"},
    {"started", PB_TIMESTAMP, 0, NULL, "when it was started"},
    {"threads", PB_I32, 0, NULL, "threads alive"},
    {"rss_bytes", PB_I64, 0, "bytes", "memory in RAM"},
    {"vms_bytes", PB_I64, 0, "bytes", "memory mapped"},
    {"swap_bytes", PB_I64, 0, "bytes", "memory swapped out"},
    {"peak_rss_bytes", PB_I64, 0, "bytes", "most memory in RAM so far"},
    {"cpu_user_s", PB_F64, 0, "s", "CPU time in user code, since start"},
    {"cpu_system_s", PB_F64, 0, "s", "CPU time in the kernel, since start"},
    {"read_bytes", PB_I64, 0, "bytes", "read from storage since start"},
    {"written_bytes", PB_I64, 0, "bytes", "written to storage since start"},
    {"python", PB_STRING, 0, NULL, "version of its Python; NULL: none"},
};
static const struct pb_column threads[] = {
    {"tid", PB_I32, 0, NULL, "thread id"},
    {"name", PB_STRING, 0, NULL, "name of the thread"},
    {"state", PB_STRING, 0, NULL, "R runs, S sleeps, D waits for a disk, T stopped"},
    {"wchan", PB_STRING, 0, NULL, "where in the kernel it waits"},
    {"syscall", PB_I32, 0, NULL, "number of the system call it is in"},
    {"cpu", PB_I32, 0, NULL, "CPU it ran on last"},
    {"cpu_user_s", PB_F64, 0, "s", "CPU time in user code"},
    {"cpu_system_s", PB_F64, 0, "s", "CPU time in the kernel"},
    {"voluntary_switches", PB_I64, 0, NULL, "times it gave up the CPU"},
    {"involuntary_switches", PB_I64, 0, NULL, "times the CPU was taken away"},
};
static const struct pb_column maps[] = {
    {"start", PB_U64, 0, NULL, "first address"},
    {"end", PB_U64, 0, NULL, "address after the last"},
    {"bytes", PB_I64, 0, "bytes", "its size"},
    {"perms", PB_STRING, 0, NULL, "rwx, and p for private or s for shared"},
    {"offset", PB_U64, 0, "bytes", "where in the file it begins"},
    {"inode", PB_U64, 0, NULL, "of the file; 0: none"},
    {"path", PB_STRING, 0, NULL, "the file, or what the kernel calls it; NULL: anonymous"},
    {"rss_bytes", PB_I64, 0, "bytes", "of it in RAM"},
    {"pss_bytes", PB_I64, 0, "bytes", "in RAM, shared pages divided by who shares them"},
    {"dirty_bytes", PB_I64, 0, "bytes", "in RAM, private and written to"},
    {"swap_bytes", PB_I64, 0, "bytes", "swapped out"},
};
static const struct pb_column fds[] = {
    {"fd", PB_I32, 0, NULL, "number of the descriptor"},
    {"kind", PB_STRING, 0, NULL, "file, socket, pipe, anon_inode or device"},
    {"path", PB_STRING, 0, NULL, "what it leads to"},
    {"position", PB_I64, 0, "bytes", "where the next read or write begins"},
    {"flags", PB_STRING, 0, NULL, "as open(2) knows them, octal"},
};
static const struct pb_column envs[] = {
    {"name", PB_STRING, 0, NULL, "name of the variable"},
    {"value", PB_STRING, 0, NULL, "its value; *** where the name tells of a secret"},
};
static const struct pb_column cgroup[] = {
    {"path", PB_STRING, 0, NULL, "control group of the process"},
    {"name", PB_STRING, 0, NULL, "file of the controller, such as memory.max"},
    {"value", PB_STRING, 0, NULL, "what it says; several lines are one value"},
};
static const struct pb_column config[] = {
    {"name", PB_STRING, 0, NULL, "name of the setting"},
    {"value", PB_STRING, 0, NULL, "its value now"},
    {"default_value", PB_STRING, 0, NULL, "its value where nobody has set it"},
    {"unit", PB_STRING, 0, NULL, "of the value; NULL: none"},
    {"origin", PB_STRING, 0, NULL, "default, environment (PROBING_*) or command"},
    {"explanation", PB_STRING, 0, NULL, "what it is, and where it takes effect"},
};
static const struct pb_column tables[] = {
    {"name", PB_STRING, 0, NULL, "name of the table with its schema"},
    {"kind", PB_STRING, 0, NULL, "live: read when asked; recorded: written by the process"},
    {"in_target", PB_BOOL, 0, NULL, "whether reading it asks the process"},
    {"rows", PB_I64, 0, NULL, "that can be read now; NULL for live tables"},
    {"bytes", PB_I64, 0, "bytes", "of the segments that hold them"},
    {"first", PB_TIMESTAMP, PB_COL_LATE, NULL, "time of its oldest row"},
    {"last", PB_TIMESTAMP, PB_COL_LATE, NULL, "time of its newest row"},
    {"dropped", PB_I64, 0, NULL, "rows that found no room"},
    {"recycled", PB_I64, 0, NULL, "rows that made room for newer ones"},
    {"comment", PB_STRING, 0, NULL, "what it holds"},
};
static const struct pb_column columns_of[] = {
    {"table", PB_STRING, 0, NULL, "name of the table with its schema"},
    {"column", PB_STRING, 0, NULL, "name of the column"},
    {"unit", PB_STRING, 0, NULL, "unit of its values; NULL: none"},
    {"comment", PB_STRING, 0, NULL, "what it holds"},
};

/* Filled by src/engine/caller/live_audit.c. */
static const struct pb_column audit[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"peer", PB_STRING, 0, NULL, "from where: an address, or a process of this machine"},
    {"target", PB_STRING, 0, NULL, "pid or id of the process that it is about; NULL: not told apart"},
    {"what", PB_STRING, 0, NULL, "what was asked for: a resource, or a command line"},
    {"body", PB_STRING, 0, NULL, "the code or the setting, its first 4 KB"},
    {"outcome", PB_STRING, 0, NULL, "ok, or why not; NULL: it goes on, or the service was killed"},
    {"seconds", PB_F64, 0, "s", "how long it took"},
};

static const struct pb_column backtrace[] = {
    {"thread", PB_STRING, 0, NULL, "name of the thread"},
    {"tid", PB_I32, 0, NULL, "thread id"},
    {"depth", PB_I32, 0, NULL, "0 is the innermost frame; NULL: no stack could be read"},
    {"func", PB_STRING, 0, NULL, "function"},
    {"file", PB_STRING, 0, NULL, "file of its source"},
    {"lineno", PB_I32, 0, NULL, "line it is at"},
    {"is_gil", PB_BOOL, 0, NULL, "whether the thread holds the GIL"},
    {"state", PB_STRING, 0, NULL, "what the thread does: runs, or waits in what"},
    {"locals", PB_STRING, 0, NULL, "name = value a line; read when the query names it"},
};

/* --- recorded: tables that exist before anything is recorded --- */

#define TIME                                                                                                 \
    {                                                                                                        \
        "timestamp", PB_TIMESTAMP, 0, NULL, "when, UTC"                                                      \
    }

static const struct pb_column memory_usage[] = {
    TIME,
    {"memory_mb", PB_F64, 0, "MB", "memory in RAM"},
    {"vms_mb", PB_F64, 0, "MB", "address space"},
    {"swap_mb", PB_F64, 0, "MB", "swapped out"},
    {"minor_faults", PB_I64, 0, NULL, "page faults served from memory, since start"},
    {"major_faults", PB_I64, 0, NULL, "page faults that read from disk, since start"},
    {"cpu_user_s", PB_F64, 0, "s", "CPU time in user code, since start"},
    {"cpu_system_s", PB_F64, 0, "s", "CPU time in the kernel, since start"},
    {"threads", PB_I32, 0, NULL, "threads alive"},
    {"voluntary_switches", PB_I64, 0, NULL, "times it gave up the CPU, since start"},
    {"involuntary_switches", PB_I64, 0, NULL, "times the CPU was taken away, since start"},
};
static const struct pb_column python_memory[] = {
    TIME,
    {"pid", PB_I32, 0, NULL, "process"},
    {"rss_bytes", PB_I64, 0, "bytes", "memory in RAM"},
    {"heap_blocks", PB_I64, 0, NULL, "small blocks of Python's allocator in use"},
    {"heap_arenas", PB_I64, 0, NULL, "regions that Python's allocator has"},
    {"heap_bytes", PB_I64, 0, "bytes", "their size"},
    {"gc_gen0", PB_I64, 0, NULL, "gc.get_count(): new objects since a collection"},
    {"gc_gen1", PB_I64, 0, NULL, "young collections since a middle one"},
    {"gc_gen2", PB_I64, 0, NULL, "middle collections since a full one"},
    {"torch_cpu_bytes", PB_I64, 0, "bytes", "of torch tensors in RAM; NULL: nobody knows"},
    {"torch_cuda_bytes", PB_I64, 0, "bytes", "of torch tensors on GPUs; NULL: not asked"},
    {"gpu_bytes", PB_I64, 0, "bytes", "memory of the process on GPUs, as NVML says"},
};
/* Written by src/agent/probes/torch_rows.c; worker/derived.c adds columns. */
static const struct pb_column torch_trace[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"place", PB_STRING, 0, NULL, "stage, module, class, parent, depth, thread, model, shapes"},
    {"took_ms", PB_F32, 0, "ms", "how long it took"},
    {"own_share", PB_U16, 0, "1/65535", "of that, outside of the modules that it called"},
};
static const struct pb_column torch_step[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"step", PB_I64, 0, NULL, "number of the step, from when the probe was on"},
    {"duration_ms", PB_F64, 0, "ms", "how long it took"},
    {"data_ms", PB_F32, 0, "ms", "of that, waiting for the data loader"},
    {"forward_ms", PB_F32, 0, "ms", "of that, in the outermost modules"},
    {"backward_ms", PB_F32, 0, "ms", "of that, in backward"},
    {"optimizer_ms", PB_F32, 0, "ms", "of that, in optimizers"},
    {"module_calls", PB_U32, 0, NULL, "rows of it in python.torch_trace"},
    {"micro_batches", PB_U32, 0, NULL, "backwards in it; more than 1: accumulated"},
    {"sampled", PB_BOOL, 0, NULL, "whether its modules made rows"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    {"samples", PB_U32, 0, NULL, "first size of what the models were given; NULL: not known"},
    {"tokens", PB_U32, 0, NULL, "whole numbers in it, where it is a table of them"},
    {"memory_mb", PB_F32, 0, "MB", "resident memory of the process, at most a second old"},
    {"skipped", PB_BOOL, 0, NULL, "whether a gradient scaler left out the optimizer's step"},
};
/* Written by src/agent/probes/torch_memory.c. */
static const struct pb_column torch_memory[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"place", PB_STRING, 0, NULL, "as in python.torch_trace"},
    {"took_ms", PB_F32, 0, "ms", "how long it took"},
    {"own_share", PB_U16, 0, "1/65535", "of that, outside of the modules that it called"},
    {"host_mb", PB_F32, 0, "MB", "resident memory of the process at its end"},
    {"host_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    {"allocated_mb", PB_F32, 0, "MB", "GPU memory of tensors at its end"},
    {"allocated_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    {"cached_mb", PB_F32, 0, "MB", "memory that torch has from the GPU"},
    {"max_allocated_mb", PB_F32, 0, "MB", "the most that was allocated so far"},
    {"max_allocated_delta_mb", PB_F32, 0, "MB", "by how much that grew"},
    {"max_cached_mb", PB_F32, 0, "MB", "the most that torch had from the GPU"},
};
/* Written by src/agent/probes/torch_gpu.c. */
static const struct pb_column torch_gpu[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when the CPU began it, UTC"},
    {"step", PB_I64, 0, NULL, "step of python.torch_step"},
    {"stage", PB_STRING, 0, NULL, "forward, backward, optimizer, or step: all of it"},
    {"module", PB_STRING, 0, NULL, "as in python.torch_trace"},
    {"device", PB_I32, 0, NULL, "number of the GPU"},
    {"gpu_ms", PB_F64, 0, "ms", "from its first to its last work in the stream"},
    {"host_ms", PB_F64, 0, "ms", "how long the CPU took"},
    {"allocated_mb", PB_F64, 0, "MB", "of a step: memory of tensors at its end"},
    {"reserved_mb", PB_F64, 0, "MB", "of a step: memory that torch has from the GPU"},
    {"max_allocated_mb", PB_F64, 0, "MB", "of a step: the most so far"},
};
/* Live objects, read by python/probing/_objects.py when a query names the table. */
static const struct pb_column modules[] = {
    {"name", PB_STRING, 0, NULL, "path in its model; of the model itself its class"},
    {"class", PB_STRING, 0, NULL, "its class"},
    {"model", PB_STRING, 0, NULL, "class of the module that is part of no other"},
    {"parameters", PB_I64, 0, NULL, "numbers in its own parameters"},
    {"bytes", PB_I64, 0, "bytes", "of its own parameters and buffers"},
    {"total_parameters", PB_I64, 0, NULL, "numbers in its parameters and those of its parts"},
    {"trainable", PB_I64, 0, NULL, "numbers in its own parameters that require a gradient"},
    {"device", PB_STRING, 0, NULL, "of its parameters and buffers"},
    {"dtype", PB_STRING, 0, NULL, "of its parameters and buffers"},
    {"training", PB_BOOL, 0, NULL, "train() or eval()"},
    {"hooks", PB_I64, 0, NULL, "hooks registered on it, of forward and backward"},
    {"address", PB_I64, 0, NULL, "id() of it"},
    {"grad_norm", PB_F64, 0, NULL,
     "norm of its own gradients at a step, in the CPU's memory; where the query names it"},
};
static const struct pb_column tensors[] = {
    {"name", PB_STRING, 0, NULL, "path in its model, of a parameter or buffer"},
    {"model", PB_STRING, 0, NULL, "class of that model"},
    {"class", PB_STRING, 0, NULL, "Tensor, Parameter or another, of which the rest is not known"},
    {"shape", PB_STRING, 0, NULL, "8x16x64; of a single number: scalar"},
    {"dtype", PB_STRING, 0, NULL, "of its elements"},
    {"device", PB_STRING, 0, NULL, "where it lies"},
    {"bytes", PB_I64, 0, "bytes", "of its elements"},
    {"requires_grad", PB_BOOL, 0, NULL, "whether a gradient is computed for it"},
    {"is_view", PB_BOOL, 0, NULL, "its memory is that of another tensor"},
    {"address", PB_I64, 0, NULL, "id() of it"},
    {"grad_norm", PB_F64, 0, NULL,
     "norm of its gradient at a step, in the CPU's memory; where the query names it"},
};
static const struct pb_column optimizers[] = {
    {"name", PB_STRING, 0, NULL, "its class"},
    {"class", PB_STRING, 0, NULL, "its class"},
    {"groups", PB_I64, 0, NULL, "groups of parameters"},
    {"parameters", PB_I64, 0, NULL, "numbers that it changes"},
    {"bytes", PB_I64, 0, "bytes", "of those"},
    {"state_bytes", PB_I64, 0, "bytes", "of what it remembers of them"},
    {"lr", PB_F64, 0, NULL, "learning rate of the first group"},
    {"weight_decay", PB_F64, 0, NULL, "of the first group"},
    {"momentum", PB_F64, 0, NULL, "of the first group"},
    {"device", PB_STRING, 0, NULL, "of the parameters"},
    {"dtype", PB_STRING, 0, NULL, "of the parameters"},
    {"address", PB_I64, 0, NULL, "id() of it"},
};
/* Written by src/agent/probes/torch_cost.c. */
static const struct pb_column torch_overhead[] = {
    TIME,
    {"step", PB_I64, 0, NULL, "step of python.torch_step"},
    {"steps", PB_U32, 0, NULL, "steps so far whose modules made rows"},
    {"bare_steps", PB_U32, 0, NULL, "steps so far whose modules made none"},
    {"step_ms", PB_F64, 0, "ms", "median of the last of the former"},
    {"bare_step_ms", PB_F64, 0, "ms", "median of the last of the latter"},
    {"measured_percent", PB_F64, 0, "%", "how much longer the former take; noise included"},
    {"calls_per_step", PB_F64, 0, NULL, "rows of modules and phases a step"},
    {"ns_per_call", PB_F64, 0, "ns", "time in our code for one of them"},
    {"cost_percent", PB_F64, 0, "%", "their product, of a step, over all steps"},
    {"budget_percent", PB_F64, 0, "%", "what it may be; NULL: there is no budget"},
    {"every", PB_U32, 0, NULL, "modules make rows in every so manieth step"},
};
/* Both written by src/agent/notes.c. */
static const struct pb_column alerts[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it was noticed, UTC"},
    {"kind", PB_STRING, 0, NULL, "hang, resumed, nan, infinity"},
    {"severity", PB_STRING, 0, NULL, "error, warning or note"},
    {"subject", PB_STRING, 0, NULL, "what it is about, such as a variable"},
    {"step", PB_I64, 0, NULL, "step of python.torch_step; NULL: not known"},
    {"value", PB_F64, 0, NULL, "the value that it is about"},
    {"message", PB_STRING, 0, NULL, "what is wrong, for a person"},
};
static const struct pb_column agent_log[] = {
    TIME,
    {"source", PB_STRING, 0, NULL, "part of the agent"},
    {"message", PB_STRING, 0, NULL, "what it did by itself, and why"},
};
/* Views of other tables (worker/derived.c); rows that a program records under these names are included. */
static const struct pb_column profiling_data[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"kind", PB_STRING, 0, NULL, "module, phase, span, call or collective"},
    {"operation_name", PB_STRING, 0, NULL, "what was measured"},
    {"stage", PB_STRING, 0, NULL,
     "forward, backward, optimizer, dataloader, communication; of a span its phase"},
    {"duration_ms", PB_F64, 0, "ms", "how long it took"},
    {"self_ms", PB_F64, 0, "ms", "of that, outside of the modules that it called"},
    {"step", PB_I64, 0, NULL, "step of the training"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    {"location", PB_STRING, 0, NULL, "file:line, where it is known"},
};
static const struct pb_column torch_step_timing[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"step_duration_sec", PB_F64, 0, "s", "how long it took"},
    {"is_shadow", PB_BOOL, 0, NULL, "whether its modules made no rows"},
    {"sampled", PB_BOOL, 0, NULL, "whether they made some"},
};
static const struct pb_column trace_variables[] = {
    TIME,
    {"function_name", PB_STRING, 0, NULL, "function whose variable it is"},
    {"filename", PB_STRING, 0, NULL, "its file"},
    {"lineno", PB_I32, 0, NULL, "the line that changed it"},
    {"variable_name", PB_STRING, 0, NULL, "what is watched or tracked"},
    {"value", PB_STRING, 0, NULL, "its new value"},
    {"value_type", PB_STRING, 0, NULL, "float or str"},
};
/* Written by python/probing/_watch.py. */
static const struct pb_column variables[] = {
    TIME,
    {"name", PB_STRING, 0, NULL, "what is watched or tracked"},
    {"function", PB_STRING, 0, NULL, "function whose variable it is"},
    {"file", PB_STRING, 0, NULL, "its file"},
    {"line", PB_I32, 0, NULL, "the line that changed it"},
    {"old", PB_STRING, 0, NULL, "JSON; NULL: none was seen"},
    {"new", PB_STRING, 0, NULL, "JSON"},
    {"old_number", PB_F64, 0, NULL, "of numbers"},
    {"new_number", PB_F64, 0, NULL, "of numbers, and of tensors with one element in the CPU's memory"},
    {"how", PB_STRING, 0, NULL,
     "assigned, in place, first: it had the value when it was first seen, or tracked"},
    {"thread_id", PB_I64, 0, NULL, "as the kernel numbers it"},
    {"note", PB_STRING, 0, NULL, "how many changes before this one have no row; why a tensor has no number"},
    {"operation", PB_STRING, 0, NULL, "of a change in place, as the line has it: add_, +=, []=, step()"},
};
static const struct pb_column training_logs[] = {
    TIME,
    {"epoch", PB_I64, 0, NULL, "epoch of the training"},
    {"step", PB_I64, 0, NULL, "step of the training"},
    {"loss", PB_F64, 0, NULL, "loss of the step"},
};
/* Written by src/agent/trace_table.c. */
static const struct pb_column trace_event[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it began, UTC"},
    {"record_type", PB_STRING, 0, NULL, "span, event, or call: of a function that is traced"},
    {"trace_id", PB_I64, 0, NULL, "the outermost span around it"},
    {"span_id", PB_I64, 0, NULL, "of a span its own; of an event the span that it is in"},
    {"parent_id", PB_I64, 0, NULL, "the span around it; NULL: none"},
    {"name", PB_STRING, 0, NULL, "what it was called"},
    {"phase", PB_STRING, 0, NULL, "forward, backward, ...; of the span around it unless given"},
    {"step", PB_I64, 0, NULL, "the step that probing.step was last given"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    {"location", PB_STRING, 0, NULL, "file:line of a function that is probed or traced"},
    {"attributes", PB_STRING, 0, NULL, "what was given with it, JSON"},
    {"ended", PB_TIMESTAMP, PB_COL_LATE, NULL, "when it ended, UTC; NULL: it is open"},
    {"duration_ms", PB_F64, PB_COL_LATE, "ms", "how long it took; NULL: it is open"},
    {"error", PB_STRING, PB_COL_LATE, NULL, "the exception that ended it"},
    {"arguments", PB_STRING, 0, NULL, "of a traced call, JSON"},
    {"result", PB_STRING, PB_COL_LATE, NULL, "what a traced call returned, JSON"},
    {"locals", PB_STRING, PB_COL_LATE, NULL, "of a traced call at its end, JSON"},
};
/* Written by src/agent/probes/torch_comm.c. */
static const struct pb_column comm_collective[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it was issued, UTC"},
    {"step", PB_I64, 0, NULL, "step of python.torch_step"},
    {"op", PB_STRING, 0, NULL, "allreduce, broadcast, send, ..."},
    {"group_name", PB_STRING, 0, NULL, "process group"},
    {"group_rank", PB_I32, 0, NULL, "rank of this process in it"},
    {"group_size", PB_I32, 0, NULL, "its processes"},
    {"seq", PB_I64, 0, NULL, "number in its group, from when the probe was on"},
    {"bytes", PB_I64, 0, "bytes", "of the tensors that this rank gives"},
    {"tensor_dtype", PB_STRING, 0, NULL, "of the first of them"},
    {"tensor_shape", PB_STRING, 0, NULL, "of the first of them: 4x8"},
    {"async_op", PB_BOOL, 0, NULL, "whether its issuer goes on at once"},
    {"src_rank", PB_I32, 0, NULL, "rank that sends, where one does"},
    {"dst_rank", PB_I32, 0, NULL, "rank that receives, where one does"},
    {"global_rank", PB_I32, 0, NULL, "rank of this process"},
    {"location", PB_STRING, 0, NULL, "file:line that issued it; NULL: C++, such as DDP's reducer"},
    {"participate_ranks", PB_STRING, 0, NULL, "ranks of the group, the first 64"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    {"done", PB_TIMESTAMP, PB_COL_LATE, NULL, "when it was over, UTC; NULL: not yet, or nobody tells"},
    {"duration_ms", PB_F64, PB_COL_LATE, "ms", "from issued to done"},
};
static const struct pb_column torch_loader[] = {
    TIME,
    {"step", PB_I64, 0, NULL, "step that went on"},
    {"workers", PB_I32, 0, NULL, "worker processes of the loader; 0: none"},
    {"worker", PB_I32, 0, NULL, "number of the one that made this batch"},
    {"ready", PB_I32, 0, NULL, "batches that were ready when it was asked for"},
    {"wait_ms", PB_F32, 0, "ms", "how long it took to come"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
};
static const struct pb_column comm_metrics[] = {
    TIME,
    {"operation", PB_STRING, 0, NULL, "collective or transfer"},
    {"src_rank", PB_I32, 0, NULL, "rank that sends"},
    {"dst_rank", PB_I32, 0, NULL, "rank that receives"},
    {"bytes", PB_I64, 0, "bytes", "how much was moved"},
    {"latency_ms", PB_F64, 0, "ms", "how long it took"},
};
static const struct pb_column gpu_metrics[] = {
    TIME,
    {"gpu", PB_I32, 0, NULL, "number of the GPU"},
    {"name", PB_STRING, 0, NULL, "its model"},
    {"uuid", PB_STRING, 0, NULL, "its own id"},
    {"gpu_util", PB_F64, 0, "%", "share of time in which a kernel ran"},
    {"memory_util", PB_F64, 0, "%", "share of time in which its memory was busy"},
    {"memory_used_mb", PB_F64, 0, "MB", "memory in use"},
    {"memory_total_mb", PB_F64, 0, "MB", "memory there is"},
    {"temperature_c", PB_F64, 0, "C", "temperature"},
    {"power_w", PB_F64, 0, "W", "power drawn"},
    {"sm_clock_mhz", PB_F64, 0, "MHz", "clock of its processors"},
    {"process_memory_mb", PB_F64, 0, "MB", "memory of the recorded processes on it"},
};
static const struct pb_column memory_allocations[] = {
    TIME,
    {"function_name", PB_STRING, 0, NULL, "function that allocated"},
    {"allocated_bytes", PB_I64, 0, "bytes", "how much it stands for: sums are estimates"},
    {"file", PB_STRING, 0, NULL, "of the function"},
    {"lineno", PB_I32, 0, NULL, "line that allocated"},
    {"caller", PB_STRING, 0, NULL, "file:line of the program's own code"},
    {"kind", PB_STRING, 0, NULL, "python, tensor, or cuda: of torch's GPU allocator"},
    {"bytes", PB_I64, 0, "bytes", "of the block itself"},
    {"device", PB_STRING, 0, NULL, "of a tensor, or the GPU"},
    {"thread_id", PB_I32, 0, NULL, "as the kernel numbers it"},
    {"followed", PB_BOOL, 0, NULL, "whether freed will be told"},
    {"freed", PB_TIMESTAMP, PB_COL_LATE, NULL, "when it was freed, UTC; NULL: it is alive"},
};
static const struct pb_column samples[] = {
    TIME,
    {"until", PB_TIMESTAMP, 0, NULL, "the last sample of this row"},
    {"pid", PB_I32, 0, NULL, "process"},
    {"tid", PB_I32, 0, NULL, "thread id"},
    {"thread", PB_STRING, 0, NULL, "name of the thread"},
    {"process", PB_STRING, 0, NULL, "rank or pid"},
    {"stack", PB_I64, 0, NULL, "id of the stack in python.stacks"},
    {"samples", PB_U32, 0, NULL, "how many in a row"},
    {"waiting", PB_BOOL, 0, NULL, "off its CPU"},
    {"gil", PB_BOOL, 0, NULL, "held the GIL"},
    {"ran", PB_BOOL, 0, NULL, "the thread was seen to run so far"},
};
static const struct pb_column stacks[] = {
    TIME,
    {"stack", PB_I64, 0, NULL, "id of the stack, in all recordings"},
    {"parent", PB_I64, 0, NULL, "the stack that called it; 0: none"},
    {"function", PB_STRING, 0, NULL, "of its innermost frame"},
    {"file", PB_STRING, 0, NULL, "file of its source"},
    {"line", PB_I32, 0, NULL, "line"},
    {"kind", PB_U8, 0, NULL, "0 Python, 1 native, 2 what it waits for"},
};

/* Both written by src/profile/store.c. */
static const struct pb_column hangs[] = {
    TIME,
    {"pid", PB_I32, 0, NULL, "process"},
    {"tid", PB_I32, 0, NULL, "thread id"},
    {"thread", PB_STRING, 0, NULL, "name of the thread"},
    {"process", PB_STRING, 0, NULL, "rank or pid"},
    {"depth", PB_I32, 0, NULL, "0: the innermost frame"},
    {"function", PB_STRING, 0, NULL, "function"},
    {"file", PB_STRING, 0, NULL, "file of its source"},
    {"line", PB_I32, 0, NULL, "line it is at"},
    {"locals", PB_STRING, 0, NULL, "name = value, a line each"},
    {"seconds", PB_F64, 0, "s", "without progress when it was taken"},
    {"verdict", PB_STRING, 0, NULL, "what the process waits for, where that is known"},
};
static const struct pb_column sampling[] = {
    TIME,
    {"ticks", PB_I64, 0, NULL, "instants at which all threads were looked at"},
    {"asleep", PB_I64, 0, NULL, "stacks read while the thread slept"},
    {"interrupted", PB_I64, 0, NULL, "in an interrupt of its CPU"},
    {"preempted", PB_I64, 0, NULL, "while it waited for our CPU"},
    {"stopped", PB_I64, 0, NULL, "while it was stopped"},
    {"refused", PB_I64, 0, NULL, "no allowed way could prove the stack"},
    {"failed", PB_I64, 0, NULL, "could not be read"},
    {"truncated", PB_I64, 0, NULL, "samples whose stack is cut"},
    {"late", PB_I64, 0, NULL, "instants that had passed before we came"},
};
/* Written by python/probing/_break.py. */
static const struct pb_column break_hits[] = {
    TIME,
    {"id", PB_I64, 0, NULL, "the number of the breakpoint"},
    {"file", PB_STRING, 0, NULL, "of its source"},
    {"line", PB_I32, 0, NULL, "of the place"},
    {"function", PB_STRING, 0, NULL, "the place is in"},
    {"thread_id", PB_I64, 0, NULL, "as the kernel numbers it"},
    {"stopped", PB_BOOL, 0, NULL, "whether the thread was held"},
    {"message", PB_STRING, 0, NULL, "of a log point; what changed"},
    {"error", PB_STRING, 0, NULL, "why the condition or the message has no value"},
    {"note", PB_STRING, 0, NULL, "how many hits before this one have no row"},
};
/* Written by python/probing/_profile.py. */
static const struct pb_column profile_hotspot[] = {
    TIME,
    {"capture_id", PB_I64, 0, NULL, "which capture of this process"},
    {"steps", PB_I64, 0, NULL, "that were captured"},
    {"bucket_kind", PB_STRING, 0, NULL, "cpu_op, kernel, ..."},
    {"bucket_name", PB_STRING, 0, NULL, "the operator or kernel"},
    {"self_us", PB_F64, 0, "us", "outside of others that it calls"},
    {"wall_us", PB_F64, 0, "us", "with others that it calls"},
    {"calls", PB_I64, 0, NULL, "how often it was called"},
    {"pct_of_capture", PB_F64, 0, NULL, "self_us of all of its kind's, in percent"},
};
/* Written by src/agent/live.c. */
static const struct pb_column registered[] = {
    {"timestamp", PB_TIMESTAMP, 0, NULL, "when it was registered, UTC"},
    {"name", PB_STRING, 0, NULL, "of the table"},
    {"kind", PB_STRING, 0, NULL, "as the program named it"},
    {"function", PB_STRING, 0, NULL, "where its rows come from"},
    {"active", PB_BOOL, 0, NULL, "false: taken back"},
};

static const struct pb_column exceptions[] = {PB_EXCEPTIONS_COLUMNS(PB_CRASH_COLUMN)};
static const struct pb_column crash_frames[] = {PB_CRASH_FRAMES_COLUMNS(PB_CRASH_COLUMN)};
static const struct pb_column hang_frames[] = {PB_HANG_FRAMES_COLUMNS(PB_CRASH_COLUMN)};

/* rows: the missing rows, "recorded" or the name of a live table. */
static const struct pb_column sources[] = {
    {"pid", PB_I32, 0, NULL, "process id; NULL: no process was named"},
    {"label", PB_STRING, 0, NULL, "what it is called: rank or pid"},
    {"state", PB_STRING, 0, NULL, "live, ended, not probed, or failed: its rows are missing"},
    {"rows", PB_STRING, 0, NULL, "the table that is missing, or recorded: all that it recorded"},
    {"error", PB_STRING, 0, NULL, "why it cannot be read"},
};

#define LIVE(n, c, list)                                                                                     \
    {                                                                                                        \
        {.name = n, .comment = c, COLUMNS(list), .heap_percent = 60}, true, NULL                             \
    }
#define RECORDED(n, c, list, by)                                                                             \
    {                                                                                                        \
        {.name = n, .comment = c, COLUMNS(list)}, false, by                                                  \
    }

/* How a table is filled: what a person reads when it is empty. */
#define BY_TORCH  "probing -t PID config probing.torch.profiling=on"
#define BY_RECORD "probing -t PID record"
#define BY_TRACK  "probing -t PID track VARIABLE@FUNCTION"
#define BY_WATCH  "probing -t PID watch VARIABLE@FUNCTION"
#define BY_CATCH  "probing -t PID catch"

const struct pb_known pb_known[] = {
    LIVE("system.process", "the process as the kernel sees it, one row", process),
    LIVE("system.threads", "its threads as the kernel sees them", threads),
    LIVE("system.maps", "its memory mappings", maps),
    LIVE("system.fds", "its open descriptors", fds),
    LIVE("system.envs", "its environment at start, secrets masked", envs),
    LIVE("system.cgroup", "limits and use of its control group", cgroup),
    LIVE("python.backtrace", "the Python stack of every thread, read from outside", backtrace),
    LIVE("python.memory_now", "memory of the Python runtime at the moment of the query", python_memory),
    LIVE("probing.config", "the settings of the process, or of this tool where none is named", config),
    LIVE("probing.tables", "every table there is", tables),
    LIVE("probing.columns", "every column there is, with unit and meaning", columns_of),
    LIVE("probing.audit", "what was changed through your service: eval, settings, commands", audit),
    /* The last live table: it lists the failures of those before it. */
    LIVE("probing.sources", "the processes of this query, and what of them could not be read", sources),
    RECORDED("memory_usage", "what the process takes of the machine, a row a second", memory_usage, NULL),
    RECORDED("python.memory", "memory of the Python runtime: recorded rows, and one of now", python_memory,
             BY_RECORD),
    /* Before the table whose view reads them (worker/derived.c). */
    RECORDED("training_logs", "a row a step: tracked variables and what probing.log was given", training_logs,
             BY_TRACK ", or probing.log(epoch=..., loss=...) in the program"),
    RECORDED("python.torch_step", "steps of a training, or of an inference, with their phases", torch_step,
             BY_TORCH),
    RECORDED("python.torch_memory", "rows of python.torch_trace with memory, of some steps", torch_memory,
             BY_TORCH),
    RECORDED("python.torch_trace", "modules and phases of torch, with their times", torch_trace, BY_TORCH),
    RECORDED("python.torch_step_timing", "python.torch_step under other names", torch_step_timing, BY_TORCH),
    RECORDED("python.variables", "changes of variables that are watched, and values that are tracked",
             variables, BY_WATCH ", or " BY_TRACK),
    RECORDED("python.trace_variables", "python.variables under other names", trace_variables,
             BY_WATCH ", or " BY_TRACK),
    RECORDED("python.torch_gpu", "modules and phases of torch on GPUs, of some steps", torch_gpu, BY_TORCH),
    RECORDED("python.torch_loader", "batches of data loaders: the wait, and the worker", torch_loader,
             BY_TORCH),
    RECORDED("python.torch_overhead", "what recording torch costs, as measured in the job", torch_overhead,
             BY_TORCH),
    RECORDED("python.profile_hotspot", "operators and kernels of captured steps", profile_hotspot,
             "probing -t PID torch profile"),
    RECORDED("python.modules", "torch modules that are alive, at the moment of the query", modules, NULL),
    RECORDED("python.tensors", "torch tensors that are alive, at the moment of the query", tensors, NULL),
    RECORDED("python.optimizers", "torch optimizers that are alive, at the moment of the query", optimizers,
             NULL),
    RECORDED("python.alerts", "what is wrong with the job, as the agent noticed it", alerts, NULL),
    RECORDED("probing.log", "what the agent did by itself, and why", agent_log, NULL),
    RECORDED("probing.registered", "tables whose rows come from a function", registered,
             "probing.register(...) in the program"),
    RECORDED("python.samples", "stacks sampled over time", samples, BY_RECORD),
    RECORDED("python.stacks", "frames of the sampled stacks", stacks, BY_RECORD),
    RECORDED("python.sampling", "how the samples were taken, a row a second", sampling, BY_RECORD),
    RECORDED("python.hangs", "all stacks with locals when there was no progress", hangs,
             BY_RECORD " --watchdog 30s"),
    RECORDED("python.trace_event", "spans and events that the program tells of itself", trace_event,
             "probing -t PID trace FUNCTION, or probing.span in the program"),
    RECORDED("python.break_hits", "hits of breakpoints and log points", break_hits,
             "probing -t PID break FILE:LINE"),
    RECORDED(PB_EXCEPTIONS_NAME, PB_EXCEPTIONS_ABOUT, exceptions, BY_CATCH),
    RECORDED(PB_CRASH_FRAMES_NAME, PB_CRASH_FRAMES_ABOUT, crash_frames, BY_CATCH),
    RECORDED(PB_HANG_FRAMES_NAME, PB_HANG_FRAMES_ABOUT, hang_frames, BY_TORCH),
    /* Before the table whose view reads it. */
    RECORDED("python.comm_collective", "collectives and transfers of torch.distributed", comm_collective,
             BY_TORCH),
    RECORDED("comm_metrics", "collectives and transfers between ranks", comm_metrics, BY_TORCH),
    RECORDED("profiling_data", "all that was timed: modules, phases, spans, calls, collectives",
             profiling_data, BY_TORCH),
    RECORDED("gpu_metrics", "use of the GPUs, a row a second and GPU", gpu_metrics,
             BY_RECORD ", where there is a GPU"),
    RECORDED("memory_allocations", "memory allocated by Python and torch, sampled by bytes",
             memory_allocations, "probing -t PID config probing.memory.sampling=on"),
};
const unsigned pb_nknown = sizeof(pb_known) / sizeof(pb_known[0]);

const char *const pb_system_tables[] = {"process", "threads", "maps", "fds", "envs", "cgroup", NULL};

const struct pb_known *pb_known_find(const char *name)
{
    for (unsigned i = 0; i < pb_nknown; i++)
        if (pb_known[i].live && strcmp(pb_known[i].spec.name, name) == 0)
            return &pb_known[i];
    return NULL;
}

const char *pb_known_filled_by(const char *schema, const char *name)
{
    for (unsigned i = 0; i < pb_nknown; i++) {
        const char *full = pb_known[i].spec.name, *dot = strchr(full, '.');
        size_t n = dot ? (size_t)(dot - full) : 4;
        if (strcmp(dot ? dot + 1 : full, name) == 0 && strlen(schema) == n &&
            strncmp(dot ? full : "main", schema, n) == 0)
            return pb_known[i].filled_by;
    }
    return NULL;
}
