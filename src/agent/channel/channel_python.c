/* channel_python: the Python side of a channel's thread: calls serve() of the Python part with the kind, the
 * arguments and functions for the channel. Each function knows the channel by its number, and stays valid as
 * long as it is referenced: on a closed channel reads end and writes fail. Functions that wait release the
 * GIL. */
#include "agent/channel/channel.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"
#include "agent/python/job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PY_FILE_INPUT 257
#define METH_VARARGS  1
#define METH_NOARGS   4
#define PIECE         (16u << 10) /* on the stack of whichever thread reads */

static uint64_t number_of(const struct pb_python *py, pb_pyobject *self)
{
    return (uint64_t)py->int_as(self);
}

/* The argument at that place as a number; fallback where it is missing. */
static long number_at(const struct pb_python *py, pb_pyobject *args, long i, long fallback)
{
    return i < py->size_of(args) ? py->int_as(py->tuple_get(args, i)) : fallback;
}

static pb_pyobject *none_of(const struct pb_python *py)
{
    py->incref(py->none);
    return py->none;
}

static pb_pyobject *raise_interrupt(const struct pb_python *py)
{
    pb_pyobject *text = py->str_from("", 0);

    py->err_set_object(pb_module_interrupt(py), text);
    if (text)
        py->decref(text);
    return NULL;
}

/* read(timeout_ms=-1): bytes; b"" when no more will come; None when none came in time. Raises
 * KeyboardInterrupt when the client interrupts. */
static pb_pyobject *channel_read(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;
    char bytes[PIECE];

    if (pb_python_known(&py) < 0)
        return NULL;
    uint64_t number = number_of(&py, self);
    long timeout_ms = number_at(&py, args, 0, -1);
    void *state = py.save_thread();
    long n = pb_channel_read(number, bytes, sizeof(bytes), timeout_ms);
    py.restore_thread(state);
    if (n == -EINTR)
        return raise_interrupt(&py);
    return n < 0 ? none_of(&py) : py.bytes_from(bytes, n);
}

/* write(bytes, timeout_ms): how many were accepted; None: an interrupt came first; -1: the client is gone. */
static pb_pyobject *channel_write(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;
    char *bytes;
    long size;

    if (pb_python_known(&py) < 0)
        return NULL;
    pb_pyobject *data = py.tuple_get(args, 0);
    if (!data || py.bytes_as(data, &bytes, &size) < 0)
        return NULL;
    uint64_t number = number_of(&py, self);
    long timeout_ms = number_at(&py, args, 1, 0);
    void *state = py.save_thread(); /* args keeps the bytes alive */
    long n = pb_channel_write(number, bytes, (size_t)size, timeout_ms < 0 ? 0 : timeout_ms);
    py.restore_thread(state);
    return n == -EINTR ? none_of(&py) : n < 0 ? py.int_signed(-1) : py.int_signed(n);
}

/* close(status, reason as str) */
static pb_pyobject *channel_close(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;

    if (pb_python_known(&py) < 0)
        return NULL;
    pb_pyobject *reason = py.tuple_get(args, 1);
    const char *text = reason ? py.utf8_of(reason) : NULL;
    if (!text)
        return NULL;
    pb_channel_close(number_of(&py, self), (int)number_at(&py, args, 0, 0), text);
    return none_of(&py);
}

/* ended(): None while the client is there and the channel open; then the reason, as str. */
static pb_pyobject *channel_ended(pb_pyobject *self, pb_pyobject *unused)
{
    struct pb_python py;
    char reason[200];
    (void)unused;

    if (pb_python_known(&py) < 0)
        return NULL;
    if (!pb_channel_ended(number_of(&py, self), reason, sizeof(reason)))
        return none_of(&py);
    return py.str_from(reason, (long)strlen(reason));
}

static pb_pyobject *channel_interrupted(pb_pyobject *self, pb_pyobject *unused)
{
    struct pb_python py;
    (void)unused;

    return pb_python_known(&py) < 0 ? NULL : py.bool_from(pb_channel_interrupted(number_of(&py, self)));
}

/* interrupt(): as if the client interrupted: for protocols with a message for it. */
static pb_pyobject *channel_interrupt(pb_pyobject *self, pb_pyobject *unused)
{
    struct pb_python py;
    (void)unused;

    if (pb_python_known(&py) < 0)
        return NULL;
    pb_channel_interrupt_code(number_of(&py, self));
    return none_of(&py);
}

/* Lets a pending interrupt strike where it does no harm (as in job_python.c: cancelling it leaves a mark up
 * to 3.12). */
static void let_interrupt_strike(const struct pb_python *py)
{
    pb_pyobject *names = py->dict_new();
    pb_pyobject *code = py->compile("for _ in range(100): pass", "<probing>", PY_FILE_INPUT);

    if (names && code && py->dict_set(names, "__builtins__", py->builtins()) == 0) {
        pb_pyobject *result = py->eval_code(code, names, names);
        if (result)
            py->decref(result);
    }
    py->err_clear();
    if (names)
        py->decref(names);
    if (code)
        py->decref(code);
}

/* evaluate(code, globals, locals): the value, or the exception of the code. Only in here does an interrupt of
 * the client, or its disconnect, raise KeyboardInterrupt. */
