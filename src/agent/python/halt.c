/* halt: see halt.h. */
#include "agent/python/halt.h"

#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"
#include "agent/core/part.h"
#include "agent/module/module.h"
#include "agent/python/frames.h"

#include <stdint.h>

#define THREADS_MAX 8192
#define TURN_MS     100
/* The events of a trace function. */
enum { TRACE_CALL, TRACE_EXCEPTION, TRACE_LINE, TRACE_RETURN };

static uint32_t word;  /* odd: wanted threads stop; changes when they are released */
static uint64_t until; /* when they continue by themselves, ns */
/* Written by the thread that started a halt, with the GIL or, without one, before the word is odd; read by
 * all. */
static unsigned long wanted[THREADS_MAX];
static uint8_t stopped[THREADS_MAX];
static uint32_t nwanted;

static int find_wanted(unsigned long ident)
{
    uint32_t n = __atomic_load_n(&nwanted, __ATOMIC_ACQUIRE);

    for (uint32_t i = 0; i < n; i++)
        if (__atomic_load_n(&wanted[i], __ATOMIC_RELAXED) == ident)
            return (int)i;
    return -1;
}

static void let_go(uint32_t from)
{
    if ((from & 1) &&
        __atomic_compare_exchange_n(&word, &from, from + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        pb_futex_wake(&word);
}

static void release_all(void)
{
    let_go(__atomic_load_n(&word, __ATOMIC_ACQUIRE));
}

static void end(struct pb_agent *agent)
{
    (void)agent;
    release_all();
}

static void forget(void)
{
    word = 0;
    nwanted = 0;
}

const struct pb_part pb_part_halt = {.end = end, .forget = forget};

static void wait_for_end(uint32_t is)
{
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == is) {
        if (pb_now_ns() > __atomic_load_n(&until, __ATOMIC_ACQUIRE))
            let_go(is);
        else
            pb_futex_wait_ms(&word, is, TURN_MS);
    }
}

/* In a thread of the program, with the GIL. */
static void stop_here(const struct pb_python *py)
{
    uint32_t is = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
    int i = is & 1 ? find_wanted(py->thread_ident()) : -1;

    if (i < 0)
        return;
    __atomic_store_n(&stopped[i], 1, __ATOMIC_RELEASE);
    void *state = py->save_thread();
    wait_for_end(is);
    py->restore_thread(state);
}

/* PyTrace functions: up to 3.11. Removed with the halt, so that the thread is as fast as before. */
static int on_trace(void *object, void *frame, int what, void *argument)
{
    const struct pb_python *py = pb_python_here();
    (void)object;
    (void)frame;
    (void)argument;

    if (what == TRACE_EXCEPTION)
        return 0;
    stop_here(py);
    py->set_trace(NULL, NULL);
    return 0;
}

/* halt_event(*what): the callback of sys.monitoring, from 3.12 on. */
static pb_pyobject *halt_event(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    (void)self;
    (void)args;

    stop_here(py);
    py->incref(py->none);
    return py->none;
}

/* The trace function of a thread, a new reference. sys.gettrace is called with that thread's state, since
 * there is no other way; it runs no Python code and does not release the GIL. */
static pb_pyobject *trace_function_of(const struct pb_python *py, void *tstate, pb_pyobject *gettrace)
{
    void *own = py->swap_tstate(tstate);
    pb_pyobject *found = py->call(gettrace, (void *)NULL);

    py->swap_tstate(own);
    return found;
}

/* halt_trace(ident, sys.gettrace): makes a thread stop, up to 3.11. "": it will; else the reason why not. */
static pb_pyobject *halt_trace(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *number = py->tuple_get(args, 0), *gettrace = py->tuple_get(args, 1);
    const char *why = "";
    (void)self;

    unsigned long ident = number && gettrace ? (unsigned long)py->uint64_as(number) : 0;
    if (py->err_occurred())
        return NULL;
    void *tstate = pb_frames_tstate(py, ident);
    if (!tstate || !py->set_trace || !py->swap_tstate)
        return py->str_from("its state cannot be read", 24);
    pb_pyobject *found = trace_function_of(py, tstate, gettrace);
    if (!found)
        return NULL;
    if (found != py->none) {
        why = "it has a trace function of its own (a debugger, coverage)";
    } else if (py->set_trace_of) { /* audit hooks run for the calling thread, not for that one */
        if (py->set_trace_of(tstate, on_trace, NULL) < 0) {
            py->err_clear();
            why = "an audit hook forbids it";
        }
    } else {
        void *own = py->swap_tstate(tstate);
        py->set_trace(on_trace, NULL);
        py->swap_tstate(own);
    }
    py->decref(found);
    long length = 0;
    while (why[length])
        length++;
    return py->str_from(why, length);
}

/* halt_begin(idents, limit_ms): these threads stop in the callback from now on, in addition to those of a
 * halt in progress. False: there are too many. */
static pb_pyobject *halt_begin(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *idents = py->tuple_get(args, 0), *limit = idents ? py->tuple_get(args, 1) : NULL;
    uint32_t is = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
    (void)self;

    long ms = limit ? py->int_as(limit) : 0;
    if (!limit || py->err_occurred())
        return NULL;
    if (!(is & 1))
        __atomic_store_n(&nwanted, 0, __ATOMIC_RELEASE);
    uint32_t n = __atomic_load_n(&nwanted, __ATOMIC_ACQUIRE);
    for (long i = 0; i < py->list_size(idents); i++) {
        unsigned long ident = (unsigned long)py->uint64_as(py->list_get(idents, i));
        if (py->err_occurred())
            return NULL;
        if (find_wanted(ident) >= 0)
            continue;
        if (n == THREADS_MAX)
            return py->bool_from(0);
        __atomic_store_n(&stopped[n], 0, __ATOMIC_RELAXED);
        __atomic_store_n(&wanted[n], ident, __ATOMIC_RELAXED);
        __atomic_store_n(&nwanted, ++n, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&until, pb_now_ns() + (uint64_t)ms * PB_NS_PER_MS, __ATOMIC_RELEASE);
    if (!(is & 1))
        __atomic_store_n(&word, is + 1, __ATOMIC_RELEASE);
    return py->bool_from(1);
}

/* halt_keep(limit_ms): the main thread is still alive: extends the limit. False: the threads were released
 * meanwhile. */
static pb_pyobject *halt_keep(pb_pyobject *self, pb_pyobject *limit)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    long ms = py->int_as(limit);
    if (py->err_occurred())
        return NULL;
    __atomic_store_n(&until, pb_now_ns() + (uint64_t)ms * PB_NS_PER_MS, __ATOMIC_RELEASE);
    return py->bool_from(__atomic_load_n(&word, __ATOMIC_ACQUIRE) & 1);
}

static pb_pyobject *halt_end(pb_pyobject *self, pb_pyobject *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)self;
    (void)unused;

    release_all();
    py->incref(py->none);
    return py->none;
}

/* halted(ident): whether that thread has stopped in the present halt. */
static pb_pyobject *is_halted(pb_pyobject *self, pb_pyobject *ident)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    unsigned long number = (unsigned long)py->uint64_as(ident);
    if (py->err_occurred())
        return NULL;
    int i = __atomic_load_n(&word, __ATOMIC_ACQUIRE) & 1 ? find_wanted(number) : -1;
    return py->bool_from(i >= 0 && __atomic_load_n(&stopped[i], __ATOMIC_ACQUIRE));
}

struct pb_py_method pb_halt_methods[] = {
    {"halt_event", (pb_py_function)halt_event, PB_METH_VARARGS, NULL},
    {"halt_trace", (pb_py_function)halt_trace, PB_METH_VARARGS, NULL},
    {"halt_begin", (pb_py_function)halt_begin, PB_METH_VARARGS, NULL},
    {"halt_keep", (pb_py_function)halt_keep, PB_METH_O, NULL},
    {"halt_end", (pb_py_function)halt_end, PB_METH_NOARGS, NULL},
    {"halted", (pb_py_function)is_halted, PB_METH_O, NULL},
    {0},
};
