/* allocations_cuda: live memory of GPUs for memory_allocations, out of torch's memory history, where it is
 * asked for: torch then keeps a stack for each block.
 *
 * The Python part (_history.py) switches the history on, takes a snapshot every ten seconds and switches it
 * off in the end, in the thread of the probe: nothing runs in threads of the program but what torch does for
 * its history. One that the program records is left alone. */
#include "agent/module/module.h"
#include "agent/probes/allocations/allocations.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/job.h"
#include "table/clock.h"

#include <stdio.h>
#include <string.h>

#define EVERY_NS INT64_C(10000000000)

static pb_pyobject *part; /* _history.py; with the GIL */
static int wanted;
static int64_t next_look;

void pb_alloc_cuda_want(int yes)
{
    __atomic_store_n(&wanted, yes, __ATOMIC_RELAXED);
    __atomic_store_n(&next_look, 0, __ATOMIC_RELAXED);
}

int pb_alloc_cuda_is_due(void)
{
    return pb_clock_mono() >= __atomic_load_n(&next_look, __ATOMIC_RELAXED);
}

/* The function's answer, which may be an error. */
static pb_pyobject *call_part(const struct pb_python *py, const char *name)
{
    pb_pyobject *function = part ? py->get_attr(part, name) : NULL;
    pb_pyobject *answer = function ? py->call(function, (void *)NULL) : NULL;

    if (function)
        py->decref(function);
    return answer;
}

void pb_alloc_cuda_look(const struct pb_python *py, char *why, size_t why_size)
{
    if (!pb_alloc_cuda_is_due())
        return;
    __atomic_store_n(&next_look, pb_clock_mono() + EVERY_NS, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&wanted, __ATOMIC_RELAXED)) {
        pb_alloc_cuda_end(py);
        why[0] = '\0';
        return;
    }
    if (!pb_torch_gpu_is_in_use(py))
        return;
    if (!part)
        part = pb_job_load(py, "_history");
    pb_pyobject *answer = call_part(py, "look");
    const char *text =
        answer ? py->utf8_of(answer) : "not of the GPU's allocator: its history cannot be read";
    if (text)
        snprintf(why, why_size, "%s", text);
    if (answer)
        py->decref(answer);
    py->err_clear();
}

void pb_alloc_cuda_end(const struct pb_python *py)
{
    pb_pyobject *answer = call_part(py, "end"), *held = part;

    part = NULL;
    py->err_clear();
    if (answer)
        py->decref(answer);
    if (held)
        py->decref(held);
}

void pb_alloc_cuda_forget(void)
{
    part = NULL;
}

/* A frame (name, file, line) of the tuple; the texts live as long as the tuple. */
static int read_frame(const struct pb_python *py, pb_pyobject *frames, long at, const char **name,
                      const char **file, int *line)
{
    pb_pyobject *frame = py->tuple_get(frames, at);

    if (!frame || !(*name = py->utf8_of(py->tuple_get(frame, 0))) ||
        !(*file = py->utf8_of(py->tuple_get(frame, 1))))
        return -1;
    *line = (int)py->int64_as(py->tuple_get(frame, 2));
    return py->err_occurred() ? -1 : 0;
}

/* The innermost frame, and the innermost one that is of no library. */
static int read_frames(const struct pb_python *py, pb_pyobject *frames, struct pb_alloc_texts *ret)
{
    for (long i = 0, n = py->size_of(frames); i < n; i++) {
        const char *name, *file;
        int line;
        if (read_frame(py, frames, i, &name, &file, &line) < 0)
            return -1;
        if (i == 0) {
            ret->function = name;
            ret->file = file;
            ret->line = line;
        }
        if (!pb_alloc_is_library(file)) {
            ret->caller = file;
            ret->caller_line = line;
            break;
        }
    }
    return py->err_occurred() ? -1 : 0;
}

static pb_pyobject *give_none(const struct pb_python *py)
{
    py->incref(py->none);
    return py->none;
}

/* cuda_row(device, bytes, stands for, address, frames) */
static pb_pyobject *cuda_row(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    struct pb_alloc_texts texts = {0};
    uint64_t number[4];
    char device[24];
    (void)self;

    for (int i = 0; i < 4; i++) {
        pb_pyobject *each = py->tuple_get(args, i);
        number[i] = each ? py->uint64_as(each) : 0;
    }
    pb_pyobject *frames = py->err_occurred() ? NULL : py->tuple_get(args, 4);
    if (!frames || read_frames(py, frames, &texts) < 0)
        return NULL;
    snprintf(device, sizeof(device), "cuda:%u", (unsigned)number[0]);
    if (__atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE))
        pb_alloc_write(py, NULL,
                       &(struct pb_alloc_row){.kind = "cuda",
                                              .device = device,
                                              .bytes = number[1],
                                              .weight = number[2],
                                              .when = pb_clock_mono(),
                                              .block = (const void *)(uintptr_t)number[3],
                                              .texts = &texts});
    return give_none(py);
}

/* cuda_freed(address) */
static pb_pyobject *cuda_freed(pb_pyobject *self, pb_pyobject *address)
{
    const struct pb_python *py = pb_python_here();
    uint64_t block = py->uint64_as(address);
    (void)self;

    if (py->err_occurred())
        return NULL;
    pb_alloc_freed((const void *)(uintptr_t)block);
    return give_none(py);
}

struct pb_py_method pb_history_methods[] = {
    {"cuda_row", (pb_py_function)cuda_row, PB_METH_VARARGS, NULL},
    {"cuda_freed", (pb_py_function)cuda_freed, PB_METH_O, NULL},
    {0},
};
