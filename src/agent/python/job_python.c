/* job_python: the work of a job's thread with the GIL, through the Python part carried in the agent.
 *
 * The Python part (python/probing/, entered by _remote.py) is compiled at the first job and kept until
 * detach. Its functions are called one by one so that an interrupt, which may strike between any two
 * bytecodes, can strike only while the user's code is evaluated and shown. Operations that Python code cannot
 * do (compare and store atomically, read frames) are functions here, in the module _probing (module.h). */
#include "agent/core/agent_clock.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "agent/module/live_tables.h"
#include "agent/module/module.h"
#include "agent/python/embed.h"
#include "agent/python/enter.h"
#include "agent/python/frames.h"
#include "agent/python/job_impl.h"
#include "control/own_code.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PY_FILE_INPUT 257
#define CHUNK         (32u << 10)
#define PART          "part" /* the key of the part's globals in the shared state */
#define AT_DETACH     "at_detach"

static int part_loaded; /* there are objects to release at detach */

/* Called with the lock held; 0: no room. */
static int put_output(struct pb_job *job, int stream, const char *text, size_t size)
{
    struct pb_frame_writer w;

    pb_frame_begin(&w, job->out + job->out_len, sizeof(job->out) - job->out_len);
    pb_frame_put_u64(&w, PB_TAG_STREAM, (uint64_t)stream);
    pb_frame_put(&w, PB_TAG_TEXT, text, size);
    int n = pb_frame_end(&w, PB_MSG_OUTPUT, job->request);
    if (n < 0)
        return 0;
    job->out_len += (size_t)n;
    pb_wake();
    return 1;
}

/* Without the GIL: waits for room as long as the client is there. */
static int deliver_output(uint64_t number, int stream, const char *text, size_t size)
{
    struct pb_job *job;
    int listening = 0;

    pb_job_lock();
    while ((job = pb_job_find(number)) && !job->disowned) {
        listening = 1;
        size_t chunk = size < CHUNK ? size : CHUNK;
        if (put_output(job, stream, text, chunk)) {
            text += chunk;
            size -= chunk;
            if (size == 0)
                break;
        } else {
            listening = 0;
            if (pb_enter_is_closed()) /* the end of the program waits for this thread, not for the client */
                break;
            pb_job_wait_for_room(job);
        }
    }
    if (!job || job->disowned)
        listening = 0;
    pb_job_unlock();
    return listening;
}

static pb_pyobject *emit(pb_pyobject *self, pb_pyobject *message)
{
    struct pb_python py;
    char *bytes;
    long size;
    uint64_t number;
    (void)self;

    if (pb_python_known(&py) < 0 || py.bytes_as(message, &bytes, &size) < 0)
        return NULL;
    if (size < 9)
        return py.bool_from(0);
    memcpy(&number, bytes, sizeof(number));
    void *state = py.save_thread(); /* the caller's frame keeps the bytes alive */
    int listening = deliver_output(number, bytes[8], bytes + 9, (size_t)size - 9);
    py.restore_thread(state);
    return py.bool_from(listening);
}

/* The value of a key in a dict, a new reference; NULL: none. */
static pb_pyobject *dict_entry(const struct pb_python *py, pb_pyobject *dict, pb_pyobject *key)
{
    pb_pyobject *value = NULL;

    if (py->dict_get_reference) {
        py->dict_get_reference(dict, key, &value);
        return value;
    }
    value = py->dict_get_object(dict, key);
    if (value)
        py->incref(value);
    return value;
}

/* swap(dict, key, old, new, guard): replaces old by new, only if old is the present value and guard, a set,
 * is empty (None: no condition). The GIL is not released between the check and the store: both values have
 * other references, so that nothing is freed. In a free-threaded build the dict is locked; 3.13 would release
 * that lock when the store takes it again, and must not call this. */
