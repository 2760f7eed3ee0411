/* prompt: see prompt.h. */
#include "agent/python/prompt.h"

#include "agent/core/agent_clock.h"
#include "agent/core/part.h"
#include "agent/core/spawn.h"
#include "agent/core/wake.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"
#include "agent/python/frames.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define DUE    "due" /* the key of the function in the shared state */
#define MAX_MS 3600000u

static uint32_t detached;
static uint64_t due_ms;      /* when shared["due"] will be called; 0: never */
static pb_pyobject *pending; /* a function for the main thread to call; taken by an atomic exchange */
static int in_call;          /* the main thread is in it */

/* What a signal handler of the program raised while the main thread was in code of ours, and its traceback;
 * only accessed with the GIL. */
static pb_pyobject *to_raise, *to_raise_trace;

/* A paused program continues. */
static void end(struct pb_agent *agent)
{
    (void)agent;
    __atomic_store_n(&due_ms, 0, __ATOMIC_RELEASE);
    __atomic_add_fetch(&detached, 1, __ATOMIC_RELEASE);
}

/* threads(marker): see pb_frames_threads. The first local of the calling function is marker. */
static pb_pyobject *threads(pb_pyobject *self, pb_pyobject *marker)
{
    (void)self;
    return pb_frames_threads(pb_python_here(), marker);
}

/* stack(ident): frames of a thread, innermost first. ident is the first local of the calling function. */
static pb_pyobject *stack(pb_pyobject *self, pb_pyobject *ident)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    unsigned long long number = py->uint64_as(ident);
    if (py->err_occurred())
        return NULL;
    return pb_frames_stack(py, number ? (unsigned long)number : 1, ident);
}

/* frame_locals(frame): a dict, or None where they cannot be read here. frame is the first local of the
 * calling function. */
static pb_pyobject *frame_locals(pb_pyobject *self, pb_pyobject *frame)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    pb_pyobject *found = pb_frames_locals_of(py, frame, frame);
    if (!found)
        py->incref(py->none);
    return found ? found : py->none;
}

/* set_local(frame, name, value): assigns a variable of a function of this thread, up to 3.12: later versions
 * can do that by f_locals. */
static pb_pyobject *set_local(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *a[3];
    (void)self;

    for (int i = 0; i < 3; i++)
        if (!(a[i] = py->tuple_get(args, i)))
            return NULL;
    pb_pyobject *locals = py->locals_to_fast ? py->get_attr(a[0], "f_locals") : NULL;
    int r = locals ? py->dict_set_object(locals, a[1], a[2]) : -1;
    if (locals)
        py->decref(locals);
    if (r < 0)
        return py->err_occurred() ? NULL : py->bool_from(0);
    py->locals_to_fast(a[0], 0);
    return py->bool_from(1);
}

/* 0: nothing is to be raised; else -1 with the exception. */
static int raise_kept(const struct pb_python *py)
{
    pb_pyobject *error = to_raise, *trace = to_raise_trace;

    if (!error)
        return 0;
    to_raise = to_raise_trace = NULL;
    pb_pyobject *type = pb_type_of(error, pb_module_header(py));
    py->incref(type);
    py->err_restore(type, error, trace);
    return -1;
}

/* Whether the code that a pending call interrupts is our own Python code. */
static int interrupts_us(const struct pb_python *py)
{
    pb_pyobject *frame = py->eval_frame(), *code = frame ? py->get_attr(frame, "f_code") : NULL;
    pb_pyobject *file = code ? py->get_attr(code, "co_filename") : NULL;
    const char *name = file ? py->utf8_of(file) : NULL;
    int ours = name && strncmp(name, "<probing>", 9) == 0;

    if (file)
        py->decref(file);
    if (code)
        py->decref(code);
    py->err_clear();
    return ours;
}

static int raise_pending(void *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)unused;

    if (!py || (to_raise && interrupts_us(py) && py->add_pending_call(raise_pending, NULL) == 0))
        return 0;
    return raise_kept(py);
}

