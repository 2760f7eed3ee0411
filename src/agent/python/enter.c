/* enter: see enter.h. */
#include "agent/python/enter.h"

#include "agent/core/agent_clock.h"
#include "agent/core/fork_gate.h"
#include "agent/module/module.h"
#include "agent/python/gil.h"
#include "agent/python/states.h"

#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* More than jobs, channels and their interrupters together. */
#define PLACES 64

/* How long the end of the program waits: for a user's code that does not react, for one that still uses the
 * CPU, and for code of our own. That may hold a lock of the interpreter (of an import, of a type), for which
 * the end would wait for ever once the thread is refused its return; it is over as soon as it gets the
 * CPU. */
#define END_MS      100
#define END_BUSY_MS 1000
#define END_OURS_MS 3000

/* How long a thread waits for its turn where there is no GIL. */
#define TURN_MS 10000

/* How long a thread of the program has to make the first thread state, under tracemalloc. */
#define MADE_MS 250

static const struct timespec moment = {.tv_nsec = 500000}, gil_is_taken = {.tv_nsec = 2000000};

enum { OPEN, CLOSED, CLOSED_WITH_INTERPRETER };
static uint32_t door;
static uint32_t entering;          /* threads between the check of `door` and their thread state */
static unsigned long left[PLACES]; /* threads that were inside when this process was forked */

/* What a thread runs. Code of a user may be interrupted; while that happens the thread does not leave it. */
enum { OURS, THEIRS, STRIKING, STRUCK };

/* Threads that have a thread state. */
static struct inside_place {
    unsigned long ident; /* as Python names it; 1: not known yet, 0: a free place */
    pid_t tid;
    uint32_t code;
} inside[PLACES];

static unsigned long turn; /* the thread that has it; 0: none */

int pb_enter_find(struct pb_python *ret, char *why, size_t why_size)
{
    const char *missing = "";

    int r = pb_python_find(ret, &missing);
    if (r == -ENOSYS)
        snprintf(why, why_size, "this process's Python lacks %s", missing);
    else if (r < 0)
        snprintf(why, why_size, "there is no Python in this process");
    else if (!pb_python_usable(ret))
        snprintf(why, why_size, "its Python is starting up or shutting down");
    else
        return 0;
    return r < 0 ? r : -EAGAIN;
}

static uint32_t gil_made;

