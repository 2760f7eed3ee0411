/* module_trace: calls of traced functions (`probing trace`), as rows of python.trace_event.
 *
 * python/probing/_trace.py decides which functions are traced and makes Python call the functions of this
 * file when one of them starts, yields, resumes, returns or is left by an exception: by sys.monitoring from
 * 3.12 on, from a trace function before. A call is a row from its start on, and its end is filled in late, so
 * that a call that hangs is seen from outside.
 *
 * No Python object holds state: functions are found by the address of their code, open calls by the thread.
 * Names stay in _probing.shared for good, so that a thread without a GIL never holds a freed name. If nothing
 * records (after detach, in a forked child) the callbacks return DISABLE, which removes them. */
#include "agent/core/agent_clock.h"
#include "agent/core/recorder.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/module/trace_table.h"
#include "table/clock.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FUNCTIONS 512 /* a power of two; at most half of them are used */
#define THREADS   128
#define OPEN_MAX  64 /* open calls of one thread that get rows: deeper recursion is only counted */
#define LOOKED_AT 8
#define SUSPENDED 1024
#define REUSE_NS  (1000 * PB_NS_PER_MS)

enum { WANT_ARGUMENTS = 1, WANT_LOCALS = 2, IS_GENERATOR = 4, IS_INNER = 8 };
enum trace_capture { CAPTURE_ARGUMENTS, CAPTURE_RESULT, CAPTURE_LOCALS };

/* A traced function. Entries are written under functions_lock and read without. */
struct traced_function {
    const void *code; /* NULL: never used; stays set when the function is not traced any more */
    uint32_t serial;  /* differs each time that it is traced; 0: not traced */
    uint32_t flags;
    uint32_t depth;      /* levels of calls below it that are recorded, itself included */
    uint64_t removed_at; /* the entry is reused only a second later: another thread may be reading it */
    uint64_t calls, errors, taken_ns;
    pb_pyobject *name, *location; /* str; kept by _probing.shared */
};

struct open_call {
    struct traced_function *function;
    uint32_t serial, level, most;
    uint64_t id, trace;
    uint64_t generation; /* of the agent whose table has the row; 0: none */
    struct pb_row_ref row;
    int64_t began, suspended_at;
    const void *frame; /* of a generator or coroutine */
};

/* The open calls of one thread; only that thread uses it. */
struct traced_thread {
    int id; /* 0: free */
    uint32_t n, beyond, epoch;
    struct open_call open[OPEN_MAX];
};

static struct traced_function functions[FUNCTIONS];
static uint32_t nlive, last_serial, epoch;
static struct traced_thread *threads; /* THREADS of them, mapped with the first traced function */
static struct open_call suspended[SUSPENDED];
static int suspended_lock, functions_lock; /* held for a few loads; free again in a forked child */
static pb_pyobject *disable, *capture_how; /* kept by _probing.shared */

/* --- tables ---------------------------------------------------------------------------------------- */

static uint32_t hash_of(const void *address)
{
    return (uint32_t)((uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15) >> 40);
}

static struct traced_function *find_function(const void *code)
{
    for (uint32_t i = hash_of(code), n = 0; n < FUNCTIONS; i++, n++) {
        struct traced_function *f = &functions[i % FUNCTIONS];
        const void *found = __atomic_load_n(&f->code, __ATOMIC_ACQUIRE);
        if (found == code)
            return __atomic_load_n(&f->serial, __ATOMIC_ACQUIRE) ? f : NULL;
        if (!found)
            return NULL;
    }
    return NULL;
}

/* The place of a thread that has ended, for another one; NULL: none among the few that are checked. */
static struct traced_thread *take_over(struct traced_thread *all, int id)
{
    pid_t pid = getpid();

    for (uint32_t i = (uint32_t)id, n = 0; n < LOOKED_AT; i++, n++) {
        struct traced_thread *t = &all[i % THREADS];
        int owner = __atomic_load_n(&t->id, __ATOMIC_RELAXED);
        if (syscall(SYS_tgkill, pid, owner, 0) < 0 && errno == ESRCH &&
            __atomic_compare_exchange_n(&t->id, &owner, id, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            t->n = t->beyond = 0;
            return t;
        }
    }
    return NULL;
}

/* The calling thread's; NULL: there are too many threads, or nothing was ever traced. */
static struct traced_thread *find_thread(void)
{
    struct traced_thread *all = __atomic_load_n(&threads, __ATOMIC_ACQUIRE);
    int id = pb_thread_id();

