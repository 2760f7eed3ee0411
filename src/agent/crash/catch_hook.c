/* catch_hook: what stands before the hooks that Python calls with an exception that ends a thread
 * (sys.excepthook and its like, python/probing/_catch.py), while `probing catch` is on.
 *
 * A builtin function: it adds no frame to a traceback or a stack of the program. The scene is described in a
 * thread of ours while the failing thread waits here without the GIL, so no signal handler, trace function or
 * asynchronous exception of the program runs in code of ours, and nothing that fails there reaches the
 * program. Then the former hook is called once, with the same arguments. */
#include "agent/core/agent_clock.h"
#include "agent/core/fds.h"
#include "agent/core/futex.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/module/module.h"
#include "agent/python/enter.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SCENE_MS = 5000, SCENES_MAX = 8 };

/* Of a scene. The thread that describes and the thread that waits change WAITED_FOR, once; the one that comes
 * second has the objects to release. */
enum { FREE, WAITED_FOR, DESCRIBED, NOT_DESCRIBED, ABANDONED };

/* The arguments of catch_hook(), stored in the tuple that is the hook's self. */
enum { NUMBER, BEFORE, DESCRIBE, PRINTS_FIRST, ONLY_WITH };

struct exception_scene {
    pb_pyobject *function, *args, *result; /* references of their own */
    uint32_t state;
};
static struct exception_scene
    scenes[SCENES_MAX]; /* not on the stack of the thread that waits: it may go on */

static uint32_t catching; /* the number of the `catch` that is on; 0: none */
static pid_t catching_pid;