/* References are taken. -1 with the exception: Python's list of pending calls is full. */
static int keep_to_raise(const struct pb_python *py, pb_pyobject *error, pb_pyobject *trace)
{
    pb_pyobject *before[] = {to_raise, to_raise_trace};

    to_raise = error;
    to_raise_trace = trace;
    for (int i = 0; i < 2; i++)
        if (before[i])
            py->decref(before[i]);
    if (!__atomic_load_n(&in_call, __ATOMIC_ACQUIRE) && py->add_pending_call(raise_pending, NULL) < 0)
        return raise_kept(py);
    return 0;
}

/* raise_later(error, trace): the main thread raises it between two bytecodes, or where the pending call ends
 * in which it is. The program sees no frame of ours. */
static pb_pyobject *raise_later(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *error = py->tuple_get(args, 0), *trace = error ? py->tuple_get(args, 1) : NULL;
    (void)self;

    if (!trace)
        return NULL;
    py->incref(error);
    if (trace != py->none)
        py->incref(trace);
    if (keep_to_raise(py, error, trace == py->none ? NULL : trace) < 0)
        return NULL;
    py->incref(py->none);
    return py->none;
}

/* Whether a frame of a traceback is of our Python code, or of what that calls of torch (_gpu.py), which may
 * fail by itself. */
static int is_our_frame(const struct pb_python *py, pb_pyobject *trace)
{
    pb_pyobject *frame = py->get_attr(trace, "tb_frame"),
                *code = frame ? py->get_attr(frame, "f_code") : NULL;
    pb_pyobject *file = code ? py->get_attr(code, "co_filename") : NULL, *all[] = {frame, code, file};
    const char *name = file ? py->utf8_of(file) : NULL;
    int ours = name && (strncmp(name, "<probing>", 9) == 0 || strstr(name, "/torch/cuda/"));

    for (int i = 0; i < 3; i++)
        if (all[i])
            py->decref(all[i]);
    py->err_clear();
    return ours;
}

/* What follows the first frames of ours; NULL: nothing. The reference is replaced. *innermost: whether the
 * last frame of all is ours. */
static pb_pyobject *skip_our_frames(const struct pb_python *py, pb_pyobject *trace, int *innermost)
{
    pb_pyobject *found = NULL;
    int ours = 1;

    while (trace && trace != py->none) {
        ours = is_our_frame(py, trace);
        if (!ours && !found)
            py->incref(found = trace);
        pb_pyobject *next = py->get_attr(trace, "tb_next");
        py->err_clear();
        py->decref(trace);
        trace = next;
    }
    if (trace)
        py->decref(trace);
    *innermost = ours;
    return found;
}

void pb_raise_handlers_later(const struct pb_python *py)
{
    pb_pyobject *raised[3] = {NULL}; /* type, error, traceback */
    int ours;

    if (!py->err_occurred())
        return;
    int interrupts = py->err_matches(*py->keyboard_interrupt);
    py->err_fetch(&raised[0], &raised[1], &raised[2]);
    py->err_normalize(&raised[0], &raised[1], &raised[2]);
    pb_pyobject *trace = skip_our_frames(py, raised[2], &ours);
    /* A handler runs in the main thread alone. */
    int passes = raised[1] && (interrupts || !ours) && py->thread_ident() == pb_frames_main_ident(py);
    if (passes && keep_to_raise(py, raised[1], trace) < 0)
        py->err_clear();
    pb_pyobject *rest[] = {raised[0], passes ? NULL : raised[1], passes ? NULL : trace};
    for (int i = 0; i < 3; i++)
        if (rest[i])
            py->decref(rest[i]);
}