    for (uint32_t i = (uint32_t)id, n = 0; all && n < THREADS; i++, n++) {
        struct traced_thread *t = &all[i % THREADS];
        int owner = __atomic_load_n(&t->id, __ATOMIC_RELAXED);
        if (owner == 0 &&
            !__atomic_compare_exchange_n(&t->id, &owner, id, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED) &&
            owner != id)
            continue;
        if (owner == 0 || owner == id)
            return t;
    }
    return all ? take_over(all, id) : NULL;
}

static int is_alive(const struct open_call *c)
{
    return __atomic_load_n(&c->function->serial, __ATOMIC_RELAXED) == c->serial;
}

/* Drops calls of functions that are not traced any more: their end is not reported here. */
static void drop_dead_calls(struct traced_thread *t)
{
    uint32_t now = __atomic_load_n(&epoch, __ATOMIC_ACQUIRE);

    if (t->epoch != now) {
        t->epoch = now;
        t->beyond = 0;
    }
    while (t->n > 0 && !is_alive(&t->open[t->n - 1]))
        t->n--;
}

/* Threads without a GIL contend here; those with one never wait. Nothing is called while a lock is held. */
static void take_lock(int *lock)
{
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void give_lock(int *lock)
{
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

/* Keeps a call whose generator is suspended. Without room its row stays open. */
static void keep_suspended(const struct open_call *c, int64_t now)
{
    take_lock(&suspended_lock);
    for (uint32_t i = hash_of(c->frame), n = 0; n < 16; i++, n++) {
        struct open_call *at = &suspended[i % SUSPENDED];
        if (at->frame && at->frame != c->frame && is_alive(at))
            continue;
        *at = *c;
        at->suspended_at = now;
        break;
    }
    give_lock(&suspended_lock);
}

static int take_suspended(const struct traced_function *f, const void *frame, struct open_call *ret)
{
    int found = 0;

    take_lock(&suspended_lock);
    for (uint32_t i = hash_of(frame), n = 0; frame && !found && n < 16; i++, n++) {
        struct open_call *at = &suspended[i % SUSPENDED];
        if (at->frame != frame)
            continue;
        found = at->function == f && is_alive(at);
        *ret = *at;
        at->frame = NULL;
    }
    give_lock(&suspended_lock);
    return found;
}

void pb_calls_forget(void)
{
    suspended_lock = functions_lock = 0;
}

/* --- rows ------------------------------------------------------------------------------------------ */

static void set_object(const struct pb_python *py, struct pb_row *row, unsigned column, pb_pyobject *object)
{
    long length;
    const char *text = object ? py->utf8_size(object, &length) : NULL;

    if (text)
        pb_set_string(row, column, text, (size_t)length);
}

/* Writes the row of a call that begins. Texts are ASCII or were converted before (add_function): nothing in
 * here allocates or raises. */
static void open_row(const struct pb_python *py, struct open_call *c, uint64_t parent, pb_pyobject *arguments)
{
    const struct traced_function *f = c->function;
    int64_t step = pb_span_step();
    struct pb_row row;
    uint32_t place;

    if (pb_trace_begin_row(&row, &place) < 0)
        return;
    pb_set_string(&row, PB_TRACE_RECORD_TYPE, "call", 4);
    pb_set_i64(&row, PB_TRACE_TRACE_ID, (int64_t)c->trace);
    pb_set_i64(&row, PB_TRACE_SPAN_ID, (int64_t)c->id);
    if (parent)
        pb_set_i64(&row, PB_TRACE_PARENT_ID, (int64_t)parent);
    set_object(py, &row, PB_TRACE_NAME, f->name);
    set_object(py, &row, PB_TRACE_LOCATION, f->location);
    set_object(py, &row, PB_TRACE_ARGUMENTS, arguments);
    if (step != INT64_MIN)
        pb_set_i64(&row, PB_TRACE_STEP, step);
    pb_set_i32(&row, PB_TRACE_THREAD_ID, pb_thread_id());
    c->row = pb_row_ref(&row);
    /* The time before this was our own. */
    c->began = pb_clock_mono();
    pb_set_timestamp(&row, PB_TRACE_TIMESTAMP, c->began);
    if (pb_row_commit(&row) == 0)
        c->generation = pb_recorder_generation();
    pb_recorder_leave(place);
}

static void fill_object(const struct pb_python *py, struct pb_arena *arena, const struct open_call *c,
                        unsigned column, pb_pyobject *object)
{
    long length;
    const char *text = object ? py->utf8_size(object, &length) : NULL;

    if (text)
        pb_fill_string(arena, c->row, column, text, (size_t)length);
}

struct ending {
    int64_t at;
    pb_pyobject *error, *result, *locals; /* str or NULL */
};

static void close_row(const struct pb_python *py, const struct open_call *c, const struct ending *end)
{
    uint32_t place;

    struct pb_arena *arena = pb_recorder_enter(&place);
    if (!arena)
        return;
    if (c->generation == pb_recorder_generation()) {
        fill_object(py, arena, c, PB_TRACE_ERROR, end->error);
        fill_object(py, arena, c, PB_TRACE_RESULT, end->result);
        fill_object(py, arena, c, PB_TRACE_LOCALS, end->locals);
        double took = (double)(end->at - c->began) / 1e6;
        const struct pb_late cells[] = {{PB_TRACE_DURATION_MS, PB_F64, &took, sizeof(took)},
                                        {PB_TRACE_ENDED, PB_TIMESTAMP, &end->at, sizeof(end->at)}};
        pb_fill_all(arena, c->row, cells, 2);
    }
    pb_recorder_leave(place);
}

/* --- values ---------------------------------------------------------------------------------------- */

/* Gets a text from _trace.py. Sets *raised if a signal handler of the program raised meanwhile: that
 * exception is for the program. */
static pb_pyobject *capture(const struct pb_python *py, enum trace_capture what, pb_pyobject *code,
                            pb_pyobject *frame, pb_pyobject *value, int *raised)
{
    pb_pyobject *kind = capture_how && !*raised ? py->int_signed(what) : NULL;
    if (!kind)
        return NULL;
    pb_pyobject *text =
        py->call(capture_how, kind, code, frame ? frame : py->none, value ? value : py->none, (void *)NULL);
    py->decref(kind);
    if (!text) {
        *raised = 1;
        return NULL;
    }
    /* Converted now: later, inside the recorder, nothing may be allocated. */
    if (text == py->none || !py->utf8_of(text)) {
        py->err_clear();
        py->decref(text);
        return NULL;
    }
    return text;
}

/* --- calls ----------------------------------------------------------------------------------------- */

/* The arguments of a callback: (code, offset, value) by sys.monitoring; _trace.py adds the frame, and passes
 * the class of an exception. */
struct hook_arguments {
    pb_pyobject *code, *value, *frame;
    int by_trace_function;
};

static struct hook_arguments take_arguments(const struct pb_python *py, const struct traced_function *f,
                                            pb_pyobject *const *args, long nargs)
{
    struct hook_arguments given = {args[0], nargs > 2 ? args[2] : NULL, nargs > 3 ? args[3] : NULL,
                                   nargs > 3};

    if (!given.frame && f && f->flags & (IS_GENERATOR | WANT_ARGUMENTS | WANT_LOCALS))
        given.frame = py->eval_frame();
    return given;
}

/* From 3.13 on Python does not report that a suspended generator was closed. The reuse of its frame shows it:
 * it ended when it last yielded, or later. */
static void close_abandoned(const struct pb_python *py, const struct traced_function *f, const void *frame)
{
    struct open_call c;

    if (take_suspended(f, frame, &c))
        close_row(py, &c, &(struct ending){.at = c.suspended_at});
}

static void begin_call(const struct pb_python *py, struct traced_thread *t, struct traced_function *f,
                       const struct hook_arguments *given, int *raised)
{
    struct open_call *outer = t->n > 0 ? &t->open[t->n - 1] : NULL;
    struct pb_span_seen around;

    if (f->flags & IS_INNER && (!outer || outer->level >= outer->most))
        return;
    __atomic_fetch_add(&f->calls, 1, __ATOMIC_RELAXED);
    if (f->flags & IS_GENERATOR)
        close_abandoned(py, f, given->frame);
    if (t->n == OPEN_MAX || t->beyond) {
        t->beyond++;
        return;
    }
    pb_pyobject *arguments = f->flags & WANT_ARGUMENTS
                                 ? capture(py, CAPTURE_ARGUMENTS, given->code, given->frame, NULL, raised)
                                 : NULL;
    pb_span_around(py, &around);
    struct open_call *c = &t->open[t->n];
    *c = (struct open_call){.function = f,
                            .serial = __atomic_load_n(&f->serial, __ATOMIC_RELAXED),
                            .level = f->flags & IS_INNER ? outer->level + 1 : 1,
                            .most = f->flags & IS_INNER ? outer->most : f->depth,
                            .id = pb_trace_new_id(),
                            .frame = f->flags & IS_GENERATOR ? given->frame : NULL};
    uint64_t parent = outer && outer->began >= around.began ? outer->id : around.id;
    c->trace = !parent ? c->id : parent == around.id ? around.trace : outer->trace;
    open_row(py, c, parent, arguments);
    t->n++;
    if (arguments)
        py->decref(arguments);
}

/* Removes the innermost call of this function in this thread, or a suspended one. 0: none is known. */
static int take_call(struct traced_thread *t, const struct traced_function *f, const void *frame,
                     struct open_call *ret)
{
    if (t->beyond) {
        t->beyond--;
        return 0;
    }
    if (t->n > 0 && t->open[t->n - 1].function == f &&
        (!t->open[t->n - 1].frame || t->open[t->n - 1].frame == frame)) {
        *ret = t->open[--t->n];
        return 1;
    }
    /* When an exception is thrown into a generator, Python does not report that it resumes. */
    return f->flags & IS_GENERATOR ? take_suspended(f, frame, ret) : 0;
}

static void end_call(const struct pb_python *py, struct traced_thread *t, struct traced_function *f,
                     const struct hook_arguments *given, int failed, int *raised)
{
    struct ending end = {.at = pb_clock_mono()};
    struct open_call c;
    pb_pyobject *kind = NULL;

    if (!take_call(t, f, given->frame, &c))
        return;
    __atomic_fetch_add(&f->taken_ns, (uint64_t)(end.at - c.began), __ATOMIC_RELAXED);
    if (failed) {
        __atomic_fetch_add(&f->errors, 1, __ATOMIC_RELAXED);
        kind = !given->value              ? NULL
               : given->by_trace_function ? given->value
                                          : pb_type_of(given->value, pb_module_header(py));
        const char *name = kind ? pb_class_name(kind, pb_module_header(py)) : "";
        end.error = kind ? py->str_from_utf8(name, (long)strlen(name), "replace") : NULL;
        py->err_clear();
    } else if (f->flags & WANT_ARGUMENTS) {
        end.result = capture(py, CAPTURE_RESULT, given->code, given->frame, given->value, raised);
    }
    if (f->flags & WANT_LOCALS)
        end.locals = capture(py, CAPTURE_LOCALS, given->code, given->frame, NULL, raised);
    close_row(py, &c, &end);
    pb_pyobject *made[] = {end.error, end.result, end.locals};
    for (int i = 0; i < 3; i++)
        if (made[i])
            py->decref(made[i]);
}

/* --- what Python calls ----------------------------------------------------------------------------- */

enum moment { STARTS, YIELDS, RESUMES, RETURNS, UNWINDS };

static pb_pyobject *return_object(const struct pb_python *py, pb_pyobject *object)
{
    py->incref(object);
    return object;
}

static pb_pyobject *on_event(enum moment moment, pb_pyobject *const *args, long nargs)
{
    const struct pb_python *py = pb_python_here();
    struct traced_function *f = nargs > 0 ? find_function(args[0]) : NULL;
    struct open_call c;
    int raised = 0;

    if (!f || !pb_recorder_is_open()) /* Python accepts no DISABLE for an exception */
        return return_object(py, disable && moment != UNWINDS ? disable : py->none);
    struct traced_thread *t = find_thread();
    if (!t)
        return return_object(py, py->none);
    drop_dead_calls(t);
    struct hook_arguments given = take_arguments(py, f, args, nargs);
    if (moment == STARTS)
        begin_call(py, t, f, &given, &raised);
    else if (moment == RETURNS || moment == UNWINDS)
        end_call(py, t, f, &given, moment == UNWINDS, &raised);
    else if (moment == YIELDS && take_call(t, f, given.frame, &c))
        keep_suspended(&c, pb_clock_mono());
    else if (moment == RESUMES && t->n < OPEN_MAX && !t->beyond && take_suspended(f, given.frame, &c))
        t->open[t->n++] = c;
    return raised ? NULL : return_object(py, py->none);
}

#define CALLBACK(name, moment)                                                                               \
    static pb_pyobject *name(pb_pyobject *self, pb_pyobject *const *args, long nargs, pb_pyobject *names)    \
    {                                                                                                        \
        (void)self;                                                                                          \
        (void)names;                                                                                         \
        return on_event(moment, args, nargs);                                                                \
    }
CALLBACK(call_starts, STARTS)
CALLBACK(call_yields, YIELDS)
CALLBACK(call_resumes, RESUMES)
CALLBACK(call_returns, RETURNS)
CALLBACK(call_unwinds, UNWINDS)

/* --- which functions ------------------------------------------------------------------------------- */

/* An entry for this code: its own, or one that no callback can be reading any more. */
static struct traced_function *make_room(const void *code)
{
    struct traced_function *free_one = NULL;

    for (uint32_t i = hash_of(code), n = 0; n < FUNCTIONS; i++, n++) {
        struct traced_function *f = &functions[i % FUNCTIONS];
        if (f->code == code)
            return f;
        if (!free_one && (!f->code || (!f->serial && pb_now_ns() - f->removed_at > REUSE_NS)))
            free_one = f;
        if (!f->code)
            break;
    }
    return free_one;
}

static int map_threads(void)
{
    if (__atomic_load_n(&threads, __ATOMIC_ACQUIRE))
        return 0;
    size_t size = THREADS * sizeof(struct traced_thread);
    struct traced_thread *none = NULL;
    void *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    if (!__atomic_compare_exchange_n(&threads, &none, memory, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        munmap(memory, size); /* another thread was first */
    return 0;
}

/* trace_add(code, name, location, flags, depth): the caller keeps the three objects. False: there is no room.
 */
static pb_pyobject *trace_add(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *a[5];
    (void)self;

    for (int i = 0; i < 5; i++)
        if (!(a[i] = py->tuple_get(args, i)))
            return NULL;
    long flags = py->int_as(a[3]), depth = py->int_as(a[4]);
    if (py->err_occurred() || !py->utf8_of(a[1]) || !py->utf8_of(a[2]))
        return NULL;
    if (map_threads() < 0)
        return py->bool_from(0);
    take_lock(&functions_lock);
    struct traced_function *f = nlive < FUNCTIONS / 2 ? make_room(a[0]) : NULL;
    if (f) {
        nlive += f->serial == 0;
        f->name = a[1];
        f->location = a[2];
        f->flags = (uint32_t)flags;
        f->depth = (uint32_t)depth;
        f->calls = f->errors = f->taken_ns = 0;
        __atomic_store_n(&f->serial, ++last_serial ? last_serial : ++last_serial, __ATOMIC_RELEASE);
        __atomic_store_n(&f->code, a[0], __ATOMIC_RELEASE);
    }
    give_lock(&functions_lock);
    return py->bool_from(f != NULL);
}

/* trace_remove(code): its calls that are open stay open. */
static pb_pyobject *trace_remove(pb_pyobject *self, pb_pyobject *code)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    take_lock(&functions_lock);
    struct traced_function *f = find_function(code);
    if (f) {
        f->removed_at = pb_now_ns();
        __atomic_store_n(&f->serial, 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&epoch, 1, __ATOMIC_RELEASE);
        nlive--;
    }
    give_lock(&functions_lock);
    return return_object(py, py->none);
}

/* trace_counts(code): [calls, errors, ns in calls that have ended]; None: it is not traced. */
static pb_pyobject *trace_counts(pb_pyobject *self, pb_pyobject *code)
{
    const struct pb_python *py = pb_python_here();
    struct traced_function *f = find_function(code);
    (void)self;

    if (!f)
        return return_object(py, py->none);
    const uint64_t numbers[] = {f->calls, f->errors, f->taken_ns};
    pb_pyobject *list = py->list_new(0);
    for (int i = 0; list && i < 3; i++) {
        pb_pyobject *number = py->int64_from((long long)numbers[i]);
        if (!number || py->list_append(list, number) < 0)
            py->err_clear();
        if (number)
            py->decref(number);
    }
    return list;
}

/* trace_hooks(disable, capture): the value that callbacks return if nothing records, and the function that
 * describes values. The caller keeps both for good. */
static pb_pyobject *trace_hooks(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *off = py->tuple_get(args, 0), *how = off ? py->tuple_get(args, 1) : NULL;
    (void)self;

    if (!how)
        return NULL;
    disable = off;
    capture_how = how;
    return return_object(py, py->none);
}

struct pb_py_method pb_call_methods[] = {
    {"trace_hooks", (pb_py_function)trace_hooks, PB_METH_VARARGS, NULL},
    {"trace_add", (pb_py_function)trace_add, PB_METH_VARARGS, NULL},
    {"trace_remove", (pb_py_function)trace_remove, PB_METH_O, NULL},
    {"trace_counts", (pb_py_function)trace_counts, PB_METH_O, NULL},
    {"call_starts", (pb_py_function)call_starts, PB_METH_FAST, NULL},
    {"call_yields", (pb_py_function)call_yields, PB_METH_FAST, NULL},
    {"call_resumes", (pb_py_function)call_resumes, PB_METH_FAST, NULL},
    {"call_returns", (pb_py_function)call_returns, PB_METH_FAST, NULL},
    {"call_unwinds", (pb_py_function)call_unwinds, PB_METH_FAST, NULL},
    {0},
};
