/* own_files: runs Python code of ours that opens files outside of the program's descriptor table.
 *
 * An import opens a file for a moment. In the program's table its number may collide with the program's: one
 * that closes all its descriptors just then (closefrom) and opens others has one of those closed by the
 * import, and a child of fork inherits it. So our Python part's own imports and reads are done in a thread
 * that has left the table. The user's code stays in the program's table. */
#include "agent/core/fds.h"
#include "agent/core/futex.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"

enum { WAITED_FOR, CALLED, NOT_CALLED };

struct deferred_call {
    const struct pb_python *py;
    pb_pyobject *function, *result, *raised[3];
    uint32_t state; /* changed once, by the thread that runs the function */
};

static void finish_call(struct deferred_call *e, uint32_t state)
{
    __atomic_store_n(&e->state, state,
                     __ATOMIC_SEQ_CST); /* from now on the memory may be gone: only its address is used */
    pb_futex_wake(&e->state);
}

static void not_started(void *argument, int error)
{
    (void)error;
    finish_call(argument, NOT_CALLED);
}

static void *run(void *argument)
{
    struct deferred_call *e = argument;
    const struct pb_python *py = e->py;
    struct pb_entry entry;

    pb_thread_name("probing-import");
    if (pb_fds_leave_numbers() < 0 || pb_enter(py, &entry) < 0) {
        finish_call(e, NOT_CALLED);
        return NULL;
    }
    e->result = py->call(e->function, (void *)NULL);
    if (!e->result)
        py->err_fetch(&e->raised[0], &e->raised[1], &e->raised[2]);
    pb_leave(py, &entry);
    finish_call(e, CALLED);
    return NULL;
}

/* The end of the program waits for this thread: it must not begin an import, say. */
static pb_pyobject *refuse(const struct pb_python *py)
{
    py->err_set_object(pb_module_interrupt(py), py->none);
    return NULL;
}

/* own_files(function): returns its result or raises its exception. In a thread that is not one of ours the
 * function is called directly, since that thread may be in an import for which the other thread would wait;
 * also where the kernel refuses a table of our own. */
static pb_pyobject *call_with_own_files(pb_pyobject *self, pb_pyobject *function)
{
    struct deferred_call e = {.py = pb_python_here(), .function = function};
    (void)self;

    if (!pb_enter_is_inside(e.py))
        return e.py->call(function, (void *)NULL);
    if (pb_enter_is_closed())
        return refuse(e.py);
    if (pb_spawn(run, not_started, &e) < 0)
        return e.py->call(function, (void *)NULL);
    void *state = e.py->save_thread();
    while (__atomic_load_n(&e.state, __ATOMIC_SEQ_CST) == WAITED_FOR)
        pb_futex_wait(&e.state, WAITED_FOR);
    e.py->restore_thread(state);
    if (e.state == NOT_CALLED)
        return pb_enter_is_closed() ? refuse(e.py) : e.py->call(function, (void *)NULL);
    if (!e.result)
        e.py->err_restore(e.raised[0], e.raised[1], e.raised[2]);
    return e.result;
}

struct pb_py_method pb_own_files_methods[] = {
    {"own_files", (pb_py_function)call_with_own_files, PB_METH_O, NULL},
    {0},
};
