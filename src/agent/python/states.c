/* states: see states.h. */
#include "agent/python/states.h"

#include "agent/core/fork_gate.h"
#include "agent/python/pylayout.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Threads that enter at the same time: a job, its interrupter, a probe. Each makes as many again. */
#define READY 3

#define INTERPRETER   16  /* of a thread state: the pointer to its interpreter, in every version */
#define DEBUG_RAW     'r' /* the first byte of the context of Python's debug hooks for the raw allocator */
#define DEBUG_WRAPPED 8   /* in that context: the allocator below the hooks */
#define MOST_HOOKS    4
#define UNLOCKED      1 /* PyGILState_UNLOCKED: PyGILState_Release frees the thread state */

/* From 3.12 on a thread state has flags. Freeing one that has BOUND_GILSTATE clears what PyGILState_Ensure
 * looks at in the calling thread, whatever thread the state was of. */
#define STATUS_3_12       24
#define STATUS_3_13       32
#define FLAGS             0x1f
#define STATUS_OF_NEW     0x03 /* initialized, bound */
#define STATUS_OF_CURRENT 0x1b /* the same, bound_gilstate, active */
#define BOUND_GILSTATE    0x08

#define LEFT 64

static void *ready[READY], *left[LEFT];
static uint32_t asked;   /* a call of ours is pending */
static int32_t key = -1; /* the pthread key under which Python keeps a thread's state */
static uint32_t flags_are_known;

/* --- making ----------------------------------------------------------------------------------------- */

static char *field(void *state, unsigned offset)
{
    return (char *)state + offset;
}

/* Whose it is, for PyThreadState_SetAsyncExc and all that lists threads. 0: nobody's. Written without the
 * GIL, in one piece, while a thread that has it may read. */
static void set_thread(const struct pb_agent_layout *l, void *state, unsigned long ident, unsigned long id)
{
    __atomic_store_n((unsigned long *)field(state, l->thread_id), ident, __ATOMIC_RELAXED);
    if (l->native_id)
        __atomic_store_n((unsigned long *)field(state, l->native_id), id, __ATOMIC_RELAXED);
}

static int is_of(const struct pb_agent_layout *l, void *state, unsigned long ident)
{
    unsigned long there;
    memcpy(&there, field(state, l->thread_id), sizeof(there));
    return there == ident;
}

/* The main interpreter, if the calling thread is in it. */
static void *find_interpreter(const struct pb_python *py)
{
    void *here;

    memcpy(&here, field(py->current_tstate_checked(), INTERPRETER), sizeof(here));
    if (py->main_interpreter)
        return here == py->main_interpreter() ? here : NULL;
    return py->next_interpreter && !py->next_interpreter(here) ? here : NULL; /* the last is the main one */
}

static uint32_t *status_of(const struct pb_python *py, void *state)
{
    return (uint32_t *)(void *)field(state, py->minor == 12 ? STATUS_3_12 : STATUS_3_13);
}

/* Not yet any thread's: bound when it is taken. Up to 3.11 PyThreadState_New would bind it to this thread. */
static void *make_state(const struct pb_python *py, const struct pb_agent_layout *l, void *interpreter)
{
    void *state = py->minor <= 11 ? py->tstate_prealloc(interpreter) : py->tstate_new(interpreter);
    if (!state)
        return NULL;
    if (!is_of(l, state, py->thread_ident())) { /* another layout */
        py->tstate_delete(state);
        return NULL;
    }
    set_thread(l, state, 0, 0);
    if (py->minor >= 12 && (*status_of(py, state) & FLAGS) == STATUS_OF_NEW &&
        (*status_of(py, py->current_tstate_checked()) & FLAGS) == STATUS_OF_CURRENT)
        __atomic_store_n(&flags_are_known, 1, __ATOMIC_RELAXED);
    return state;
}

static int can_bind(const struct pb_python *py)
{
    if (py->minor >= 12)
        return 1;
    return py->tstate_prealloc && (py->minor == 11  ? py->tstate_bind_3_11 != NULL
                                   : py->minor == 8 ? py->tstate_bind_3_8 && py->runtime
                                                    : py->tstate_bind != NULL);
}

