/* torch_gpu: how long modules and phases keep a GPU busy, in two steps of 16, by CUDA events: one step for
 * the step and its phases, one for the modules.
 *
 * The Python part (_gpu.py) puts an event into the stream before and after, and reads both when a later step
 * ends and the GPU has passed them: nothing waits for the GPU. Around every such call this thread's capture
 * mode is relaxed, so that a graph that another thread captures just then stays valid; nothing is put into a
 * stream that is being captured. If CUDA's runtime is not found, or not in use, there are no rows. */
#include "agent/core/fork_gate.h"
#include "agent/core/recorder.h"
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"
#include "agent/python/job.h"
#include "agent/python/prompt.h"
#include "control/tables.def"
#include "table/clock.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define GPU_EVERY     16
#define RELAXED       2 /* cudaStreamCaptureModeRelaxed */
#define LIBRARY_BYTES 512

#define GPU_ID(id, ...) GPU_##id,
enum { PB_TABLE_TORCH_GPU(PB_NOTHING, GPU_ID) GPU_COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_TORCH_GPU)};

/* Everything here is with the GIL. */
static pb_pyobject *part;               /* _gpu.py; NULL: CUDA is not in use */
static int (*exchange_mode)(int *mode); /* cudaThreadExchangeStreamCaptureMode */
static struct pb_known_table known_table;

static int find_runtime(struct dl_phdr_info *info, size_t size, void *ret)
{
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libcudart"))
        return 0;
    snprintf(ret, LIBRARY_BYTES, "%s", info->dlpi_name);
    return 1;
}

/* Without the GIL, which a handler of fork may want while the gate is waited for. */
static int find_exchange(const struct pb_python *py)
{
    char name[LIBRARY_BYTES];

    if (exchange_mode)
        return 1;
    void *state = py->save_thread();
    void *library =
        pb_fork_gate_each_object(find_runtime, name) ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, "cudaThreadExchangeStreamCaptureMode") : NULL;
    if (library)
        dlclose(library);
    py->restore_thread(state);
    memcpy(&exchange_mode, &found, sizeof(found));
    return found != NULL;
}

int pb_torch_gpu_is_in_use(const struct pb_python *py)
{
    pb_pyobject *word = pb_imported(py, "torch.cuda", "_initialized");
    int yes = word == py->true_object;

    if (word)
        py->decref(word);
    py->err_clear();
    return yes;
}

void pb_torch_gpu_put(const struct pb_python *py)
{
    if (!part && pb_torch_gpu_is_in_use(py) && find_exchange(py))
        part = pb_job_load(py, "_gpu");
}

void pb_torch_gpu_take(const struct pb_python *py)
{
    pb_pyobject *held = part;

    part = NULL;
    if (held)
        py->decref(held);
}

void pb_torch_gpu_forget(void)
{
    part = NULL;
}

enum pb_torch_gpu pb_torch_gpu_wants(int64_t step)
{
    int64_t at = step % GPU_EVERY;

    return !part                 ? PB_TORCH_GPU_NOTHING
           : at == GPU_EVERY / 2 ? PB_TORCH_GPU_PHASES
           : at == GPU_EVERY - 2 ? PB_TORCH_GPU_MODULES
                                 : PB_TORCH_GPU_NOTHING;
}

/* Calls a function of the Python part; the arguments are dropped. NULL: it failed. */
static pb_pyobject *call_part(const struct pb_python *py, const char *name, pb_pyobject *args[5])
{
    pb_pyobject *held = part; /* a stop in another thread, while Python runs, drops it */
    int mode = RELAXED, nargs = 0;

    py->incref(held);
    pb_pyobject *function = py->get_attr(held, name), *result = NULL;
    while (nargs < 5 && args[nargs])
        nargs++;
    int changed = exchange_mode(&mode) == 0; /* mode is then the former mode */
    if (function)
        result = nargs == 0 ? py->call(function, (void *)NULL)
                            : py->call(function, args[0], args[1], args[2], args[3], args[4], (void *)NULL);
    if (changed)
        exchange_mode(&mode);
    for (int i = 0; i < 5; i++)
        if (args[i])
            py->decref(args[i]);
    if (function)
        py->decref(function);
    py->decref(held);
    pb_raise_handlers_later(py);
    return result;
}

