/* torch_track: expressions that are evaluated when a step ends (the Python part's _track.py), named by the
 * setting probing.torch.profiling: "on,exprs=loss@train,lr". The resident thread stores the text; the thread
 * that installs our functions passes it to the Python part; the thread that runs the steps calls that. */
#include "agent/core/notes.h"
#include "agent/module/module.h"
#include "agent/probes/torch/torch.h"
#include "agent/python/job.h"
#include "agent/python/prompt.h"
#include "control/settings.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPRESSIONS "exprs="

/* The resident thread writes the text that is not in use. */
static char texts[2][PB_SETTING_LENGTH];
static uint32_t wanted_version; /* its lowest bit selects the text */
static uint32_t taken_version;  /* with the GIL, as all below */
static pb_pyobject *module;     /* _track.py, while expressions are tracked */
static uint32_t tracked;
static pb_pyobject *at_step;        /* what pb_torch_at_step calls */
static pb_pyobject *each_optimizer; /* the same of pb_torch_each_optimizer */

void pb_torch_track_set(const char *setting)
{
    const char *comma = strchr(setting, ','), *list = comma ? strstr(comma, EXPRESSIONS) : NULL;
    uint32_t next = wanted_version + 1;

    list = list ? list + strlen(EXPRESSIONS) : "";
    if (strcmp(texts[wanted_version & 1], list) == 0)
        return;
    snprintf(texts[next & 1], sizeof(texts[0]), "%s", list);
    __atomic_store_n(&wanted_version, next, __ATOMIC_RELEASE);
}

static void forget_module(const struct pb_python *py)
{
    tracked = 0;
    if (module)
        py->decref(module);
    module = NULL;
}

void pb_torch_track_put(const struct pb_python *py)
{
    uint32_t version = __atomic_load_n(&wanted_version, __ATOMIC_ACQUIRE);
    const char *list = texts[version & 1];

    if (version == taken_version)
        return;
    taken_version = version;
    forget_module(py);
    if (!list[0])
        return;
    module = pb_job_load(py, "_track");
    pb_pyobject *configure = module ? py->get_attr(module, "configure") : NULL;
    pb_pyobject *text = configure ? py->str_from_utf8(list, (long)strlen(list), "replace") : NULL;
    pb_pyobject *count = text ? py->call(configure, text, (void *)NULL) : NULL;
    tracked = count ? (uint32_t)py->int_as(count) : 0;
    pb_pyobject *held[] = {configure, text, count};
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++)
        if (held[i])
            py->decref(held[i]);
    py->err_clear();
}

void pb_torch_track_take(const struct pb_python *py)
{
    forget_module(py);
    taken_version = 0;
}

void pb_torch_track_forget(void)
{
    module = at_step = each_optimizer = NULL;
    tracked = taken_version = 0;
}

/* Calls a function of _track.py; the arguments' references are taken over, and one that is NULL leaves the
 * call out. */
static void call_track(const struct pb_python *py, const char *name, pb_pyobject *const *args, unsigned nargs)
{
    pb_pyobject *held = module; /* a stop in another thread, while Python runs, drops it */
    py->incref(held);
    pb_pyobject *function = py->get_attr(held, name), *done = NULL, *a[4] = {0};
    int whole = function != NULL;

    for (unsigned i = 0; i < nargs; i++) {
        a[i] = args[i];
        whole &= a[i] != NULL;
    }
    if (whole)
        done = py->call(function, a[0], a[1], a[2], a[3], (void *)NULL);
    pb_pyobject *all[] = {function, a[0], a[1], a[2], a[3], done, held};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            py->decref(all[i]);
    pb_raise_handlers_later(py);
}

/* The program's own number of the step, where it tells. */
static pb_pyobject *number_of(const struct pb_python *py, int64_t step)
{
    int64_t own = pb_span_step();

    return py->int64_from(own == INT64_MIN ? step : own);
}

void pb_torch_track_step(const struct pb_python *py, pb_pyobject *optimizer, int64_t step, int64_t samples,
                         int64_t took)
{
    if (!tracked || !module)
        return;
    py->incref(optimizer);
    pb_pyobject *args[] = {number_of(py, step), optimizer, py->int64_from(samples),
                           py->float_from((double)took / 1e9)};
    call_track(py, "step", args, 4);
}

void pb_torch_track_keep(const struct pb_python *py, int64_t step)
{
    if (!tracked || !module)
        return;
    pb_pyobject *args[] = {number_of(py, step)};
    call_track(py, "keep", args, 1);
}

void pb_torch_track_skipped(const struct pb_python *py)
{
    if (tracked && module)
        call_track(py, "skipped", NULL, 0);
}