static pb_pyobject *swap(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;
    pb_pyobject *a[5];
    void *section[8];
    int stored = 0;
    (void)self;

    if (pb_python_known(&py) < 0)
        return NULL;
    for (int i = 0; i < 5; i++)
        if (!(a[i] = py.tuple_get(args, i)))
            return NULL;
    pb_pyobject *dict = a[0], *key = a[1], *old = a[2], *new = a[3], *guard = a[4];
    int locks = py.free_threaded && py.critical_begin && py.critical_end;
    if (locks)
        py.critical_begin(section, dict);
    pb_pyobject *now = dict_entry(&py, dict, key);
    if (now == old && (guard == py.none || py.size_of(guard) == 0))
        stored = py.dict_set_object(dict, key, new) == 0;
    if (locks)
        py.critical_end(section);
    if (now)
        py.decref(now);
    py.err_clear();
    return py.bool_from(stored);
}

/* local(name, folder of the standard library): see frames.h. name None: a list of names. KeyError: no such
 * name. The first argument of the calling function must be name. */
static pb_pyobject *local(pb_pyobject *self, pb_pyobject *args)
{
    struct pb_python py;
    (void)self;

    if (pb_python_known(&py) < 0)
        return NULL;
    pb_pyobject *name = py.tuple_get(args, 0), *folder = name ? py.tuple_get(args, 1) : NULL;
    const char *stdlib = folder ? py.utf8_of(folder) : NULL;
    if (!stdlib)
        return NULL;
    if (name == py.none)
        return pb_frames_names(&py, stdlib, name);
    pb_pyobject *value = pb_frames_local(&py, name, stdlib, name);
    if (!value)
        py.err_set_object(*py.key_error, name);
    return value;
}

static pb_pyobject *main_ident(pb_pyobject *self, pb_pyobject *unused)
{
    struct pb_python py;
    (void)self;
    (void)unused;

    return pb_python_known(&py) < 0 ? NULL : py.int_from(pb_frames_main_ident(&py));
}

/* A clock for the part, which may not import time: the program could notice. */
static pb_pyobject *milliseconds(pb_pyobject *self, pb_pyobject *unused)
{
    struct pb_python py;
    (void)self;
    (void)unused;

    return pb_python_known(&py) < 0 ? NULL : py.int_from((unsigned long)(pb_now_ns() / PB_NS_PER_MS));
}

/* Adds a reference that is never released. */
static pb_pyobject *immortal(pb_pyobject *self, pb_pyobject *object)
{
    struct pb_python py;
    (void)self;

    if (pb_python_known(&py) < 0)
        return NULL;
    py.incref(object);
    return py.bool_from(1);
}

/* is_library(file): whether it is Python's own or an installed package's. */
static pb_pyobject *is_library(pb_pyobject *self, pb_pyobject *file)
{
    struct pb_python py;
    (void)self;

    const char *text = pb_python_known(&py) < 0 ? NULL : py.utf8_of(file);
    return text ? py.bool_from(pb_is_library_file(text)) : NULL;
}

struct pb_py_method pb_job_methods[] = {
    {"emit", (pb_py_function)emit, PB_METH_O, NULL},
    {"swap", (pb_py_function)swap, PB_METH_VARARGS, NULL},
    {"local", (pb_py_function)local, PB_METH_VARARGS, NULL},
    {"is_library", (pb_py_function)is_library, PB_METH_O, NULL},
    {"main_ident", (pb_py_function)main_ident, PB_METH_NOARGS, NULL},
    {"milliseconds", (pb_py_function)milliseconds, PB_METH_NOARGS, NULL},
    {"immortal", (pb_py_function)immortal, PB_METH_O, NULL},
    {0},
};

/* Evaluates _boot.py, which loads _remote.py: its globals, a new reference; NULL with an exception. Each call
 * makes its own modules: two jobs that begin at once never see half of one. */
