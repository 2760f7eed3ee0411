/* torch_number: the number that the framework of a training gives its steps (global_step of transformers and
 * Lightning, global_steps of DeepSpeed). Rows have that number, so that they can be compared with the
 * framework's own logs and checkpoints, and with the rows of a job that was continued.
 *
 * Who counts is looked for among the functions that run when an optimizer steps, by the Python part
 * (_known.py), in the first steps only, and again when that object is gone, another optimizer steps, or the
 * number stays where it was: another training may run by now. From then on the number is read out of the
 * dicts of the framework's objects: no code runs for a step.
 *
 * What the frameworks count goes on with every step of the optimizer, and where a scaler or DeepSpeed skips
 * one. So a number that stays says nothing of this step, and rows go on by one. */
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/imported.h"
#include "agent/python/job.h"
#include "agent/python/prompt.h"

#include <stdio.h>
#include <string.h>

#define FIRST_LOOKS 8 /* each of the first steps; then one step of so many: */
#define LATER_LOOKS 64

/* With the GIL. */
static struct {
    pb_pyobject *module;  /* _known.py, once a framework is imported */
    pb_pyobject *counter; /* a weak reference to the object that counts; NULL: none is known */
    char path[256];       /* from there to the number, with dots; several are added up ('+') */
    int64_t last;         /* the number at the end of the last step; -1: none */
    const void *stepped;  /* the optimizer of that step; never dereferenced */
    uint32_t steps;       /* without a new number */
} n;

/* Loads the Python part in our own thread: an import in the program's may wait for its locks. */
void pb_torch_number_put(const struct pb_python *py)
{
    static const char *const counting[] = {"transformers.trainer", "lightning.pytorch", "pytorch_lightning",
                                           "deepspeed"};

    for (size_t i = 0; i < sizeof(counting) / sizeof(counting[0]) && !n.module; i++)
        if (pb_is_imported(py, counting[i]))
            n.module = pb_job_load(py, "_known");
    py->err_clear();
}

static void forget_counter(const struct pb_python *py)
{
    if (n.counter)
        py->decref(n.counter);
    n.counter = NULL;
    n.steps = 0;
}

void pb_torch_number_take(const struct pb_python *py)
{
    forget_counter(py);
    if (n.module)
        py->decref(n.module);
    n.module = NULL;
    __atomic_store_n(&pb_torch.number_offset, 0, __ATOMIC_RELAXED);
}

void pb_torch_number_forget(void)
{
    n.module = n.counter = NULL;
    pb_torch.number_offset = 0;
}

/* Takes what the Python part has found: (object, path), or None. */
static void take_counter(const struct pb_python *py, pb_pyobject *found)
{
    pb_pyobject *object = found == py->none ? NULL : py->tuple_get(found, 0);
    pb_pyobject *path = object ? py->tuple_get(found, 1) : NULL;
    const char *text = path ? py->utf8_of(path) : NULL;
    pb_pyobject *known = n.counter ? py->call(n.counter, (void *)NULL) : NULL;
    int same = known && known == object;

    if (known)
        py->decref(known);
    if (same)
        return;
    forget_counter(py);
    if (!n.module || !text || strlen(text) >= sizeof(n.path))
        return;
    n.counter = py->weakref_new(object, NULL);
    n.last = -1;
    snprintf(n.path, sizeof(n.path), "%s", text);
}

static void find_counter(const struct pb_python *py)
{
    pb_pyobject *function = py->get_attr(n.module, "counter");
    pb_pyobject *found = function ? py->call(function, (void *)NULL) : NULL;
    if (found)
        take_counter(py, found);
    pb_pyobject *all[] = {function, found};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            py->decref(all[i]);
    pb_raise_handlers_later(py);
}

/* The number at the end of one path. 0: there is none. */
static int read_path(const struct pb_python *py, pb_pyobject *object, const char *path, size_t length,
                     int64_t *ret)
{
    char name[64];
    int known = 1;

    py->incref(object);
    for (const char *at = path; known && at < path + length;) {
        size_t size = strcspn(at, ".+");
        snprintf(name, sizeof(name), "%.*s", (int)size, at);
        pb_pyobject *next = pb_own_field(py, object, name);
        known = next != NULL;
        if (next) {
            py->decref(object);
            object = next;
        }
        at += size + 1;
    }
    known = known && pb_type_of(object, pb_module_header(py)) == py->int_type;
    if (known)
        *ret += py->int64_as(object);
    py->decref(object);
    py->err_clear();
    return known;
}

/* 0: nobody is known to count, or not all of it can be read. */
static int read_number(const struct pb_python *py, int64_t *ret)
{
    pb_pyobject *object = n.counter ? py->call(n.counter, (void *)NULL) : NULL;
    int known = object && object != py->none;

    *ret = 0;
    for (const char *at = n.path; known && *at;) {
        size_t length = strcspn(at, "+");
        known = read_path(py, object, at, length, ret);
        at += length + (at[length] == '+');
    }
    if (object)
        py->decref(object);
    py->err_clear();
    return known;
}

static void set_offset(int64_t offset)
{
    __atomic_store_n(&pb_torch.number_offset, offset, __ATOMIC_RELAXED);
}

void pb_torch_number_begin(const struct pb_python *py, int64_t seen)
{
    int64_t number;

    if (read_number(py, &number) && number != n.last)
        set_offset(number - seen);
}

void pb_torch_number_end(const struct pb_python *py, int64_t seen, const void *optimizer)
{
    int64_t number;
    int known = read_number(py, &number), other = optimizer != n.stepped;

    n.stepped = optimizer;
    if (!known && n.counter)
        forget_counter(py);
    if (known && number != n.last && !other) {
        n.last = number;
        set_offset(number - seen);
        return;
    }
    if (!n.module || (n.steps++ >= FIRST_LOOKS && n.steps % LATER_LOOKS && !other))
        return;
    find_counter(py);
    if (read_number(py, &number) && number != n.last) {
        n.last = number;
        set_offset(number - seen);
    }
}