void pb_states_make(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    void *interpreter = l && !py->free_threaded && can_bind(py) ? find_interpreter(py) : NULL;

    for (int i = 0; interpreter && i < LEFT; i++) {
        void *state = __atomic_exchange_n(&left[i], NULL, __ATOMIC_SEQ_CST);
        if (state)
            py->tstate_delete(state);
    }
    for (int i = 0; interpreter && i < READY; i++) {
        void *none = NULL;
        if (__atomic_load_n(&ready[i], __ATOMIC_RELAXED))
            continue;
        void *state = make_state(py, l, interpreter);
        if (!state)
            return;
        if (!__atomic_compare_exchange_n(&ready[i], &none, state, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            py->tstate_delete(state);
    }
}

/* In a thread of the program. */
static int make_for_us(void *unused)
{
    const struct pb_python *py = pb_python_here();
    (void)unused;

    if (py)
        pb_states_make(py);
    __atomic_store_n(&asked, 0, __ATOMIC_SEQ_CST);
    return 0;
}

void pb_states_ask(const struct pb_python *py)
{
    uint32_t none = 0;

    if (!__atomic_compare_exchange_n(&asked, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return;
    int r = py->add_pending_call_anywhere
                ? py->add_pending_call_anywhere(py->main_interpreter(), make_for_us, NULL, 0)
                : py->add_pending_call(make_for_us, NULL);
    if (r != 0)
        __atomic_store_n(&asked, 0, __ATOMIC_SEQ_CST);
}

int pb_states_are_asked_for(void)
{
    return __atomic_load_n(&asked, __ATOMIC_SEQ_CST) != 0;
}

/* --- taking ----------------------------------------------------------------------------------------- */

void *pb_states_take(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    void *state = NULL;

    for (int i = 0; !state && i < READY; i++)
        state = __atomic_exchange_n(&ready[i], NULL, __ATOMIC_SEQ_CST);
    if (!state || !l)
        return NULL;
    set_thread(l, state, py->thread_ident(), (unsigned long)syscall(SYS_gettid));
    /* From 3.12 on taking the GIL binds it. */
    if (py->minor == 11)
        py->tstate_bind_3_11(state);
    else if (py->minor == 8)
        py->tstate_bind_3_8(py->runtime, state);
    else if (py->minor < 11)
        py->tstate_bind(state);
    return state;
}

/* --- leaving ---------------------------------------------------------------------------------------- */

/* There is no function for it: it is the key whose value Python sees. Looked for in a thread of ours. */
static int find_key(const struct pb_python *py, void *state)
{
    int known = __atomic_load_n(&key, __ATOMIC_RELAXED);

    for (int i = 0; known < 0 && i < PTHREAD_KEYS_MAX; i++) {
        if (pthread_getspecific((pthread_key_t)i) != state || pthread_setspecific((pthread_key_t)i, NULL))
            continue;
        if (!py->tstate_of_thread())
            known = i;
        pthread_setspecific((pthread_key_t)i, state);
    }
    __atomic_store_n(&key, known, __ATOMIC_RELAXED);
    return known;
}

static void leave_behind(void *state)
{
    for (int i = 0; i < LEFT; i++) {
        void *none = NULL;
        if (__atomic_compare_exchange_n(&left[i], &none, state, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
            return;
    } /* else it stays until the interpreter ends */
}

void pb_states_leave(const struct pb_python *py)
{
    const struct pb_agent_layout *l = pb_agent_layout_find(py->minor);
    void *state = py->current_tstate_checked();
    int place = -1;

    if (!l || py->free_threaded ||
        (py->minor >= 12 && !__atomic_load_n(&flags_are_known, __ATOMIC_RELAXED)) ||
        !is_of(l, state, py->thread_ident()) || (place = find_key(py, state)) < 0) {
        py->gil_release(UNLOCKED);
        return;
    }
    py->tstate_clear(state);
    /* It stays in the list until it is deleted: a fork or the end of the interpreter clears it once more. */
    if (l->on_delete)
        memset(field(state, l->on_delete), 0, sizeof(void *));
    set_thread(l, state, 0, 0);
    py->save_thread();
    pthread_setspecific((pthread_key_t)place, NULL);
    if (py->minor >= 12)
        *status_of(py, state) &= ~(uint32_t)BOUND_GILSTATE;
    leave_behind(state);
}

/* --- the raw allocator ------------------------------------------------------------------------------ */

struct object {
    uintptr_t known, asked_for;
    int both;
};

static int find_both(struct dl_phdr_info *info, size_t size, void *ret)
{
    struct object *o = ret;
    int known = 0, other = 0;
    (void)size;

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD)
            continue;
        known |= o->known - (info->dlpi_addr + p->p_vaddr) < p->p_memsz;
        other |= o->asked_for - (info->dlpi_addr + p->p_vaddr) < p->p_memsz;
    }
    o->both = known && other;
    return known;
}

static int is_pythons(const struct pb_python *py, uintptr_t function)
{
    struct object o = {.known = (uintptr_t)py->gil_ensure, .asked_for = function};

    pb_fork_gate_each_object(find_both, &o);
    return o.both;
}

enum pb_states_hook pb_states_hook(const struct pb_python *py)
{
    enum pb_states_hook found = PB_STATES_NO_HOOK;
    struct pb_py_allocator raw;

    if (!py->get_allocator)
        return PB_STATES_NO_HOOK;
    pb_fork_gate_enter(); /* from 3.12 on it takes a lock */
    py->get_allocator(PB_PY_MEMORY_RAW, &raw);
    pb_fork_gate_leave();
    /* The context of a function of Python's own has the allocator below it. The debug hooks need no GIL. */
    for (int i = 0; i < MOST_HOOKS; i++) {
        if (!is_pythons(py, (uintptr_t)raw.malloc))
            return PB_STATES_FOREIGN_HOOK;
        if (!raw.ctx)
            return found;
        int debug = *(uintptr_t *)raw.ctx == DEBUG_RAW;
        found = debug ? found : PB_STATES_TRACEMALLOC;
        memcpy(&raw, field(raw.ctx, debug ? DEBUG_WRAPPED : 0), sizeof(raw));
    }
    return PB_STATES_FOREIGN_HOOK;
}

void pb_states_forget(void)
{
    for (int i = 0; i < READY; i++)
        __atomic_store_n(&ready[i], NULL, __ATOMIC_SEQ_CST);
    for (int i = 0; i < LEFT; i++)
        __atomic_store_n(&left[i], NULL, __ATOMIC_SEQ_CST);
    __atomic_store_n(&asked, 0, __ATOMIC_SEQ_CST);
}