static pb_pyobject *evaluate_part(const struct pb_python *py)
{
    pb_pyobject *part = NULL, *module = pb_module_get(py), *names = module ? py->dict_new() : NULL;
    const char *boot = pb_embed_file("_boot");

    if (names && py->dict_set(names, "__builtins__", py->builtins()) == 0 &&
        py->dict_set(names, "__name__", py->none) == 0 && py->dict_set(names, "_probing", module) == 0) {
        pb_pyobject *code = py->compile(boot, "<probing>/_boot.py", PY_FILE_INPUT);
        pb_pyobject *result = code ? py->eval_code(code, names, names) : NULL;
        pb_pyobject *load = result ? py->dict_get(names, "load") : NULL;
        pb_pyobject *name = load ? py->str_from("_remote", 7) : NULL;
        pb_pyobject *remote = name ? py->call(load, name, (void *)NULL) : NULL;
        part = remote ? py->get_attr(remote, "__dict__") : NULL;
        pb_pyobject *all[] = {code, result, name, remote};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            if (all[i])
                py->decref(all[i]);
    }
    if (names)
        py->decref(names);
    return part;
}

/* A forked child makes its own part: its parent's may have held a lock. */
pb_pyobject *pb_job_part(const struct pb_python *py)
{
    static pid_t made_in; /* only accessed with the GIL, or by one more thread that makes its own */
    pb_pyobject *shared = pb_module_shared(py);
    pb_pyobject *part = shared && made_in == getpid() ? py->dict_get(shared, PART) : NULL;
    int turn = shared && !part ? pb_enter_take_turn(py) : 0;

    if (turn && made_in == getpid())
        part = py->dict_get(shared, PART); /* made meanwhile */
    if (part) {
        py->incref(part);
    } else if (shared && (part = evaluate_part(py))) {
        if (py->dict_set(shared, PART, part) < 0)
            py->err_clear();
        made_in = getpid();
    }
    pb_enter_pass_turn(turn);
    if (part)
        __atomic_store_n(&part_loaded, 1, __ATOMIC_RELAXED);
    return part;
}

pb_pyobject *pb_job_load(const struct pb_python *py, const char *name)
{
    pb_pyobject *part = pb_job_part(py), *load = part ? py->dict_get(part, "__load__") : NULL;
    pb_pyobject *text = load ? py->str_from_utf8(name, (long)strlen(name), "strict") : NULL;
    pb_pyobject *module = text ? py->call(load, text, (void *)NULL) : NULL;

    if (text)
        py->decref(text);
    if (part)
        py->decref(part);
    py->err_clear();
    return module;
}

#define ARGS 4

/* Calls the part's function of that name with as many arguments as are given, up to ARGS; takes over no
 * references. */
static pb_pyobject *call_part(const struct pb_job *job, const char *name, pb_pyobject *const args[ARGS])
{
    pb_pyobject *function = job->py.dict_get(job->part, name);
    return function ? job->py.call(function, args[0], args[1], args[2], args[3], (void *)NULL) : NULL;
}

static pb_pyobject *begin_code(struct pb_job *job)
{
    const struct pb_python *py = &job->py;
    pb_pyobject *args[ARGS] = {
        py->int_from((unsigned long)job->number),
        py->bytes_from((const char *)job->code, (long)job->code_size),
        py->str_from(job->filename, (long)strlen(job->filename)),
        py->bool_from(job->mode == PB_RUN_EVAL),
    };
    int made = 1;

    for (int i = 0; i < ARGS; i++)
        made = made && args[i];
    int turn = pb_enter_take_turn(py);
    pb_pyobject *request = made ? call_part(job, "begin", args) : NULL;
    pb_enter_pass_turn(turn);
    for (int i = 0; i < ARGS; i++)
        if (args[i])
            py->decref(args[i]);
    return request;
}

static void set_state(struct pb_job *job, enum pb_job_state state)
{
    pb_job_lock();
    job->state = state;
    job->ident = job->py.thread_ident();
    pb_job_unlock();
}