pb_pyobject *pb_torch_gpu_begin(const struct pb_python *py)
{
    pb_pyobject *none[5] = {NULL};
    pb_pyobject *event = part ? call_part(py, "begin", none) : NULL;

    if (event == py->none) {
        py->decref(event);
        event = NULL;
    }
    return event;
}

void pb_torch_gpu_end(const struct pb_python *py, pb_pyobject *event, const char *stage, const char *name,
                      size_t length, int64_t begun)
{
    pb_pyobject *args[5] = {event, py->str_from_utf8(stage, (long)strlen(stage), "strict"),
                            py->str_from_utf8(name, (long)length, "replace"), py->int64_from(begun),
                            py->int64_from(pb_torch_number(pb_torch.step))};
    int complete = part != NULL;

    for (int i = 0; i < 5; i++)
        complete = complete && args[i];
    if (complete) {
        pb_pyobject *done = call_part(py, "end", args);
        if (done)
            py->decref(done);
        return;
    }
    for (int i = 0; i < 5; i++)
        if (args[i])
            py->decref(args[i]);
    py->err_clear();
}

void pb_torch_gpu_collect(const struct pb_python *py)
{
    pb_pyobject *none[5] = {NULL};
    pb_pyobject *done = part ? call_part(py, "collect", none) : NULL;

    if (done)
        py->decref(done);
}

void pb_torch_gpu_memory(const struct pb_python *py, int64_t ret[4])
{
    pb_pyobject *none[5] = {NULL};
    pb_pyobject *figures = part ? call_part(py, "memory", none) : NULL;

    for (int i = 0; figures && figures != py->none && i < 4; i++) {
        pb_pyobject *each = py->tuple_get(figures, i);
        ret[i] = each ? py->int64_as(each) : -1;
    }
    if (figures)
        py->decref(figures);
    py->err_clear();
}

/* gpu_row(stage, module, step, begun, device, gpu_ms, host_ms, allocated, reserved, most): the last three are
 * bytes, negative where they are not known. */
static pb_pyobject *gpu_row(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_TORCH_GPU),
                                       .comment = PB_COMMENT_OF(PB_TABLE_TORCH_GPU),
                                       .columns = columns,
                                       .ncolumns = GPU_COLUMNS,
                                       .share = 2};
    const char *text[2];
    double number[8];
    struct pb_row row;
    uint32_t inside;
    (void)self;

    for (int i = 0; i < 10; i++) {
        pb_pyobject *each = py->tuple_get(args, i);
        if (!each)
            return NULL;
        if (i < 2 && !(text[i] = py->utf8_of(each)))
            return NULL;
        if (i >= 2)
            number[i - 2] = py->float_as(each);
        if (py->err_occurred())
            return NULL;
    }
    int64_t begun = py->int64_as(py->tuple_get(args, 3)); /* more digits than a double has */
    struct pb_arena *arena = pb_recorder_enter(&inside);
    struct pb_table *table = arena ? pb_recorder_table(arena, &spec, &known_table) : NULL;
    if (table && pb_row_begin(table, &row) == 0) {
        pb_set_timestamp(&row, GPU_TIMESTAMP, begun);
        pb_set_i64(&row, GPU_STEP, (int64_t)number[0]);
        pb_set_string(&row, GPU_STAGE, text[0], strlen(text[0]));
        pb_set_string(&row, GPU_MODULE, text[1], strlen(text[1]));
        pb_set_i32(&row, GPU_DEVICE, (int32_t)number[2]);
        pb_set_f64(&row, GPU_MS, number[3]);
        pb_set_f64(&row, GPU_HOST_MS, number[4]);
        for (unsigned i = 0; i < 3; i++)
            if (number[5 + i] >= 0)
                pb_set_f64(&row, GPU_ALLOCATED + i, number[5 + i] / (1 << 20));
        pb_row_commit(&row);
    }
    if (arena)
        pb_recorder_leave(inside);
    py->incref(py->none);
    return py->none;
}

/* gpu_now(): the clock of `begun`. */
static pb_pyobject *gpu_now(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->int64_from(pb_clock_mono());
}

struct pb_py_method pb_gpu_methods[] = {
    {"gpu_row", (pb_py_function)gpu_row, PB_METH_VARARGS, NULL},
    {"gpu_now", (pb_py_function)gpu_now, PB_METH_NOARGS, NULL},
    {0},
};