static int create_gil(void *py)
{
    ((struct pb_python *)py)->init_threads();
    __atomic_store_n(&gil_made, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Only the main thread may make the GIL: if we did, two threads would run at once. It does so between two
 * bytecodes. */
int pb_enter_await_gil(const struct pb_python *py, int (*wanted)(const void *), const void *argument)
{
    static struct pb_python kept; /* outlives the caller: the call may come late */

    if (py->minor > 6 || !py->threads_initialized || __atomic_load_n(&gil_made, __ATOMIC_SEQ_CST))
        return 1;
    /* PyEval_InitThreads makes the GIL and then takes it: a thread that gets it in between leaves the main
     * thread without a thread state. So we wait until the call is over, not until there is a GIL; for a GIL
     * that the program made itself we can only wait some time. */
    if (py->threads_initialized()) {
        nanosleep(&gil_is_taken, NULL);
        return 1;
    }
    kept = *py;
    py->add_pending_call(create_gil, &kept);
    while (!__atomic_load_n(&gil_made, __ATOMIC_SEQ_CST) && wanted(argument))
        nanosleep(&moment, NULL);
    return __atomic_load_n(&gil_made, __ATOMIC_SEQ_CST) != 0;
}

/* What a thread has used of the CPU, ns. By the kernel's number: there may be no such thread any more. */
static uint64_t cpu_of(pid_t tid)
{
    struct timespec used;
    const clockid_t clock =
        (clockid_t)((~(unsigned)tid << 3) | 6); /* its own time, as the scheduler counts */

    return tid > 0 && clock_gettime(clock, &used) == 0
               ? (uint64_t)used.tv_sec * PB_NS_PER_S + (uint64_t)used.tv_nsec
               : 0;
}

/* From 3.10.8 on a thread that waits for the GIL writes to the interpreter when it is refused, and 3.10 frees
 * that memory (later versions keep it): so the end waits until those of ours are gone. */
static int frees_what_waiters_use(const struct pb_python *py)
{
    return py && py->minor == 10;
}

/* Where the interpreter ends, and no thread gets the GIL any more: threads that wait for it end soon. One
 * that sleeps elsewhere uses no CPU. */
static void await_refused(uint64_t quiet_ms, uint64_t limit_ms)
{
    const uint64_t began = pb_now_ns();
    uint64_t now = began, busy = began, cpu = 0;

    while (now - began <= limit_ms * PB_NS_PER_MS && now - busy <= quiet_ms * PB_NS_PER_MS) {
        unsigned found = 0;
        uint64_t used = 0;
        for (unsigned i = 0; i < PLACES; i++) {
            const pid_t tid = __atomic_load_n(&inside[i].tid, __ATOMIC_RELAXED);
            if (!__atomic_load_n(&inside[i].ident, __ATOMIC_SEQ_CST) ||
                syscall(SYS_tgkill, getpid(), tid, 0) < 0)
                continue;
            used += cpu_of(tid);
            found++;
        }
        if (!found)
            break;
        nanosleep(&moment, NULL);
        now = pb_now_ns();
        if (used != cpu)
            busy = now;
        cpu = used;
    }
}

static void close_door(pb_pyobject *capsule)
{
    (void)capsule;
    const uint32_t before = __atomic_exchange_n(&door, CLOSED_WITH_INTERPRETER, __ATOMIC_SEQ_CST);
    pb_states_forget();
    /* Getting their thread states needs no GIL, and the interpreter still has room for them. */
    for (uint64_t until = pb_now_ns() + END_MS * PB_NS_PER_MS;
         __atomic_load_n(&entering, __ATOMIC_SEQ_CST) && pb_now_ns() < until;)
        nanosleep(&moment, NULL);
    if (!frees_what_waiters_use(pb_python_here()))
        return;
    if (before == OPEN) /* the end began before our Python code had registered pb_enter_end */
        await_refused(END_OURS_MS, END_OURS_MS);
    else
        await_refused(END_MS, END_BUSY_MS);
}

static int exit_is_watched;

/* At the end of an interpreter of 3.6 or 3.7, after which Python has forgotten this function. */
static void after_end(void)
{
    exit_is_watched = 0;
    pb_states_forget();
}

/* Once per interpreter: the dict has the only reference. */
static void watch_end(const struct pb_python *py)
{
    static const char name[] = "probing.end";
    char key[48];

    if (py->at_exit && !exit_is_watched)
        exit_is_watched = py->at_exit(after_end) == 0;
    pb_pyobject *dict = py->interpreter_dict ? py->interpreter_dict(py->main_interpreter()) : NULL;
    if (!dict)
        return;
    snprintf(key, sizeof(key), "probing end %p", (const void *)&door); /* another agent has its own key */
    if (py->dict_get(dict, key))
        return;
    pb_pyobject *capsule = py->capsule_new(&door, name, close_door);
    if (!capsule || py->dict_set(dict, key, capsule) < 0)
        py->err_clear();
    if (capsule)
        py->decref(capsule);
}

static int watch_end_pending(void *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)unused;

    if (py)
        watch_end(py);
    return 0;
}

/* The first thread may still wait for the GIL when the program ends: the main thread does this before,
 * between two bytecodes or at the beginning of the end. */
static void watch_end_soon(const struct pb_python *py)
{
    static pid_t asked_in;

    if (frees_what_waiters_use(py) && __atomic_exchange_n(&asked_in, getpid(), __ATOMIC_SEQ_CST) != getpid())
        py->add_pending_call(watch_end_pending, NULL);
}

static int is_open(const struct pb_python *py)
{
    uint32_t state = __atomic_load_n(&door, __ATOMIC_SEQ_CST);

    if (state == CLOSED || !pb_python_usable(py))
        return 0;
    /* A host that ended its Python has started another. */
    if (state == CLOSED_WITH_INTERPRETER)
        __atomic_store_n(&door, OPEN, __ATOMIC_SEQ_CST);
    return 1;
}

static int take_place(unsigned *ret)
{
    for (unsigned i = 0; i < PLACES; i++) {
        unsigned long none = 0;
        if (__atomic_compare_exchange_n(&inside[i].ident, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
            inside[i].code = OURS;
            __atomic_store_n(&inside[i].tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
            *ret = i;
            return 0;
        }
    }
    return -EAGAIN;
}

/* From 3.8 to 3.11 the child of a fork first takes the lock of the list of thread states, and waits for ever
 * when a thread of ours had it at that moment. From 3.12 on fork itself takes that lock, and must not wait
 * for a thread that waits for it. */
static int needs_fork_gate(const struct pb_python *py)
{
    return py->minor >= 8 && py->minor <= 11;
}

/* Whether a thread state may be made without the GIL, by the program's allocator (states.h). */
static int may_allocate(const struct pb_python *py, uint64_t began)
{
    enum pb_states_hook hook = py->free_threaded ? PB_STATES_NO_HOOK : pb_states_hook(py);

    if (hook == PB_STATES_NO_HOOK)
        return 1;
    pb_states_ask(py);
    /* No thread runs Python code: so none calls tracemalloc.stop() now, and the request did not run
     * either. */
    return hook == PB_STATES_TRACEMALLOC && pb_now_ns() - began > MADE_MS * PB_NS_PER_MS &&
           pb_gil_holder(py) == 0;
}

/* Whether no thread has a thread state: the last one that ran Python has ended, and the process lives on by
 * others. For the next one 3.11 and 3.12 use memory of the interpreter's own, which in the child of a fork by
 * another than the main thread still has the main thread's state in it: they end the process. */
static int has_no_states(const struct pb_python *py)
{
    return (py->minor == 11 || py->minor == 12) && py->first_tstate &&
           !py->first_tstate(py->main_interpreter());
}

/* Makes the calling thread one of Python's, with *ret to take the GIL with; NULL: it has the GIL. -EAGAIN: it
 * has to wait until there is a thread state for it. */
static int take_state(const struct pb_python *py, uint64_t began, void **ret)
{
    const int split = py->interpreter_dict && py->main_interpreter; /* if close_door will be called */

    if ((*ret = pb_states_take(py)))
        return 0;
    if (!may_allocate(py, began))
        return -EAGAIN;
    if (has_no_states(py))
        return -ESHUTDOWN;
    if (needs_fork_gate(py))
        pb_fork_gate_enter();
    if (!split)
        py->gil_ensure();
    else
        *ret = py->tstate_new(py->main_interpreter());
    if (needs_fork_gate(py))
        pb_fork_gate_leave();
    return split && !*ret ? -ENOMEM : 0;
}

static int take_gil(const struct pb_python *py, uint64_t began)
{
    void *tstate = NULL;

    __atomic_add_fetch(&entering, 1, __ATOMIC_SEQ_CST);
    int r = is_open(py) ? take_state(py, began, &tstate) : -ESHUTDOWN;
    __atomic_sub_fetch(&entering, 1, __ATOMIC_SEQ_CST);
    if (tstate)
        py->restore_thread(tstate);
    return r;
}

int pb_enter(const struct pb_python *py, struct pb_entry *ret)
{
    const uint64_t began = pb_now_ns();

    int r = take_place(&ret->place);
    if (r < 0)
        return r;
    watch_end_soon(py);
    while ((r = take_gil(py, began)) == -EAGAIN)
        nanosleep(&moment, NULL);
    if (r < 0) {
        __atomic_store_n(&inside[ret->place].ident, 0, __ATOMIC_SEQ_CST);
        return r;
    }
    __atomic_store_n(&inside[ret->place].ident, py->thread_ident(), __ATOMIC_SEQ_CST);
    if (pb_enter_is_closed()) { /* since the first check */
        pb_leave(py, ret);
        return -ESHUTDOWN;
    }
    watch_end(py);
    pb_states_make(py);
    return 0;
}

void pb_leave(const struct pb_python *py, const struct pb_entry *entry)
{
    pb_states_leave(py);
    __atomic_store_n(&inside[entry->place].ident, 0, __ATOMIC_SEQ_CST);
}

/* The calling thread's; NULL: it has not entered. */
static struct inside_place *own_place(const struct pb_python *py)
{
    const unsigned long self = py->thread_ident();

    for (unsigned i = 0; i < PLACES; i++)
        if (__atomic_load_n(&inside[i].ident, __ATOMIC_SEQ_CST) == self)
            return &inside[i];
    return NULL;
}

int pb_enter_is_inside(const struct pb_python *py)
{
    return own_place(py) != NULL;
}

/* --- code of a user --------------------------------------------------------------------------------- */

int pb_enter_begin_code(const struct pb_python *py)
{
    struct inside_place *p = own_place(py);

    if (!p)
        return OURS;
    if (pb_enter_is_closed())
        return -ESHUTDOWN;
    return (int)__atomic_exchange_n(&p->code, THEIRS, __ATOMIC_SEQ_CST);
}

int pb_enter_end_code(const struct pb_python *py, int before)
{
    struct inside_place *p = own_place(py);
    uint32_t now;

    if (!p || before < 0)
        return 0;
    for (;;) {
        now = __atomic_load_n(&p->code, __ATOMIC_SEQ_CST);
        uint32_t next = before == OURS ? OURS : now == STRUCK || before != THEIRS ? STRUCK : THEIRS;
        if (now != STRIKING &&
            __atomic_compare_exchange_n(&p->code, &now, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return now == STRUCK;
        nanosleep(&moment, NULL); /* without a GIL: the other thread only sets the exception */
    }
}

static void strike(const struct pb_python *py, struct inside_place *p, unsigned long ident)
{
    pb_pyobject *interrupt = pb_module_interrupt(py);
    uint32_t now = __atomic_load_n(&p->code, __ATOMIC_SEQ_CST);

    if ((now != THEIRS && now != STRUCK) ||
        !__atomic_compare_exchange_n(&p->code, &now, STRIKING, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    /* From here on the thread cannot leave, and its thread state stays. */
    int same = __atomic_load_n(&p->ident, __ATOMIC_SEQ_CST) == ident;
    if (same)
        py->set_async_exc(ident, interrupt);
    __atomic_store_n(&p->code, same ? STRUCK : now, __ATOMIC_SEQ_CST);
}

void pb_enter_interrupt(const struct pb_python *py, unsigned long ident)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (ident > 1 && __atomic_load_n(&inside[i].ident, __ATOMIC_SEQ_CST) == ident)
            strike(py, &inside[i], ident);
}

/* --- one at a time ---------------------------------------------------------------------------------- */

int pb_enter_take_turn(const struct pb_python *py)
{
    const unsigned long self = py->thread_ident();
    const uint64_t until = pb_now_ns() + TURN_MS * PB_NS_PER_MS;
    unsigned long none = 0;
    void *state = NULL;
    int taken = 0;

    /* A thread of the program waits for none of ours. */
    if (!py->free_threaded || !own_place(py) || __atomic_load_n(&turn, __ATOMIC_SEQ_CST) == self)
        return 0;
    while (
        !(taken = __atomic_compare_exchange_n(&turn, &none, self, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) &&
        pb_now_ns() < until && !pb_enter_is_closed()) {
        none = 0;
        if (!state)
            state = py->save_thread();
        nanosleep(&moment, NULL);
    }
    if (state)
        py->restore_thread(state);
    return taken;
}

void pb_enter_pass_turn(int taken)
{
    if (taken)
        __atomic_store_n(&turn, 0, __ATOMIC_SEQ_CST);
}

/* --- the end ---------------------------------------------------------------------------------------- */

void pb_enter_close(void)
{
    __atomic_store_n(&door, CLOSED, __ATOMIC_SEQ_CST);
    pb_states_forget();
}

int pb_enter_is_closed(void)
{
    return __atomic_load_n(&door, __ATOMIC_SEQ_CST) != OPEN;
}

/* Threads that are entering or inside. */
struct crowd {
    unsigned ours, theirs; /* by the code that they run */
    uint64_t cpu;
};

/* With `interrupt` a user's code gets a KeyboardInterrupt, and none of ours: nothing would catch it there,
 * and Python prints one that strikes in a callback. */
static struct crowd look_inside(const struct pb_python *py, int interrupt)
{
    struct crowd found = {.ours = __atomic_load_n(&entering, __ATOMIC_SEQ_CST)};

    for (unsigned i = 0; i < PLACES; i++) {
        unsigned long ident = __atomic_load_n(&inside[i].ident, __ATOMIC_SEQ_CST);
        if (!ident)
            continue;
        if (ident > 1 && interrupt)
            strike(py, &inside[i], ident);
        if (__atomic_load_n(&inside[i].code, __ATOMIC_SEQ_CST) == OURS)
            found.ours++;
        else
            found.theirs++;
        found.cpu += cpu_of(__atomic_load_n(&inside[i].tid, __ATOMIC_RELAXED));
    }
    return found;
}

void pb_enter_end(const struct pb_python *py)
{
    const uint64_t began = pb_now_ns();
    uint64_t busy = began, cpu = 0;

    for (unsigned round = 0;; round++) {
        const struct crowd found = look_inside(py, round % 16 == 0);
        const uint64_t now = pb_now_ns();

        if (!found.ours && !found.theirs)
            break;
        if (found.cpu != cpu)
            busy = now;
        cpu = found.cpu;
        if (now - began > (found.ours ? END_OURS_MS : END_BUSY_MS) * PB_NS_PER_MS ||
            (!found.ours && now - busy > END_MS * PB_NS_PER_MS))
            break;
        void *state = py->save_thread();
        nanosleep(&moment, NULL);
        py->restore_thread(state);
    }
}

void pb_enter_forget(void)
{
    door = OPEN;
    entering = 0;
    turn = 0;
    pb_states_forget();
    for (unsigned i = 0; i < PLACES; i++) {
        left[i] = inside[i].ident;
        inside[i] = (struct inside_place){0};
    }
}

int pb_enter_left_behind(unsigned long ident)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (ident && left[i] == ident)
            return 1;
    return 0;
}