/* Evaluates the user's code; an exception is left set. */
static void evaluate_code(const struct pb_job *job, pb_pyobject *request)
{
    const struct pb_python *py = &job->py;
    pb_pyobject *parts = call_part(job, "compiled", (pb_pyobject *[ARGS]){request});
    if (!parts)
        return;
    pb_pyobject *names = py->tuple_get(parts, 2), *last = py->tuple_get(parts, 1);
    pb_pyobject *value = py->eval_code(py->tuple_get(parts, 0), names, names);
    if (value && last != py->none) {
        py->decref(value);
        value = py->eval_code(last, names, names);
        pb_pyobject *shown = value ? call_part(job, "show", (pb_pyobject *[ARGS]){request, value}) : NULL;
        if (shown)
            py->decref(shown);
    }
    if (value)
        py->decref(value);
    py->decref(parts);
}

/* The exception as three objects for the Python part; None if missing. */
static void fetch_exception(const struct pb_python *py, pb_pyobject *ret[3])
{
    ret[0] = ret[1] = ret[2] = NULL;
    py->err_fetch(&ret[0], &ret[1], &ret[2]);
    if (ret[0])
        py->err_normalize(&ret[0], &ret[1], &ret[2]);
}

/* Lets a pending interrupt that is no longer wanted strike where it does no harm: cancelling it
 * (PyThreadState_SetAsyncExc with NULL) would up to 3.12 leave the interpreter's mark of a pending exception
 * set for ever, which slows the whole program down, and in 3.11 keeps a traced function from starting. */
static void let_interrupt_strike(const struct pb_job *job, int interrupted)
{
    pb_job_lock();
    interrupted |= job->interrupted_ns != 0;
    pb_job_unlock();
    if (!interrupted)
        return;
    pb_pyobject *result = call_part(job, "settle", (pb_pyobject *[ARGS]){NULL});
    if (result)
        job->py.decref(result);
    else
        job->py.err_clear();
}

static int is_wanted(const struct pb_job *job)
{
    pb_job_lock();
    int wanted = !job->disowned && !job->interrupted_ns;
    pb_job_unlock();
    return wanted;
}

static int run_request(struct pb_job *job, pb_pyobject *request)
{
    const struct pb_python *py = &job->py;
    pb_pyobject *raised[3];

    set_state(job, PB_JOB_RUNNING);
    int before = pb_enter_begin_code(py);
    if (before >= 0 && is_wanted(job)) /* an interrupter that came earlier has left it to this thread */
        evaluate_code(job, request);
    else if (before < 0)
        py->err_set_object(pb_module_interrupt(py), py->none);
    fetch_exception(py, raised);
    int interrupted = pb_enter_end_code(py, before);
    set_state(job, PB_JOB_ENDING);
    let_interrupt_strike(job, interrupted);

    pb_pyobject *args[ARGS] = {request};
    for (int i = 0; i < 3; i++)
        args[i + 1] = raised[i] ? raised[i] : py->none;
    pb_pyobject *result = call_part(job, "end", args);
    int status = result ? (int)py->int_as(result) : -1;
    if (result)
        py->decref(result);
    for (int i = 0; i < 3; i++)
        if (raised[i])
            py->decref(raised[i]);
    return status;
}

static enum pb_job_state run_code(struct pb_job *job, int *status)
{
    job->part = pb_job_part(&job->py);
    pb_pyobject *request = job->part ? begin_code(job) : NULL;

    *status = request ? run_request(job, request) : -1;
    if (*status < 0)
        pb_module_take_error(&job->py, "the part of probing that runs Python code failed", job->why,
                             sizeof(job->why));
    if (*status < 0 && pb_enter_is_closed())
        snprintf(job->why, sizeof(job->why), "its Python is shutting down");
    if (request)
        job->py.decref(request);
    if (job->part)
        job->py.decref(job->part);
    return *status < 0 ? PB_JOB_BROKEN : PB_JOB_ENDED;
}

static int is_wanted_job(const void *job)
{
    return is_wanted(job);
}

/* Sends an answer about live tables to a job's client. */
struct job_answer {
    struct pb_live_answer base; /* first */
    struct pb_job *job;
};