static pb_pyobject *channel_evaluate(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;
    pb_pyobject *a[3], *raised[3] = {0};

    if (pb_python_known(&py) < 0)
        return NULL;
    for (int i = 0; i < 3; i++)
        if (!(a[i] = py.tuple_get(args, i)))
            return NULL;
    uint64_t number = number_of(&py, self);
    if (pb_channel_enter_code(number, py.thread_ident()) < 0)
        return raise_interrupt(&py);
    int before = pb_enter_begin_code(&py);
    pb_pyobject *value = before < 0 ? raise_interrupt(&py) : py.eval_code(a[0], a[1], a[2]);
    if (!value)
        py.err_fetch(&raised[0], &raised[1], &raised[2]);
    void *state = py.save_thread();
    int interrupted = pb_channel_leave_code(number);
    py.restore_thread(state);
    interrupted |= pb_enter_end_code(&py, before);
    if (interrupted)
        let_interrupt_strike(&py);
    if (!value)
        py.err_restore(raised[0], raised[1], raised[2]);
    return value;
}

/* PyMethodDefs: Python keeps their addresses, and our code stays mapped. */
static struct {
    const char *name;
    pb_pyobject *(*function)(pb_pyobject *, pb_pyobject *);
    int flags;
    const char *doc;
} methods[] = {
    {"read", channel_read, METH_VARARGS, NULL},
    {"write", channel_write, METH_VARARGS, NULL},
    {"close", channel_close, METH_VARARGS, NULL},
    {"ended", channel_ended, METH_NOARGS, NULL},
    {"evaluate", channel_evaluate, METH_VARARGS, NULL},
    {"interrupted", channel_interrupted, METH_NOARGS, NULL},
    {"interrupt", channel_interrupt, METH_NOARGS, NULL},
};

/* A dict of the functions, bound to that channel. A new reference; NULL with an exception. */
static pb_pyobject *functions_for(const struct pb_python *py, uint64_t number)
{
    pb_pyobject *functions = py->dict_new(), *self = py->int_from((unsigned long)number);
    int r = functions && self ? 0 : -1;

    for (size_t i = 0; r == 0 && i < sizeof(methods) / sizeof(methods[0]); i++) {
        pb_pyobject *function = py->cfunction(&methods[i], self, NULL);
        r = function ? py->dict_set(functions, methods[i].name, function) : -1;
        if (function)
            py->decref(function);
    }
    if (self)
        py->decref(self);
    if (r < 0 && functions)
        py->decref(functions);
    return r < 0 ? NULL : functions;
}

/* With the GIL. 0, or -1 with a sentence in why. */
static int serve_channel(const struct pb_python *py, uint64_t number, char *why, size_t why_size)
{
    const char *kind;
    const uint8_t *arguments;
    size_t size;

    pb_channel_describe(number, &kind, &arguments, &size);
    pb_pyobject *part = pb_job_part(py), *function = part ? py->dict_get(part, "serve") : NULL;
    pb_pyobject *args[] = {function ? py->str_from(kind, (long)strlen(kind)) : NULL,
                           function ? py->bytes_from((const char *)arguments, (long)size) : NULL,
                           function ? functions_for(py, number) : NULL};
    int made = args[0] && args[1] && args[2];
    pb_pyobject *result = made ? py->call(function, args[0], args[1], args[2], (void *)NULL) : NULL;
    int r = result ? 0 : -1;

    if (r < 0)
        pb_module_take_error(py, "the channel's code failed", why, why_size);
    pb_pyobject *all[] = {args[0], args[1], args[2], result, part};
    for (int i = 0; i < 5; i++)
        if (all[i])
            py->decref(all[i]);
    return r;
}

static int is_wanted(const void *number)
{
    return !pb_channel_ended(*(const uint64_t *)number, NULL, 0);
}

void *pb_channel_thread(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    char why[200] = "";
    struct pb_python py;
    struct pb_entry entry;
    int r = -1;

    pb_thread_name("probing-channel");
    pb_thread_take_host_signals();
    if (pb_enter_find(&py, why, sizeof(why)) == 0 && pb_enter_await_gil(&py, is_wanted, &number)) {
        if (pb_enter(&py, &entry) < 0) {
            snprintf(why, sizeof(why), "its Python is shutting down");
        } else {
            if (pb_channel_begin(number))
                r = serve_channel(&py, number, why, sizeof(why));
            pb_leave(&py, &entry);
        }
    }
    pb_channel_thread_end(number, r < 0, why);
    return NULL;
}

void *pb_channel_interrupter(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    unsigned long ident;
    struct pb_python py;
    struct pb_entry entry;

    /* Always claimed: the next interrupt then starts the next interrupter. */
    int usable = pb_python_known(&py) == 0 && pb_enter(&py, &entry) == 0;
    if (pb_channel_claim(number, &ident) == 0) {
        if (usable)
            py.set_async_exc(ident, pb_module_interrupt(&py));
        pb_channel_unclaim(number);
    }
    if (usable)
        pb_leave(&py, &entry);
    return NULL;
}

/* ending(): for atexit. */
static pb_pyobject *ending(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)self;
    (void)unused;

    /* atexit runs with no Python function below it. If there is one, the program calls its exit functions
     * itself (atexit._run_exitfuncs) and goes on. */
    if (!py->eval_frame()) {
        pb_enter_close();
        pb_channels_close("the program ends");
        pb_job_stop_waiting();
        pb_enter_end(py);
    }
    py->incref(py->none);
    return py->none;
}

/* closing(): whether the program ends, and waits for our threads. */
static pb_pyobject *closing(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->bool_from(pb_enter_is_closed());
}

struct pb_py_method pb_channel_methods[] = {
    {"closing", (pb_py_function)closing, PB_METH_NOARGS, NULL},
    {"ending", (pb_py_function)ending, PB_METH_NOARGS, NULL},
    {0},
};