/* signal_action(number): the bytes of its struct sigaction. set_signal_action(number, bytes). */
static pb_pyobject *signal_action(pb_pyobject *self, pb_pyobject *number)
{
    const struct pb_python *py = pb_python_here();
    struct sigaction action = {0};
    (void)self;

    long n = py->int_as(number);
    if (py->err_occurred())
        return NULL;
    int r = sigaction((int)n, NULL, &action);
    return py->bytes_from((const char *)&action, r < 0 ? 0 : (long)sizeof(action));
}

static pb_pyobject *set_signal_action(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *number = py->tuple_get(args, 0), *data = number ? py->tuple_get(args, 1) : NULL;
    struct sigaction action;
    char *bytes;
    long size, n = data ? py->int_as(number) : 0;
    (void)self;

    if (!data || py->err_occurred() || py->bytes_as(data, &bytes, &size) < 0)
        return NULL;
    if (size == sizeof(action)) {
        memcpy(&action, bytes, sizeof(action));
        sigaction((int)n, &action, NULL);
    }
    py->incref(py->none);
    return py->none;
}

/* (begin, code, last or None, names, end): code that a client sent, evaluated from here so that no frame of
 * ours is between it and the program's. end(value, kind, error, trace) gets what came of it. Neither begin
 * nor end raises. */
static void run_code(const struct pb_python *py, pb_pyobject *given)
{
    pb_pyobject *part[5], *raised[3] = {0}, *value = NULL;

    for (int i = 0; i < 5; i++)
        if (!(part[i] = py->tuple_get(given, i)))
            return;
    pb_pyobject *started = py->call(part[0], (void *)NULL);
    if (started)
        value = py->eval_code(part[1], part[3], part[3]);
    if (value && part[2] != py->none) {
        py->decref(value);
        value = py->eval_code(part[2], part[3], part[3]);
    }
    py->err_fetch(&raised[0], &raised[1], &raised[2]);
    if (raised[0])
        py->err_normalize(&raised[0], &raised[1], &raised[2]);
    pb_pyobject *ended =
        py->call(part[4], value ? value : py->none, raised[0] ? raised[0] : py->none,
                 raised[1] ? raised[1] : py->none, raised[2] ? raised[2] : py->none, (void *)NULL);
    pb_pyobject *all[] = {started, value, ended, raised[0], raised[1], raised[2]};
    for (int i = 0; i < 6; i++)
        if (all[i])
            py->decref(all[i]);
    py->err_clear();
}

/* In the main thread, between two bytecodes. An exception of the function is for the program: one of its
 * signal handlers ran meanwhile. */
static int call_pending(void *unused)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *function = __atomic_exchange_n(&pending, NULL, __ATOMIC_ACQ_REL);
    (void)unused;

    if (!py || !function)
        return 0;
    __atomic_store_n(&in_call, 1, __ATOMIC_RELEASE);
    pb_pyobject *result = NULL;
    if ((const void *)pb_type_of(function, pb_module_header(py)) == py->tuple_type) {
        run_code(py, function);
        py->incref(result = py->none);
    } else {
        result = py->call(function, (void *)NULL);
    }
    __atomic_store_n(&in_call, 0, __ATOMIC_RELEASE);
    py->decref(function);
    if (result)
        py->decref(result);
    return result ? raise_kept(py) : -1;
}

/* interrupt(ident): raises the client's interrupt in that thread, which runs code of a client. */
static pb_pyobject *interrupt(pb_pyobject *self, pb_pyobject *ident)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    unsigned long long number = py->uint64_as(ident);
    if (py->err_occurred())
        return NULL;
    py->set_async_exc((unsigned long)number, pb_module_interrupt(py));
    py->incref(py->none);
    return py->none;
}

/* pend(function), or pend of a tuple for run_code: the main thread calls it, once, as soon as it can. False:
 * one is pending already, or runs, or Python accepts no more. Calls do not nest: Python 3.11, while one runs
 * in a traced thread, would search for the other for ever. */