static int put_live(struct pb_live_answer *base, const char *text, size_t size)
{
    const struct job_answer *to = (struct job_answer *)(void *)base;
    return deliver_output(to->job->number, PB_STREAM_OUT, text, size) && is_wanted(to->job);
}

static void tell_where(struct pb_live_answer *base, const char *table, const char *function)
{
    struct pb_job *job = ((struct job_answer *)(void *)base)->job;

    pb_job_lock();
    job->state = table ? PB_JOB_LIVE : PB_JOB_WAITING;
    if (table)
        snprintf(job->inside, sizeof(job->inside), "table %s: the function %s", table,
                 function ? function : "?");
    pb_job_unlock();
}

/* Returns whether Python tables remain to be asked. */
static int send_live(struct pb_job *job)
{
    struct job_answer to = {.base = {put_live, tell_where}, .job = job};

    pb_live_send(&to.base, (const char *)job->code, job->code_size);
    return pb_live_python() && is_wanted(job);
}

void *pb_job_thread(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    enum pb_job_state state = PB_JOB_ENDED;
    struct pb_entry entry;
    int status = 1;

    pb_thread_name("probing-eval");
    pb_thread_take_host_signals();
    pb_job_lock();
    struct pb_job *job = pb_job_find(number);
    pb_job_unlock();

    /* The job stays until this thread ends it, so the pointer is valid. */
    if (job->mode == PB_RUN_LIVE && !send_live(job)) {
        status = 0;
    } else if (pb_enter_find(&job->py, job->why, sizeof(job->why)) < 0) {
        state = PB_JOB_BROKEN;
    } else if (pb_enter_await_gil(&job->py, is_wanted_job, job)) {
        if (pb_enter(&job->py, &entry) < 0) {
            snprintf(job->why, sizeof(job->why), "its Python is shutting down");
            state = PB_JOB_BROKEN;
        } else {
            if (is_wanted(job))
                state = run_code(job, &status);
            pb_leave(&job->py, &entry);
        }
    }
    pb_job_end(number, state, status);
    return NULL;
}

void *pb_job_interrupter(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    struct pb_python py;
    struct pb_entry entry;

    if (pb_python_known(&py) < 0)
        return NULL;
    pb_job_lock();
    struct pb_job *job = pb_job_find(number);
    int running = job && job->state == PB_JOB_RUNNING;
    pb_job_unlock();
    if (!running) /* it waits for the GIL, and will find that it is cancelled */
        return NULL;
    if (pb_enter(&py, &entry) < 0)
        return NULL;
    pb_job_lock();
    job = pb_job_find(number);
    running = job && job->state == PB_JOB_RUNNING;
    unsigned long ident = running ? job->ident : 0;
    pb_job_unlock();
    if (running)
        pb_enter_interrupt(&py, ident);
    pb_leave(&py, &entry);
    return NULL;
}

/* Makes the Python part restore what it replaced in the program (hooks: _catch.py). */
static void call_at_detach(const struct pb_python *py, pb_pyobject *shared)
{
    pb_pyobject *function = shared ? py->dict_get(shared, AT_DETACH) : NULL;

    if (!function)
        return;
    py->incref(function);
    py->dict_del(shared, AT_DETACH);
    pb_pyobject *result = py->call(function, (void *)NULL);
    if (result)
        py->decref(result);
    py->decref(function);
    py->err_clear();
}

static void *release(void *unused)
{
    struct pb_python py;
    struct pb_entry entry;
    (void)unused;

    if (pb_python_known(&py) < 0 || pb_enter(&py, &entry) < 0)
        return NULL;
    pb_pyobject *shared = pb_module_shared(&py);
    call_at_detach(&py, shared);
    if (shared && py.dict_get(shared, PART))
        py.dict_del(shared, PART);
    py.err_clear();
    pb_leave(&py, &entry);
    return NULL;
}

void pb_job_release_python(void)
{
    if (__atomic_exchange_n(&part_loaded, 0, __ATOMIC_RELAXED))
        pb_spawn(release, NULL, NULL);
}