static struct exception_scene *take_scene(void)
{
    for (int i = 0; i < SCENES_MAX; i++) {
        uint32_t is_free = FREE;
        if (__atomic_compare_exchange_n(&scenes[i].state, &is_free, WAITED_FOR, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return &scenes[i];
    }
    return NULL;
}

/* With the GIL. */
static void release_scene(const struct pb_python *py, struct exception_scene *s)
{
    pb_pyobject *all[] = {s->function, s->args, s->result};

    __atomic_store_n(&s->state, FREE, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++)
        if (all[i])
            py->decref(all[i]);
}

/* 0: the other thread had changed it already. */
static int change_scene(struct exception_scene *s, uint32_t state)
{
    uint32_t waited_for = WAITED_FOR;
    int changed =
        __atomic_compare_exchange_n(&s->state, &waited_for, state, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);

    pb_futex_wake(&s->state);
    return changed;
}

/* Where the GIL cannot be had: if the failing thread has gone on, the objects stay for ever. */
static void not_started(void *argument, int error)
{
    struct exception_scene *s = argument;
    (void)error;

    if (!change_scene(s, NOT_DESCRIBED))
        __atomic_store_n(&s->state, FREE, __ATOMIC_RELEASE);
}

static void *describe_scene(void *argument)
{
    const struct pb_python *py = pb_python_here();
    struct exception_scene *s = argument;
    struct pb_entry entry;

    pb_thread_name("probing-catch");
    /* Where the kernel refuses a descriptor table of our own, source lines are not read. */
    int own_files = pb_fds_leave_numbers() == 0;
    if (pb_enter(py, &entry) < 0) {
        not_started(s, 0);
        return NULL;
    }
    s->result = py->call(s->function, s->args, own_files ? py->true_object : py->false_object, (void *)NULL);
    py->err_clear();
    if (!change_scene(s, DESCRIBED))
        release_scene(py, s);
    pb_leave(py, &entry);
    return NULL;
}

/* [args, the frame that calls the hook or None, ident and tid of this thread, the exception that it handles]
 *  */
static pb_pyobject *failure_of_here(const struct pb_python *py, pb_pyobject *args)
{
    pb_pyobject *all = py->list_new(0), *handled[3] = {0}, *frame = py->eval_frame();

    py->incref(args);
    py->incref(frame = frame ? frame : py->none);
    py->exc_info(&handled[0], &handled[1], &handled[2]);
    py->incref(py->none);
    pb_pyobject *parts[] = {args, frame, py->int_from(py->thread_ident()),
                            py->int_from((unsigned long)syscall(SYS_gettid)),
                            handled[1] ? handled[1] : py->none};
    int r = all ? 0 : -1;
    for (int i = 0; i < 5; i++) {
        if (r == 0)
            r = parts[i] ? py->list_append(all, parts[i]) : -1;
        if (parts[i])
            py->decref(parts[i]);
    }
    for (int i = 0; i < 3; i += 2)
        if (handled[i])
            py->decref(handled[i]);
    if (handled[1])
        py->decref(py->none);
    if (r < 0 && all)
        py->decref(all);
    return r < 0 ? NULL : all;
}

/* Has the scene described. What holds the thread for a prompt afterwards, or NULL. Leaves no exception. */
static pb_pyobject *describe_failure(const struct pb_python *py, pb_pyobject *function, pb_pyobject *args)
{
    uint64_t end = pb_now_ns() + SCENE_MS * PB_NS_PER_MS, now;
    pb_pyobject *failure = failure_of_here(py, args), *result = NULL;
    struct exception_scene *s = failure ? take_scene() : NULL;

    if (!s) {
        if (failure)
            py->decref(failure);
        py->err_clear();
        return NULL;
    }
    py->incref(function);
    s->function = function;
    s->args = failure;
    s->result = NULL;
    void *state = py->save_thread();
    if (pb_spawn(describe_scene, not_started, s) < 0)
        not_started(s, 0);
    while (__atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == WAITED_FOR && (now = pb_now_ns()) < end)
        pb_futex_wait_ms(&s->state, WAITED_FOR, (long)((end - now) / PB_NS_PER_MS + 1));
    py->restore_thread(state);
    if (change_scene(s, ABANDONED))
        return NULL;
    if (s->result && s->result != py->none) {
        result = s->result;
        py->incref(result);
    }
    release_scene(py, s);
    return result;
}

/* Whether the text of an unraisable exception (the fourth of its fields) contains the words, which say that
 * it has ended a thread. */
static int has_words(const struct pb_python *py, pb_pyobject *args, pb_pyobject *wanted)
{
    pb_pyobject *fields = py->tuple_get(args, 0), *text = fields ? py->tuple_get(fields, 3) : NULL;
    int is_text = text && pb_type_of(text, pb_module_header(py)) == py->str_type;
    const char *message = is_text ? py->utf8_of(text) : NULL, *words = py->utf8_of(wanted);

    py->err_clear();
    return message && words && strstr(message, words);
}

static int is_on(const struct pb_python *py, pb_pyobject *self)
{
    unsigned long long number = py->uint64_as(py->tuple_get(self, NUMBER));

    return number && __atomic_load_n(&catching, __ATOMIC_ACQUIRE) == number && catching_pid == getpid();
}

static void serve_prompt(const struct pb_python *py, pb_pyobject *mortem)
{
    pb_pyobject *raised[3], *serve, *served;

    py->err_fetch(&raised[0], &raised[1], &raised[2]);
    serve = py->get_attr(mortem, "serve");
    served = serve ? py->call(serve, (void *)NULL) : NULL;
    if (served)
        py->decref(served);
    if (serve)
        py->decref(serve);
    py->err_restore(raised[0], raised[1], raised[2]); /* replaces what is set */
}

/* The hook. Python's own prints the traceback before the thread is held, which a person wants to see; another
 * one may end the process, so it is called afterwards. */
static pb_pyobject *hook(pb_pyobject *self, pb_pyobject *args, pb_pyobject *named)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *words = py->tuple_get(self, ONLY_WITH), *mortem = NULL;
    int first = py->is_true(py->tuple_get(self, PRINTS_FIRST));

    if (is_on(py, self) && (words == py->none || has_words(py, args, words)))
        mortem = describe_failure(py, py->tuple_get(self, DESCRIBE), args);
    if (mortem && !first)
        serve_prompt(py, mortem);
    pb_pyobject *result = py->call_tuple(py->tuple_get(self, BEFORE), args, named);
    if (mortem && first)
        serve_prompt(py, mortem);
    if (mortem)
        py->decref(mortem);
    return result;
}

/* catch_hook(number, before, describe, prints_first, only_with): a hook that has describe([arguments, frame,
 * ident, tid, handled exception], own_files) called in a thread of ours, and then calls before; describe's
 * result has serve(). */
static pb_pyobject *catch_hook(pb_pyobject *self, pb_pyobject *args)
{
    static const struct pb_py_method method = {"excepthook", (pb_py_function)hook,
                                               PB_METH_VARARGS | PB_METH_KEYWORDS, NULL};
    (void)self;

    return pb_python_here()->cfunction((void *)(uintptr_t)&method, args, NULL);
}

/* catch_on(number): hooks with another number only call the former hook from now on; 0: all. */
static pb_pyobject *catch_on(pb_pyobject *self, pb_pyobject *number)
{
    const struct pb_python *py = pb_python_here();
    (void)self;

    catching_pid = getpid();
    __atomic_store_n(&catching, (uint32_t)py->uint64_as(number), __ATOMIC_RELEASE);
    if (py->err_occurred())
        return NULL;
    py->incref(py->none);
    return py->none;
}

/* -errno, or the size. Never waits, and opens no pipe or device, which may be named as a source: whoever
 * writes to a pipe would see its reader, and some devices begin to act. */
static long read_file(const char *path, char *buf, long size)
{
    struct stat st;
    long n = 0, r = 1;

    if (stat(path, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        r = -EINVAL;
    while (r > 0 && n < size) {
        r = read(fd, buf + n, size - n);
        n += r > 0 ? r : 0;
    }
    close(fd);
    return r < 0 ? r : n;
}

/* read_source(path, most): the first bytes of a regular file. None: it cannot be read. */
static pb_pyobject *read_source(pb_pyobject *self, pb_pyobject *args)
{
    const struct pb_python *py = pb_python_here();
    pb_pyobject *name = py->tuple_get(args, 0), *most = name ? py->tuple_get(args, 1) : NULL;
    const char *path = most ? py->utf8_of(name) : NULL;
    long size = path ? py->int_as(most) : 0;
    (void)self;

    pb_pyobject *bytes = size > 0 ? py->bytes_from(NULL, size) : NULL;
    char *buf = NULL;
    if (!bytes || py->bytes_as(bytes, &buf, &size) < 0)
        return NULL;
    void *state = py->save_thread();
    long n = read_file(path, buf, size);
    py->restore_thread(state);
    pb_pyobject *result = n < 0 ? py->none : py->bytes_from(buf, n);
    if (n < 0)
        py->incref(result);
    py->decref(bytes);
    return result;
}

struct pb_py_method pb_catch_methods[] = {
    {"read_source", (pb_py_function)read_source, PB_METH_VARARGS, NULL},
    {"catch_hook", (pb_py_function)catch_hook, PB_METH_VARARGS, NULL},
    {"catch_on", (pb_py_function)catch_on, PB_METH_O, NULL},
    {0},
};