static pb_pyobject *pend(pb_pyobject *self, pb_pyobject *function)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *none = NULL;
    (void)self;

    if (__atomic_load_n(&in_call, __ATOMIC_ACQUIRE))
        return py->bool_from(0);
    py->incref(function);
    if (!__atomic_compare_exchange_n(&pending, &none, function, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        py->decref(function);
        return py->bool_from(0);
    }
    if (py->add_pending_call(call_pending, NULL) == 0)
        return py->bool_from(1);
    function = __atomic_exchange_n(&pending, NULL, __ATOMIC_ACQ_REL);
    if (function)
        py->decref(function);
    return py->bool_from(0);
}

/* unpend(): cancels it. False: it was called, or runs. */
static pb_pyobject *unpend(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *function = __atomic_exchange_n(&pending, NULL, __ATOMIC_ACQ_REL);
    (void)self;
    (void)unused;

    if (function)
        py->decref(function);
    return py->bool_from(function != NULL);
}

/* detached(): how often the agent was detached, for comparing with an earlier value. */
static pb_pyobject *count_detached(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->int_from(__atomic_load_n(&detached, __ATOMIC_ACQUIRE));
}

/* --- what is due ----------------------------------------------------------------------------------- */

/* In a thread of ours. The function itself sets its next time. */
static void *call_due(void *unused)
{
    struct pb_python py;
    struct pb_entry entry;
    (void)unused;

    if (pb_python_known(&py) < 0 || pb_enter(&py, &entry) < 0)
        return NULL;
    pb_pyobject *shared = pb_module_shared(&py), *function = shared ? py.dict_get(shared, DUE) : NULL;
    if (function) {
        py.incref(function);
        pb_pyobject *result = py.call(function, (void *)NULL);
        if (result)
            py.decref(result);
        py.decref(function);
    }
    py.err_clear();
    pb_leave(&py, &entry);
    return NULL;
}

/* Has a thread of ours call the function that is due (due_at). */
static int turn(struct pb_agent *agent, uint64_t now_ns)
{
    uint64_t due = __atomic_load_n(&due_ms, __ATOMIC_ACQUIRE), now = now_ns / PB_NS_PER_MS;
    (void)agent;

    if (!due)
        return -1;
    if (due > now)
        return (int)(due - now < MAX_MS ? due - now : MAX_MS);
    /* A time that was set meanwhile stays. */
    if (__atomic_compare_exchange_n(&due_ms, &due, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
        pb_spawn(call_due, NULL, NULL) < 0)
        __atomic_store_n(&due_ms, now + 100, __ATOMIC_RELEASE);
    return 0;
}

static void forget(void)
{
    due_ms = 0;
}

const struct pb_part pb_part_prompt = {.turn = turn, .end = end, .forget = forget};

/* due_at(ms): when shared["due"] is to be called next, as milliseconds() counts; 0: never. */
static pb_pyobject *due_at(pb_pyobject *self, pb_pyobject *ms)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    unsigned long long when = py->uint64_as(ms);
    if (py->err_occurred())
        return NULL;
    __atomic_store_n(&due_ms, when, __ATOMIC_RELEASE);
    pb_wake();
    py->incref(py->none);
    return py->none;
}

/* --- over all objects ------------------------------------------------------------------------------ */

/* Everything below runs without a bytecode, so no other thread gets the GIL meanwhile: no object in the
 * collector's list loses its last other reference, and none is destroyed in our thread. */

enum { KEYS_MOST = 100000 };