/* --- what is called at the end of each step, for as long as it likes (_profile.py) -------------------- */

/* optimizer: NULL: it is no argument. */
static void call_hook(const struct pb_python *py, pb_pyobject *function, pb_pyobject *optimizer, int counted)
{
    if (!function)
        return;
    pb_pyobject *number = py->int64_from(counted), *done = NULL;
    py->incref(function); /* it may take itself out */
    if (number && optimizer)
        done = py->call(function, optimizer, number, (void *)NULL);
    else if (number)
        done = py->call(function, number, (void *)NULL);
    pb_pyobject *all[] = {function, number, done};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            py->decref(all[i]);
    pb_raise_handlers_later(py);
}

void pb_torch_at_step(const struct pb_python *py, int counted)
{
    call_hook(py, at_step, NULL, counted);
}

void pb_torch_each_optimizer(const struct pb_python *py, pb_pyobject *optimizer, int counted)
{
    call_hook(py, each_optimizer, optimizer, counted);
}

static void replace_function(const struct pb_python *py, pb_pyobject **place, pb_pyobject *function)
{
    pb_pyobject *before = *place;

    *place = function == py->none ? NULL : function;
    if (*place)
        py->incref(function);
    if (before)
        py->decref(before);
}

/* at_step(function or None). */
static pb_pyobject *set_at_step(pb_pyobject *self, pb_pyobject *function)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    replace_function(py, &at_step, function);
    py->incref(py->none);
    return py->none;
}

/* torch_each_optimizer(function or None): whether steps are seen at all. */
static pb_pyobject *set_each_optimizer(pb_pyobject *self, pb_pyobject *function)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    replace_function(py, &each_optimizer, pb_torch_run() ? function : py->none);
    return py->int64_from(pb_torch_run() != 0);
}

/* quiet(level): how much torch's profiler prints to the program's stderr; returns the former level. An int of
 * its own library, found by its name; versions without it are not changed. */
static pb_pyobject *quiet(pb_pyobject *self, pb_pyobject *level)
{
    const struct pb_python *py = pb_python_here();
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    int *severity = torch ? dlsym(torch, "_ZN9libkineto6Logger14severityLevel_E") : NULL;
    long wanted = py->int_as(level), before = severity ? __atomic_load_n(severity, __ATOMIC_RELAXED) : 0;
    (void)self;

    if (torch)
        dlclose(torch);
    if (py->err_occurred())
        return NULL;
    if (severity)
        __atomic_store_n(severity, (int)wanted, __ATOMIC_RELAXED);
    return py->int64_from(before);
}

/* note(source, text): a row of probing.log. */
static pb_pyobject *note(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    const char *source = py->utf8_of(py->tuple_get(args, 0)), *text = py->utf8_of(py->tuple_get(args, 1));
    (void)self;

    if (!source || !text)
        return NULL;
    pb_note_log(source, "%s", text);
    py->incref(py->none);
    return py->none;
}

/* alert(kind, subject, text, step, value): a row of python.alerts. */
static pb_pyobject *alert(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    const char *text[3];
    (void)self;

    for (int i = 0; i < 3; i++) {
        pb_pyobject *each = py->tuple_get(args, i);
        text[i] = each ? py->utf8_of(each) : NULL;
        if (!text[i])
            return NULL;
    }
    pb_pyobject *step = py->tuple_get(args, 3), *value = step ? py->tuple_get(args, 4) : NULL;
    if (!value)
        return NULL;
    const struct pb_alert a = {.kind = text[0],
                               .severity = "error",
                               .subject = text[1],
                               .text = text[2],
                               .step = py->int64_as(step),
                               .value = py->float_as(value),
                               .has_value = 1};
    if (py->err_occurred())
        return NULL;
    pb_note_alert(&a);
    py->incref(py->none);
    return py->none;
}

/* torch_name(module): its path in its model, "" if no call of it was seen. */
static pb_pyobject *torch_name(pb_pyobject *self, pb_pyobject *of)
{
    const char *name;
    int length = pb_torch_name_seen(of, &name);
    (void)self;

    return pb_python_here()->str_from_utf8(name, length, "replace");
}

struct pb_py_method pb_track_methods[] = {
    {"torch_at_step", (pb_py_function)set_at_step, PB_METH_O, NULL},
    {"torch_each_optimizer", (pb_py_function)set_each_optimizer, PB_METH_O, NULL},
    {"torch_quiet", (pb_py_function)quiet, PB_METH_O, NULL},
    {"torch_name", (pb_py_function)torch_name, PB_METH_O, NULL},
    {"note", (pb_py_function)note, PB_METH_VARARGS, NULL},
    {"alert", (pb_py_function)alert, PB_METH_VARARGS, NULL},
    {0},
};
