/* crash_python: the functions of `probing catch` for Python code (python/probing/_catch.py); see crash.h. */
#include "agent/crash/crash.h"
#include "agent/module/module.h"
#include "control/redact.h"
#include "control/settings.h"
#include "table/arena.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Two, so that the one in use is not overwritten; people change settings rarely. */
static char secrets[2][PB_SETTING_LENGTH];
static uint32_t secrets_used;

void pb_crash_set_secrets(const char *words)
{
    uint32_t next = !__atomic_load_n(&secrets_used, __ATOMIC_RELAXED);

    snprintf(secrets[next], sizeof(secrets[next]), "%s", words);
    __atomic_store_n(&secrets_used, next, __ATOMIC_RELEASE);
}

/* is_secret(name): whether a text with that name is a secret. */
static pb_pyobject *is_secret(pb_pyobject *self, pb_pyobject *name)
{
    const struct pb_python *py = pb_python_here();
    long length = 0;
    (void)self;

    const char *text = py->utf8_size(name, &length);
    if (!text)
        return NULL;
    return py->bool_from(
        pb_redact_name(secrets[__atomic_load_n(&secrets_used, __ATOMIC_ACQUIRE)], text, (size_t)length));
}

/* crash_number(): the id for the next rows about one crash. */
static pb_pyobject *next_crash_number(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->int_from((unsigned long)pb_crash_number());
}

/* thread_id(): the kernel's tid of this thread. */
static pb_pyobject *thread_id(pb_pyobject *self, pb_pyobject *unused)
{
    (void)self;
    (void)unused;
    return pb_python_here()->int_from((unsigned long)syscall(SYS_gettid));
}

/* keep_rows(ms): waits until the recorded rows outlive the process, at most that long. */
static pb_pyobject *keep_rows(pb_pyobject *self, pb_pyobject *limit)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    long ms = py->int_as(limit);
    if (py->err_occurred())
        return NULL;
    void *state = py->save_thread();
    pb_crash_keep_rows((unsigned)(ms < 0 ? 0 : ms > 10000 ? 10000 : ms));
    py->restore_thread(state);
    py->incref(py->none);
    return py->none;
}

struct pb_py_method pb_crash_methods[] = {
    {"is_secret", (pb_py_function)is_secret, PB_METH_O, NULL},
    {"crash_number", (pb_py_function)next_crash_number, PB_METH_NOARGS, NULL},
    {"thread_id", (pb_py_function)thread_id, PB_METH_NOARGS, NULL},
    {"keep_rows", (pb_py_function)keep_rows, PB_METH_O, NULL},
    {0},
};