/* The key of a dict, or the index of a list or tuple, at which the value is. */
static void describe_place(const struct pb_python *py, pb_pyobject *holder, const pb_pyobject *value,
                           const char *kind, char *ret, size_t size)
{
    const unsigned header = pb_module_header(py);
    /* Not by its name: a class of the program's may have the same. */
    int is_dict = pb_type_of(holder, header) == pb_type_of(pb_module_shared(py), header);
    pb_pyobject *keys = is_dict && py->size_of(holder) <= KEYS_MOST ? py->mapping_keys(holder) : NULL;

    ret[0] = '\0';
    for (long i = 0, n = keys ? py->list_size(keys) : 0; i < n && !ret[0]; i++) {
        pb_pyobject *key = py->list_get(keys, i);
        /* Only a text: comparing others may call code of the program. */
        const char *text = pb_type_of(key, pb_module_header(py)) == py->str_type ? py->utf8_of(key) : NULL;
        if (text && py->dict_get_object(holder, key) == value)
            snprintf(ret, size, "%.100s in a ", text);
        py->err_clear();
    }
    if (keys)
        py->decref(keys);
    long n = strcmp(kind, "list") == 0 ? py->list_size(holder) : 0;
    for (long i = 0; i < n && !ret[0]; i++)
        if (py->list_get(holder, i) == value)
            snprintf(ret, size, "[%ld of %ld] of a ", i, n);
}

/* referrers(gc.get_referrers, value, most): a text and the address of each of the first `most`, in turn. */
static pb_pyobject *referrers(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *function = py->tuple_get(args, 0), *value = py->tuple_get(args, 1);
    pb_pyobject *most = py->tuple_get(args, 2);
    pb_pyobject *all = most ? py->call(function, value, (void *)NULL) : NULL;
    pb_pyobject *found = all ? py->list_new(0) : NULL;
    long limit = all ? py->int_as(most) : 0;
    (void)self;

    for (long i = 0, n = found ? py->list_size(all) : 0; i < n && i < limit; i++) {
        char kind[101], place[160], text[320];
        pb_pyobject *each = py->list_get(all, i), *owner = NULL;
        if (each == args) /* of this call */
            continue;
        const unsigned header = pb_module_header(py);
        snprintf(kind, sizeof(kind), "%.100s", pb_class_name(pb_type_of(each, header), header));
        describe_place(py, each, value, kind, place, sizeof(place));
        if (strcmp(kind, "dict") == 0)
            owner = py->dict_get(each, "__name__");
        const char *module =
            owner && pb_type_of(owner, pb_module_header(py)) == py->str_type ? py->utf8_of(owner) : NULL;
        snprintf(text, sizeof(text), "%s%s%s%.50s", place, kind, module ? " of " : "", module ? module : "");
        py->err_clear();
        pb_pyobject *copy[] = {py->str_from_utf8(text, (long)strlen(text), "replace"),
                               py->int_from((unsigned long)(uintptr_t)each)};
        for (int k = 0; k < 2; k++)
            if (copy[0] && copy[1])
                py->list_append(found, copy[k]);
        for (int k = 0; k < 2; k++)
            if (copy[k])
                py->decref(copy[k]);
    }
    if (all)
        py->decref(all);
    return found;
}

struct pb_py_method pb_prompt_methods[] = {
    {"referrers", (pb_py_function)referrers, PB_METH_VARARGS, NULL},
    {"threads", (pb_py_function)threads, PB_METH_O, NULL},
    {"stack", (pb_py_function)stack, PB_METH_O, NULL},
    {"frame_locals", (pb_py_function)frame_locals, PB_METH_O, NULL},
    {"set_local", (pb_py_function)set_local, PB_METH_VARARGS, NULL},
    {"pend", (pb_py_function)pend, PB_METH_O, NULL},
    {"interrupt", (pb_py_function)interrupt, PB_METH_O, NULL},
    {"raise_later", (pb_py_function)raise_later, PB_METH_VARARGS, NULL},
    {"signal_action", (pb_py_function)signal_action, PB_METH_O, NULL},
    {"set_signal_action", (pb_py_function)set_signal_action, PB_METH_VARARGS, NULL},
    {"unpend", (pb_py_function)unpend, PB_METH_NOARGS, NULL},
    {"due_at", (pb_py_function)due_at, PB_METH_O, NULL},
    {"detached", (pb_py_function)count_detached, PB_METH_NOARGS, NULL},
    {0},
};
